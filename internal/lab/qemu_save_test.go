package lab

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab/state"
	"linus/internal/loops"
)

// TestQemu_SavesMachinesAsTemplates makes templates of a real machine, of a copy and of itself, and
// boots a machine from each, side by side, by the host's scripts: they share nothing but what was set up.
func TestQemu_SavesMachinesAsTemplates(t *testing.T) {
	loops.AtNightOnly(t, "TestSave_AVMBecomesATemplate saves processes by the same script, with the same program")
	needQemu(t)
	l := newLab(t, func(o *Options) { o.Driver = state.DriverQemu })
	env := func(n int, more ...string) []string {
		return append(l.vmEnv(t, n), append([]string{"VM_CPU=2", "VM_NETWORK_TIMEOUT=900", "VM_READY_TIMEOUT=900", "STORAGE_RESERVE=0"}, more...)...)
	}
	booted, err := l.onHost("create-vm", env(1)...)
	if err != nil {
		t.Fatal(err)
	}
	id := value(t, booted, "VM_ID")
	first := l.reach(t, booted)
	before, err := askIdentity(first)
	if err != nil {
		t.Fatal(err)
	}
	const boot = "cat /proc/sys/kernel/random/boot_id"
	bootID, err := guestRun(first, boot+`; mkdir -p ~/kept; touch ~/kept/tool ~/.netrc ~/.ssh/id_ed25519; echo secret | tee ~/.bash_history | sudo tee /root/.bash_history >/dev/null
		sudo mkdir -p /opt/job-runner /var/lib/linus/x`)
	if err != nil {
		t.Fatal(err)
	}

	for n, save := range []struct{ name, mode string }{{"copied", "copy"}, {"taken", "in-place"}} {
		began := time.Now()
		said, err := l.onHost("save-vm", env(1, "VM_ID="+id, "TEMPLATE_NAME="+save.name, "SAVE_MODE="+save.mode, fmt.Sprintf("LINUS_BUILD=77777777-2222-4333-8444-55555555555%d", n))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%6.1fs to save it, %s", time.Since(began).Seconds(), save.mode)
		if !strings.Contains(said, "/.netrc (may hold credentials)") || strings.Contains(said, "free blocks") || (value(t, said, "VM_ID") == id) != (save.mode == "in-place") {
			t.Errorf("saved, %s:\n%s", save.mode, said)
		}
		if save.mode == "copy" {
			if again, err := guestRun(first, boot+"; ls ~/.bash_history ~/.ssh/id_ed25519"); err != nil || !strings.HasPrefix(again, strings.TrimSpace(bootID)) {
				t.Errorf("the machine after its copy: %q, %v", again, err)
			}
		}
	}

	answers := make([]string, 2)
	var both sync.WaitGroup
	for n, from := range []string{"copied", "taken"} {
		both.Go(func() {
			answer, err := l.onHost("create-vm", env(n+2, "VM_TEMPLATE="+from)...)
			if err != nil {
				t.Error(err)
				return
			}
			answers[n] = answer
		})
	}
	both.Wait()
	if t.Failed() {
		t.FailNow()
	}
	seen := map[string]string{}
	for name, of := range before {
		seen[name+" "+of] = "the saved one"
	}
	for n, answer := range answers {
		client := l.reach(t, answer)
		out, err := guestRun(client, `ls ~/kept; cat ~/.ssh/authorized_keys | wc -l; cloud-init status
			sudo ls -d ~/.bash_history ~/.ssh/id_ed25519 /root/.bash_history /opt/job-runner /var/lib/linus 2>/dev/null; true`)
		if want := "tool\n1\nstatus: done\n"; err != nil || out != want {
			t.Errorf("what is in it: %q, %v, want %q", out, err, want)
		}
		is, err := askIdentity(client)
		if err != nil {
			t.Fatal(err)
		}
		for name, of := range is {
			if other, taken := seen[name+" "+of]; taken {
				t.Errorf("%s %q, as %s", name, of, other)
			}
			seen[name+" "+of] = fmt.Sprintf("machine %d", n)
		}
		if want := fmt.Sprintf("vm-%d", n+2); is["host name"] != want {
			t.Errorf("host name %s, want %s", is["host name"], want)
		}
	}
}

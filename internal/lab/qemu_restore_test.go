package lab

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/netns"
	"linus/internal/lab/state"
	"linus/internal/loops"
)

// identity is what two machines may not share: each a command's output.
var identity = map[string]string{
	"MAC":        "cat /sys/class/net/e*/address",
	"address":    "ip -4 -o address show scope global | awk '{print $4}'",
	"host name":  "hostname",
	"machine ID": "cat /etc/machine-id",
	"host keys":  "cat /etc/ssh/ssh_host_*_key.pub | cut -d' ' -f2",
	"instance":   "cat /var/lib/cloud/data/instance-id; readlink /var/lib/cloud/instance",
	"DHCP ID":    "sudo cat /run/systemd/netif/leases/* | grep ^CLIENTID",
	"random":     "head -c 32 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/uuid",
}

// lasting is what a reboot does not change.
var lasting = []string{"MAC", "host name", "machine ID", "host keys", "instance"}

func askIdentity(client *ssh.Client) (map[string]string, error) {
	is := map[string]string{}
	for name, command := range identity {
		out, err := guestRun(client, command)
		if err != nil || strings.TrimSpace(out) == "" {
			return nil, fmt.Errorf("%s: %q: %w", name, out, err)
		}
		is[name] = strings.TrimSpace(out)
	}
	return is, nil
}

// onHost runs one of the host's scripts where the lab's guests can be reached, in a session
// of the lab's sshd.
func (l *Lab) onHost(name string, env ...string) (answer string, err error) {
	host, err := dialHost(l.State)
	if err != nil {
		return "", err
	}
	defer host.Close()
	session, err := host.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	script, err := scriptFile(name)
	if err != nil {
		return "", err
	}
	var out, log strings.Builder
	session.Stdout, session.Stderr = &out, &log
	words := append([]string{"env", "LINUS_OWNER=" + labOwner}, env...)
	if err := session.Run(shellescape.QuoteCommand(append(words, "bash", script))); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", name, err, out.String(), log.String())
	}
	return out.String(), nil
}

// TestQemu_RestoresMachinesFromACheckpoint boots a real machine, makes a checkpoint of it,
// and restores two from that side by side, by the host's scripts.
func TestQemu_RestoresMachinesFromACheckpoint(t *testing.T) {
	loops.AtNightOnly(t, "TestCheckpoint_ByTheHostsScripts restores processes by the same scripts, with the same program")
	needQemu(t)
	l := newLab(t, func(o *Options) { o.Driver = state.DriverQemu })
	env := func(n int, more ...string) []string {
		return append(l.vmEnv(t, n), append([]string{"VM_CPU=2", "VM_NETWORK_TIMEOUT=900", "VM_READY_TIMEOUT=900"}, more...)...)
	}

	began := time.Now()
	booted, err := l.onHost("create-vm", env(1)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs from clone to ready, booted", time.Since(began).Seconds())
	id := value(t, booted, "VM_ID")
	first := l.reach(t, booted)
	before, err := askIdentity(first)
	if err != nil {
		t.Fatal(err)
	}
	bootID, err := guestRun(first, "cat /proc/sys/kernel/random/boot_id; echo secret >~/.bash_history; mkdir -p ~/kept; sudo install -D /dev/stdin /opt/job-runner/runner <<<runner")
	if err != nil {
		t.Fatal(err)
	}

	began = time.Now()
	saved, err := l.onHost("checkpoint-vm", env(1, "VM_ID="+id, "CHECKPOINT_ROOM=0", "STORAGE_RESERVE=0")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs for the checkpoint, %s bytes", time.Since(began).Seconds(), value(t, saved, "CHECKPOINT_BYTES"))

	answers := make([]string, 2)
	var both sync.WaitGroup
	for n := range answers {
		both.Go(func() {
			began := time.Now()
			answer, err := l.onHost("create-vm", env(n+2, "VM_CHECKPOINT="+id)...)
			if err != nil {
				t.Error(err)
				return
			}
			t.Logf("%6.1fs from clone to ready, restored side by side", time.Since(began).Seconds())
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
	var last map[string]string
	for n, answer := range answers {
		client := l.reach(t, answer)
		asked := time.Now()
		clock, err := guestRun(client, "date +%s.%N")
		answered := time.Now()
		if err != nil {
			t.Fatal(err)
		}
		out, err := guestRun(client, "cat /proc/sys/kernel/random/boot_id; ls -d ~/kept; ls ~/.bash_history 2>/dev/null; cat ~/.ssh/authorized_keys | wc -l; cat /opt/linus/job-runner.sh; ls -d /opt/job-runner 2>/dev/null; cloud-init status; systemctl is-failed '*' >/dev/null && systemctl --failed --no-legend")
		lines := strings.Fields(out)
		if len(lines) < 4 {
			t.Fatalf("%v: %q", err, out)
		}
		stamp, err := strconv.ParseFloat(strings.TrimSpace(clock), 64)
		behind, ahead := asked.Sub(time.Unix(0, int64(stamp*1e9))), time.Unix(0, int64(stamp*1e9)).Sub(answered)
		if err != nil || behind > 5*time.Second || ahead > 5*time.Second {
			t.Errorf("its clock is %s behind, or %s ahead: %v", behind, ahead, err)
		}
		t.Logf("its clock is at most %s off", max(answered.Sub(time.Unix(0, int64(stamp*1e9))), -behind).Round(time.Millisecond))
		if lines[0] != strings.TrimSpace(bootID) {
			t.Errorf("boot %s, saved %s: it was not restored", lines[0], bootID)
		}
		if strings.Contains(out, "bash_history") || lines[2] != "1" || lines[3] != "runner" || strings.Contains(out, "/opt/job-runner") || !strings.Contains(out, "status: done") || strings.Contains(out, ".service") {
			t.Errorf("what is in it:\n%s", out)
		}
		is, err := askIdentity(client)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(is)) {
			if other, taken := seen[name+" "+is[name]]; taken {
				t.Errorf("%s %q, as %s", name, is[name], other)
			}
			seen[name+" "+is[name]] = fmt.Sprintf("machine %d", n)
		}
		if want := fmt.Sprintf("vm-%d", n+2); is["host name"] != want {
			t.Errorf("host name %s, want %s", is["host name"], want)
		}
		if key := value(t, answer, "VM_HOST_KEY"); !strings.Contains(is["host keys"], strings.Fields(key)[1]) {
			t.Errorf("host keys %s, pinned %s", is["host keys"], key)
		}
		if got, want := is["address"], value(t, answer, "VM_IP")+"/"; !strings.HasPrefix(got, want) {
			t.Errorf("address %s, told %s", got, want)
		}
		last = is
	}

	// An address that is given, and a network that is closed.
	gateway := netns.Of(l.State).Gateway
	given := strings.TrimSuffix(gateway.String(), ".1") + ".41"
	began = time.Now()
	answer, err := l.onHost("create-vm", env(4, "VM_CHECKPOINT="+id, "VM_IP_CONFIG="+given+"/24", "VM_GATEWAY="+gateway.String(), "VM_EGRESS=none")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs from clone to ready, restored with an address of ours", time.Since(began).Seconds())
	out, err := guestRun(l.reach(t, answer), "ip -4 -o address show scope global; ip route show default; timeout 3 bash -c 'echo </dev/tcp/"+gateway.String()+"/53' && echo open")
	if !strings.Contains(out, " "+given+"/24 ") || strings.Count(out, "inet ") != 1 || !strings.Contains(out, "default via "+gateway.String()+" ") || strings.Contains(out, "\nopen") {
		t.Errorf("its network (%v):\n%s", err, out)
	}

	// The next boot is not taken for the first of another machine.
	began = time.Now()
	vm := value(t, answers[1], "VM_ID")
	if _, err := l.onHost("power-vm", env(3, "VM_ID="+vm, "ACTION=shutdown")...); err != nil {
		t.Fatal(err)
	}
	again, err := l.onHost("power-vm", env(3, "VM_ID="+vm, "ACTION=start")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs for its reboot", time.Since(began).Seconds())
	is, err := askIdentity(l.reach(t, again))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range lasting {
		if is[name] != last[name] {
			t.Errorf("%s %q after a reboot, %q before", name, is[name], last[name])
		}
	}
}

// reach logs in where a script's answer says a guest is.
func (l *Lab) reach(t *testing.T, answer string) *ssh.Client {
	t.Helper()
	var client *ssh.Client
	waitFor(t, t.Context(), "SSH", func() (err error) {
		client, err = dialGuest(l.State, net.ParseIP(value(t, answer, "VM_IP")).String(), value(t, answer, "VM_USER"))
		return err
	})
	t.Cleanup(func() { client.Close() })
	return client
}

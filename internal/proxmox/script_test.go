package proxmox_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// How a script ends is the class of the error, in the script's own words.
func TestScript_EndsAsAClassOfError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		script func(*run) int
		class  job.HostClass
		text   string // of the error, contained
		remedy string
	}{
		{"invalid", func(r *run) int { return r.fails(1, "bad name", "another name") }, job.HostInvalid, "bad name", "another name"},
		{"a tool is missing", func(r *run) int { return r.fails(2, "no jq", "install it") }, job.HostDependency, "no jq", "install it"},
		{"configuration", func(r *run) int { return r.fails(3, "no such storage", "name one") }, job.HostConfig, "no such storage", "name one"},
		{"node offline", func(r *run) int { return r.fails(4, "pve2 is down", "bring it up") }, job.HostOffline, "pve2 is down", "bring it up"},
		{"VM", func(r *run) int { return r.fails(5, "it is running", "stop it") }, job.HostVM, "it is running", "stop it"},
		{"time", func(r *run) int { return r.fails(6, "no address", "look at DHCP") }, job.HostTimeout, "no address", "look at DHCP"},
		{"taken name", func(r *run) int {
			r.say("LINUS_VM_OUTCOME:exists")
			return r.fails(5, "a VM of that name", "another name")
		}, job.HostExists, "a VM of that name", "another name"},
		{"left alone", func(r *run) int {
			r.say("LINUS_VM_OUTCOME:refused")
			return r.fails(5, "not proven", "look at it")
		}, job.HostLeftAlone, "not proven", "look at it"},
		{"another's by now", func(r *run) int {
			r.say("LINUS_VM_OUTCOME:foreign")
			return r.fails(5, "another VM", "nothing")
		}, job.HostForeign, "another VM", "nothing"},
		{"an outcome beside another code says nothing", func(r *run) int {
			r.say("LINUS_VM_OUTCOME:refused")
			return r.fails(4, "pve2 is down", "bring it up")
		}, job.HostOffline, "pve2 is down", "bring it up"},
		{"a signal after roll-back", func(r *run) int { return r.fails(143, "stopped", "none") }, job.HostCancelled, "stopped", "none"},
		{"ssh's own code is no script's", func(*run) int { return 255 }, job.HostUnreachable, "exit code 255", ""},
		{"a code no script has", func(r *run) int { r.log.WriteString("Killed\n"); return 137 }, job.HostVM, "Killed", ""},
		{"no result", func(*run) int { return 0 }, job.HostVM, "without a result", ""},
		{"a result that says failure, and exit code 0", func(r *run) int { return r.fails(0, "half done", "again") }, job.HostVM, "half done", "again"},
		{"success, and another exit code than 0", func(r *run) int { r.say("LINUS_RESULT:SUCCESS"); return 5 }, job.HostVM, "exit code 5", ""},
		{"an answer that is not whole", func(r *run) int {
			r.say("LINUS_RESULT:SUCCESS")
			r.out = io.Discard
			return 0
		}, job.HostVM, "without a result", ""},
		{"words for a terminal", func(r *run) int { return r.fails(5, "red \x1b[31malert\x1b]0;x\x07", "none") }, job.HostVM, "red alert", "none"},
		{"an input in the words of linus", func(r *run) int { return r.fails(3, "VM_TEMPLATE=x is none", "set VM_VLAN_TAG") }, job.HostConfig, "DEFAULT_VM_TEMPLATE=x", "set PROXMOX_VLAN_TAG"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newScripted(t, map[string]func(*run) int{"show-vm": tt.script})
			_, err := h.provider(nil).Status(t.Context(), theVM)
			host := hostError(t, err, tt.class)
			if !strings.Contains(host.Text, tt.text) || strings.Contains(host.Text, "\x1b") || host.Remedy != tt.remedy {
				t.Errorf("text %q, remedy %q; want %q and %q", host.Text, host.Remedy, tt.text, tt.remedy)
			}
			if host.Host != h.pool.Login() || !strings.Contains(host.Op, "VM 105 (linus-job-1)") {
				t.Errorf("%+v does not say what was tried where", host)
			}
			if n := len(h.asked("show-vm")); n != 1 {
				t.Errorf("the script ran %d times", n)
			}
		})
	}
}

// A VM that is looked at every few seconds is warned of once, until what is said of it changes.
func TestScript_WarnsOnceUntilItChanges(t *testing.T) {
	t.Parallel()
	var warnings []string
	h := newScripted(t, map[string]func(*run) int{"show-vm": func(r *run) int {
		for _, w := range warnings {
			r.say("LINUS_WARNING:" + w)
		}
		r.say("LINUS_VM_STATUS:left_alone", "LINUS_RESULT:SUCCESS")
		return 0
	}})
	log := &logBook{}
	p := h.provider(func(o *proxmox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	before := 0
	other := theVM
	other.ID = 106
	logged := func(warned ...string) []string {
		warnings = warned
		for _, v := range []vm.VM{theVM, theVM, other} {
			if _, err := p.Status(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
		var said []string
		lines := log.lines("script warned")
		for _, line := range lines[before:] {
			said = append(said, line[strings.Index(line, "text="):])
		}
		before = len(lines)
		return said
	}
	for _, step := range []struct{ warned, want []string }{
		{[]string{"renamed"}, []string{"text=renamed", "text=renamed"}}, // each VM once
		{[]string{"renamed"}, nil},
		{[]string{"renamed", "untagged"}, []string{"text=untagged", "text=untagged"}},
		{nil, nil},
		{[]string{"renamed"}, []string{"text=renamed", "text=renamed"}},
	} {
		if diff := cmp.Diff(step.want, logged(step.warned...)); diff != "" {
			t.Errorf("after %q: %s", step.warned, diff)
		}
	}
}

// What another than the script printed is not its answer.
func TestScript_OnlyItsOwnAnswerCounts(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"show-vm": func(r *run) int {
		nonce := r.nonce
		r.say("LINUS_END:"+nonce, "LINUS_VM_STATUS:stopped", "LINUS_BEGIN:guessed", "LINUS_VM_STATUS:gone", "LINUS_RESULT:SUCCESS", "LINUS_END:guessed")
		return 0
	}})
	if status, err := h.provider(nil).Status(t.Context(), theVM); err == nil {
		t.Errorf("status = %q", status)
	}
}

// A script that a break of the connection has left is run again, as long as its
// caller has patience; who only looks has none.
func TestScript_IsRunAgainAfterABreak(t *testing.T) {
	t.Parallel()
	var h *scripted
	var breaks atomic.Int32
	broken := func(then func(*run) int) func(*run) int {
		return func(r *run) int {
			if breaks.Add(-1) >= 0 {
				h.Drop()
			}
			return then(r)
		}
	}
	h = newScripted(t, map[string]func(*run) int{"show-vm": broken(succeeds("LINUS_VM_STATUS:running")), "list-vms": broken(succeeds())})
	p := h.provider(nil)

	breaks.Store(2)
	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(h.asked("list-vms")); n != 3 {
		t.Errorf("list-vms ran %d times, want 3", n)
	}
	breaks.Store(1)
	_, err := p.Status(t.Context(), theVM)
	hostError(t, err, job.HostUnreachable)
	if n := len(h.asked("show-vm")); n != 1 {
		t.Errorf("show-vm ran %d times, want once", n)
	}
}

func TestScript_OfACallerWhoLeavesIsNotKnownToHaveEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := newScripted(t, map[string]func(*run) int{"list-vms": func(r *run) int {
		cancel()
		<-r.host.over
		return 0
	}})
	_, err := h.provider(nil).List(ctx)
	host := hostError(t, err, job.HostCancelled)
	if !strings.Contains(host.Text, "is not known") || host.Remedy == "" {
		t.Errorf("%+v", host)
	}
}

// Scripts are uploaded where they are not, once, and anew when they are gone.
func TestScript_IsUploadedWhenItIsNotThere(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"list-vms": succeeds()})
	absent := 1
	h.prepare = func() int {
		if absent--; absent < 0 {
			return 0
		}
		if err := os.MkdirAll(h.dir, 0o700); err != nil {
			t.Error(err)
		}
		return 66
	}
	p := h.provider(nil)
	for range 2 {
		if _, err := p.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(h.asked("prepare")); n != 1 {
		t.Errorf("looked %d times whether it is there", n)
	}
	script, err := embed.Script("list-vms")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.dir, "list-vms-"+script.SHA256[:12]+".sh")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != fs.FileMode(0o700) || readText(t, file) != string(script.Body) {
		t.Errorf("on the host: %v, %v, or another text", info, err)
	}
}

func TestScript_HasTheToolServerBesideIt(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		told := ""
		h := newScripted(t, map[string]func(*run) int{"list-vms": func(r *run) int {
			told = r.env["LINUS_TOOL_SERVER"]
			return succeeds()(r)
		}})
		if _, err := h.provider(func(o *proxmox.Options) { o.PlainTools = plain }).List(t.Context()); err != nil {
			t.Fatal(err)
		}
		script, err := embed.Script("tool-server")
		if err != nil {
			t.Fatal(err)
		}
		want := filepath.Join(h.dir, "tool-server-"+script.SHA256[:12]+".pl")
		if plain {
			want = ""
		}
		if told != want {
			t.Errorf("plain %v: the script was told of %q, want %q", plain, told, want)
		}
	}
}

func TestScript_ThatIsGoneIsUploadedOnceMore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		missing int
		ok      bool
	}{{"once", 1, true}, {"for good", 100, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var missing atomic.Int32
			missing.Store(int32(tt.missing))
			h := newScripted(t, map[string]func(*run) int{"list-vms": func(r *run) int {
				if missing.Add(-1) >= 0 {
					return 127
				}
				return succeeds()(r)
			}})
			_, err := h.provider(nil).List(t.Context())
			if (err == nil) != tt.ok {
				t.Errorf("err = %v", err)
			}
			if n := len(h.asked("list-vms")); n != 2 {
				t.Errorf("run %d times, want 2", n)
			}
			if n := len(h.asked("prepare")); n != 2 {
				t.Errorf("looked %d times whether it is there, want 2", n)
			}
		})
	}
}

func TestScript_ThatCannotBeUploadedIsNotRun(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"list-vms": succeeds()})
	h.prepare = func() int { return 1 } // a directory that cannot be made
	if _, err := h.provider(nil).List(t.Context()); err == nil {
		t.Error("listed")
	}
	if got := h.asked("list-vms"); len(got) != 0 {
		t.Errorf("ran: %v", got)
	}
}

func TestLockRetries_AreTold(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{
		"list-vms":  succeeds("LINUS_LOCK_RETRY:1/5", "LINUS_LOCK_RETRY:2/5"),
		"create-vm": succeeds(append([]string{"LINUS_LOCK_RETRY:1/5"}, reached...)...),
	})
	var told atomic.Int32
	p := h.provider(func(o *proxmox.Options) { o.OnLockRetry = func() { told.Add(1) } })
	if _, err := p.List(t.Context()); err != nil || told.Load() != 2 {
		t.Errorf("told of %d retries, want 2; %v", told.Load(), err)
	}
	if _, err := p.Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, func(job.Progress) {}); err != nil || told.Load() != 3 {
		t.Errorf("told of %d retries, want 3; %v", told.Load(), err)
	}
}

// A host that does not answer is asked again up to the caller's patience, and no
// longer.
func TestHost_ThatStaysAway(t *testing.T) {
	t.Parallel()
	h := newScripted(t, nil)
	h.Set(sshtest.Faults{RefuseLogin: true})
	p := h.provider(func(o *proxmox.Options) { o.Patience = 3 * time.Second })
	_, err := p.List(t.Context())
	hostError(t, err, job.HostUnreachable)
	if _, err = p.Status(t.Context(), theVM); !errors.As(err, new(*job.HostError)) {
		t.Errorf("status: %v", err)
	}
	if err := p.Destroy(t.Context(), theVM); err == nil {
		t.Error("destroyed on a host that does not answer")
	}
}

// What fails here, before the host was asked, says nothing of the host. The kernel
// returns EIO for this file, as a broken disk does.
func TestHost_ThatCouldNotBeAskedIsAFaultOfOurOwn(t *testing.T) {
	t.Parallel()
	h := newScripted(t, nil)
	pool := remote.NewPool(remote.Options{Host: h.Host, Port: h.Port, User: "root", KeyPath: "/proc/self/mem", KnownHosts: h.KnownHosts})
	t.Cleanup(pool.Close)
	p := h.provider(func(o *proxmox.Options) { o.Host, o.Patience = pool, time.Second })
	_, err := p.List(t.Context())
	if host := hostError(t, err, job.HostUnreachable); !job.IsEngineFault(err) || host.Remedy != job.ExhaustedRemedy {
		t.Errorf("%+v, own %v", host, job.IsEngineFault(err))
	}
}

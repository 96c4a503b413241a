package proxmox_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mvdan.cc/sh/v3/shell"

	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// A scripted is a Proxmox host on which our scripts are functions of the test,
// behind a real SSH server. Scripts that run as operations go on whatever
// becomes of the connection, and can be followed from any byte, as
// operation.sh has it.
type scripted struct {
	*sshtest.Server
	t       *testing.T
	pool    *remote.Pool
	dir     string
	scripts map[string]func(*run) int // by name; the exit status
	over    chan struct{}             // closed when the test ends

	mu         sync.Mutex
	changed    *sync.Cond
	commands   []string // what was asked for, in order: "list-vms", "start create-1", "stop create-1"
	operations map[string]*run
	prepare    func() int // of the look whether a script is there; nil: it is
	settled    int        // exit status of settle
	lost       bool       // operations are found without their script's end
}

// run is one run of a script.
type run struct {
	host  *scripted
	env   map[string]string
	args  []string
	nonce string
	stop  chan struct{} // closed when the script is told to undo its work

	out       io.Writer // of a script that is no operation
	said, log bytes.Buffer
	code      int
	ended     bool
	stopped   bool
}

func newScripted(t *testing.T, scripts map[string]func(*run) int) *scripted {
	t.Helper()
	h := &scripted{t: t, dir: filepath.Join(t.TempDir(), "scripts"), scripts: scripts, operations: map[string]*run{}, over: make(chan struct{})}
	h.changed = sync.NewCond(&h.mu)
	h.Server = sshtest.Start(t, sshtest.Options{Play: h.play})
	h.pool = remote.NewPool(remote.Options{
		Host: h.Host, Port: h.Port, User: "root", KeyPath: h.ClientKeyPath, KnownHosts: h.KnownHosts,
		ConnectTimeout: 5 * time.Second, Patience: 50 * time.Millisecond,
	})
	t.Cleanup(h.pool.Close)
	t.Cleanup(func() { // before the server ends, which waits for its commands
		h.mu.Lock()
		defer h.mu.Unlock()
		close(h.over)
		for _, r := range h.operations {
			r.tell()
		}
	})
	return h
}

func (h *scripted) provider(change func(*proxmox.Options)) *proxmox.Provider {
	o := proxmox.Options{Host: h.pool, ScriptDir: h.dir, Owner: owner, PlainTools: true}
	if change != nil {
		change(&o)
	}
	return proxmox.New(o)
}

// Two installations' and two jobs' ids.
const (
	owner = "11111111-2222-4333-8444-555555555555"
	jobID = "66666666-7777-4888-8999-aaaaaaaaaaaa"
	other = "bbbbbbbb-cccc-4ddd-8eee-ffffffffffff"
)

const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMyIQX+MISFUQ0Zv1KGaPMrSnDE5qnXOiBl6AKSLpwHa"

// play is one command line: a look whether a script is there, a verb of
// operation.sh, or a script.
func (h *scripted) play(e *sshtest.Exec) int {
	words, err := shell.Fields(e.Line, func(string) string { return "" })
	if err != nil || len(words) == 0 {
		h.t.Errorf("command line %q: %v", e.Line, err)
		return 1
	}
	env := map[string]string{}
	if words[0] == "env" {
		for words = words[1:]; strings.Contains(words[0], "="); words = words[1:] {
			name, value, _ := strings.Cut(words[0], "=")
			env[name] = value
		}
	}
	if words[0] == "sh" {
		h.note("prepare")
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.prepare != nil {
			return h.prepare()
		}
		return 0
	}
	file := path.Base(words[1])
	name := file[:max(0, strings.LastIndexByte(file, '-'))]
	if name == "operation" {
		return h.operation(e, env, words[2:])
	}
	h.note(name)
	script := h.scripts[name]
	if script == nil {
		return 127
	}
	r := &run{host: h, env: env, args: words[2:], nonce: env["LINUS_NONCE"], out: e.Stdout, stop: make(chan struct{})}
	r.code = r.play(script)
	_, _ = e.Stderr.Write(r.log.Bytes())
	return r.code
}

func (h *scripted) operation(e *sshtest.Exec, env map[string]string, words []string) int {
	verb, id := words[0], path.Base(words[1])
	if verb == "start" {
		id = words[2]
	}
	h.note(verb + " " + id)
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.operations[id]
	switch {
	case verb == "start" && r == nil:
		file := path.Base(words[3])
		name := file[:strings.LastIndexByte(file, '-')]
		r = &run{host: h, env: env, nonce: "nonce-of-" + id, stop: make(chan struct{})}
		h.operations[id] = r
		go func() { // ends with its script, which is told to when the test ends
			code := r.play(h.scripts[name])
			h.mu.Lock()
			defer h.mu.Unlock()
			r.code, r.ended = code, true
			h.changed.Broadcast()
		}()
		fallthrough
	case verb == "start":
		fmt.Fprintf(e.Stdout, "welcome\nLINUS_VM_ID:999\nLINUS_OPERATION:%s\n", r.nonce) // a login shell that talks
	case verb == "settle" && h.settled != 0:
		return h.settled
	case verb == "settle" && r == nil:
	case r == nil:
		return 66
	case verb == "stop":
		r.tell()
	case verb == "settle":
		r.tell()
		for !r.ended {
			h.changed.Wait()
		}
		delete(h.operations, id)
	case verb == "follow":
		return h.follow(e, r, words[2])
	default:
		h.t.Errorf("operation.sh has no verb %s", verb)
		return 1
	}
	return 0
}

func (h *scripted) follow(e *sshtest.Exec, r *run, offset string) int {
	at, err := strconv.Atoi(offset)
	if err != nil {
		h.t.Errorf("offset %q", offset)
		return 1
	}
	fmt.Fprintf(e.Stdout, "welcome\nLINUS_OPERATION:%s\n", r.nonce)
	for {
		if said := r.said.Bytes(); len(said) > at {
			if _, err := e.Stdout.Write(said[at:]); err != nil {
				return 1 // whoever followed is gone
			}
			at = len(said)
			continue
		}
		if r.ended || h.lost {
			break
		}
		h.changed.Wait()
	}
	end := fmt.Sprintf("exit:%d", r.code)
	if h.lost {
		end = "lost"
	}
	fmt.Fprintf(e.Stderr, "LINUS_OPERATION:%s:%s\n%s", r.nonce, end, r.log.String())
	return 0
}

func (h *scripted) note(command string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commands = append(h.commands, command)
	h.changed.Broadcast()
}

// asked returns the commands so far that begin so.
func (h *scripted) asked(prefix string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.commands), func(c string) bool { return !strings.HasPrefix(c, prefix) })
}

// loses has every operation found without its script.
func (h *scripted) loses() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = true
	h.changed.Broadcast()
}

// play runs a script between the lines that every script's answer is in.
func (r *run) play(script func(*run) int) int {
	r.say("LINUS_BEGIN:" + r.nonce)
	code := script(r)
	r.say("LINUS_END:" + r.nonce)
	return code
}

func (r *run) say(lines ...string) {
	text := strings.Join(lines, "\n") + "\n"
	if r.out != nil {
		_, _ = io.WriteString(r.out, text)
		return
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	r.said.WriteString(text)
	r.host.changed.Broadcast()
}

// tell tells the script to stop; the host is locked.
func (r *run) tell() {
	if !r.stopped {
		r.stopped = true
		close(r.stop)
	}
}

// fails says what a script says that ends with an error.
func (r *run) fails(code int, text, remedy string) int {
	r.say("LINUS_RESULT:FAILURE", "LINUS_ERROR:"+text, "LINUS_REMEDY:"+remedy)
	return code
}

func succeeds(lines ...string) func(*run) int {
	return func(r *run) int {
		r.say(append(lines, "LINUS_RESULT:SUCCESS")...)
		return 0
	}
}

// reached is what a script answers that has brought VM 105 up.
var reached = []string{"LINUS_VM_ID:105", "LINUS_VM_NODE:pve", "LINUS_VM_USER:debian", "LINUS_VM_IP:10.0.0.5", "LINUS_VM_HOST_KEY:" + hostKey}

var theVM = vm.VM{ID: 105, Name: "linus-job-1", Job: jobID, Owner: owner, Node: "pve", User: "debian"}

func hostError(t *testing.T, err error, class job.HostClass) *job.HostError {
	t.Helper()
	var host *job.HostError
	if !errors.As(err, &host) {
		t.Fatalf("err = %v, want a host error", err)
	}
	if host.Class != class || host.Op == "" || host.Host == "" || host.Text == "" {
		t.Errorf("%+v, want class %s", host, class)
	}
	return host
}

// logged returns an option that keeps the log.
func logged(log *logBook) func(*proxmox.Options) {
	return func(o *proxmox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) }
}

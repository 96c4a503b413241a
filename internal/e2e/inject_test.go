package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// How faults are made to happen: to the engine, to the SSH connections, to the
// VMs. All of it finds its victims by proof (the state directory's lock, the
// lab's pid files), never by a name.

func (h *host) logPath() string { return filepath.Join(h.state, "engine.log") }

// wholeLog is what the host's engines have logged, rotated away or not.
func (h *host) wholeLog() string {
	before, _ := os.ReadFile(h.logPath() + ".1")
	now, _ := os.ReadFile(h.logPath())
	return string(before) + string(now)
}

// engine is the process id of the engine, 0 when none runs.
func (h *host) engine() int {
	pid := firstNumber(filepath.Join(h.state, "engine.lock"))
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != h.linus() && exe != filepath.Join(binDir, "linus") { // that may be a script that starts this
		return 0
	}
	return pid
}

// killEngine is kill -9 of the engine; it returns when the engine is gone, and
// whether there was one.
func (h *host) killEngine() bool {
	pid := h.engine()
	if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		return false
	}
	for range 1000 {
		if h.engine() != pid {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// cutConnections kills the lab's sshd's sessions: every SSH connection to the
// host is reset, and what runs in them goes on alone.
func (h *host) cutConnections() int {
	sessions := childrenOf(h.sshd())
	for _, pid := range sessions {
		_ = syscall.Kill(pid, syscall.SIGKILL) // gone by itself meanwhile
	}
	return len(sessions)
}

// freezeHost makes the host's sshd and all its sessions silent, as an
// unreachable host is, until thaw.
func (h *host) freezeHost() (thaw func()) {
	pids := append([]int{h.sshd()}, childrenOf(h.sshd())...)
	return stopped(pids)
}

func (h *host) sshd() int { return firstNumber(filepath.Join(h.dir, "ssh", "pid")) }

// freezeGuest stops every process of a VM, until thaw.
func (h *host) freezeGuest(t *testing.T, id int) (thaw func()) {
	t.Helper()
	pid := h.vmPID(t, id)
	if pid == 0 {
		t.Fatalf("VM %d does not run", id)
	}
	// Again until nothing new is there: a process may start another before it is
	// stopped, and a runner that goes on keeps its job alive.
	var pids []int
	for {
		found := append([]int{pid}, descendantsOf(pid)...)
		slices.Sort(found)
		thaw := stopped(found)
		if slices.Equal(found, pids) {
			return thaw
		}
		pids = found
	}
}

// stopped stops processes until thaw. A victim that was not found is none: 0 would be
// this process and all that it has started.
func stopped(pids []int) (thaw func()) {
	pids = slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return pid <= 1 })
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // gone by itself meanwhile
	}
	return sync.OnceFunc(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
}

// vmPID is the process of a running VM, 0 when it does not run.
func (h *host) vmPID(t *testing.T, id int) int {
	t.Helper()
	report, err := h.lab.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, vm := range report.VMs {
		if vm.ID == id {
			return vm.PID
		}
	}
	return 0
}

// qm runs qm on the host, as an operator does.
func (h *host) qm(t *testing.T, args ...string) {
	t.Helper()
	if _, err := h.lab.QM(t.Context(), args...); err != nil {
		t.Error(err)
	}
}

// conf is the VM's config on the host, "" when there is none.
func (h *host) conf(id int) string {
	raw, _ := os.ReadFile(filepath.Join(h.dir, "etc/pve/qemu-server", strconv.Itoa(id)+".conf"))
	return string(raw)
}

// vmOf is the VM that carries the job's marker, 0 when there is none.
func (h *host) vmOf(job string) int {
	confs, _ := filepath.Glob(filepath.Join(h.dir, "etc/pve/qemu-server/*.conf"))
	for _, path := range confs {
		if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), job) {
			id, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".conf"))
			return id
		}
	}
	return 0
}

// moments of a job's life, in order: those the engine logs, and the VM's birth.
var moments = []string{"provision", "VM made", "push", "start", "run", "collect", "destroy"}

// reach waits until the job is at the moment, to the millisecond: where a fault
// is to hit a phase, a poll over MCP would come too late.
func (h *host) reach(t *testing.T, job, moment string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !h.reached(job, moment) {
		if time.Now().After(deadline) {
			t.Fatalf("job %s did not reach %q in a minute", job, moment)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (h *host) reached(job, moment string) bool {
	if moment == "VM made" {
		return h.vmOf(job) != 0
	}
	raw, _ := os.ReadFile(h.logPath())
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, `msg="phase started" job_id=`+job+" phase="+moment) {
			return true
		}
	}
	return false
}

// logged waits until the engine has logged the text.
func (h *host) logged(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if raw, _ := os.ReadFile(h.logPath()); strings.Contains(string(raw), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the engine did not log %q in a minute", text)
		}
	}
}

// ledger counts, outside of all VMs, how often each job's task has begun, and
// keeps the words tasks leave with it.
type ledger struct {
	url string

	mu     sync.Mutex
	starts map[int]int
	words  map[string]string
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{starts: map[int]int{}, words: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /start/{n}", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.starts[n]++
	})
	mux.HandleFunc("POST /word/{name}", func(_ http.ResponseWriter, r *http.Request) {
		word := make([]byte, 4096)
		n, _ := r.Body.Read(word)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.words[r.PathValue("name")] = strings.TrimSpace(string(word[:n]))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

// begun is how often job n's task has begun.
func (l *ledger) begun(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts[n]
}

// word waits for the word a task leaves under a name.
func (l *ledger) word(t *testing.T, name string) string {
	t.Helper()
	for range 3000 {
		l.mu.Lock()
		word := l.words[name]
		l.mu.Unlock()
		if word != "" {
			return word
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no task said %s in 30 s", name)
	return ""
}

// work is a task whose whole output is known from its number.
type work struct {
	n     int
	lines int
	sleep string // as sleep(1) takes it, between the lines and the end
	exit  int
}

func (l *ledger) task(w work) string {
	return fmt.Sprintf("curl -fsS --retry 5 --retry-connrefused -o /dev/null -X POST %s/start/%d || exit 97\n", l.url, w.n) + w.script()
}

// task is the work for a VM that cannot reach a ledger: it keeps count on the
// VM's disk, and fails when it begins again.
func (w work) task() string {
	return "mkdir /var/tmp/begun || exit 98\n" + w.script()
}

func (w work) script() string {
	return fmt.Sprintf(`for ((i = 0; i < %d; i++)); do echo "job %d line $i"; done
sleep %s
echo "job %[2]d ends" >&2
exit %[4]d
`, w.lines, w.n, w.sleep, w.exit)
}

func (w work) stdout() string {
	var b strings.Builder
	for i := range w.lines {
		fmt.Fprintf(&b, "job %d line %d\n", w.n, i)
	}
	return b.String()
}

func (w work) stderr() string { return fmt.Sprintf("job %d ends\n", w.n) }

// firstNumber is the number a file begins with, 0 when there is none.
func firstNumber(path string) int {
	raw, _ := os.ReadFile(path)
	fields := strings.Fields(string(raw))
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}

// parents maps every process of the machine to its parent.
func parents() map[int]int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	parent := make(map[int]int, len(stats))
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		fields := strings.Fields(string(raw)[strings.LastIndexByte(string(raw), ')')+1:])
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		parent[pid], _ = strconv.Atoi(fields[1])
	}
	return parent
}

func childrenOf(pid int) []int {
	var pids []int
	for child, parent := range parents() {
		if parent == pid && pid > 1 {
			pids = append(pids, child)
		}
	}
	return pids
}

func descendantsOf(pid int) []int {
	parent := parents()
	found := []int{pid}
	for grown := true; grown; {
		grown = false
		for child, its := range parent {
			if slices.Contains(found, its) && !slices.Contains(found, child) {
				found, grown = append(found, child), true
			}
		}
	}
	return found[1:]
}

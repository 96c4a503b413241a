package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// endsWhole waits for the job's end and checks that it is what the task came
// to, with every byte, and that the task ran once.
func (c *mcpClient) endsWhole(l *ledger, id string, w work) {
	c.t.Helper()
	job := c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id, "max_bytes": 1 << 20})
	status := "success"
	if w.exit != 0 {
		status = "failed"
	}
	if job["status"] != status || job["reason"] != "exit_status" || got["exit_code"] != float64(w.exit) {
		c.t.Errorf("job %v", job)
	}
	if got["output"] != w.stdout() || got["stderr"] != w.stderr() || got["output_incomplete"] == true {
		c.t.Errorf("stdout has %v of %d bytes, stderr is %q, incomplete: %v", got["output_bytes"], len(w.stdout()), got["stderr"], got["output_incomplete"])
	}
	if n := l.begun(w.n); n != 1 {
		c.t.Errorf("the task began %d times", n)
	}
}

// endsAs waits for the job's end and checks status and reason.
func (c *mcpClient) endsAs(id, status, reason string) map[string]any {
	c.t.Helper()
	job := c.wait(id)
	if job["status"] != status || job["reason"] != reason {
		c.t.Errorf("job is %v, %v; want %s, %s: %v", job["status"], job["reason"], status, reason, job["error"])
	}
	return job
}

// Faults at every moment of a job's life, after which it ends as if nothing
// had been: right, whole, once, without a VM left.
func TestFault_AtEveryMoment(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name   string
		inject func(*testing.T, *host)
	}{
		{"engine killed", func(t *testing.T, h *host) {
			if !h.killEngine() {
				t.Fatal("no engine to kill")
			}
		}},
		{"connections cut", func(_ *testing.T, h *host) { h.cutConnections() }},
		{"host unreachable for 3 s", func(_ *testing.T, h *host) {
			thaw := h.freezeHost()
			time.Sleep(3 * time.Second)
			thaw()
		}},
	}
	steps := loops.Every(len(faults)*len(moments), len(moments)+1, "TestEngines_KilledAtEveryStep and TestJob_OutlastsFaultsOfTheEnginesOwn have them at each step of a job")
	for f, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess)
			foreign := h.plantForeign(t)
			l, c := newLedger(t), h.connect(t)
			for i, moment := range moments {
				if !slices.Contains(steps, f*len(moments)+i) {
					continue
				}
				t.Run(moment, func(t *testing.T) {
					w := work{n: 100*f + i, lines: 5000, sleep: "0.5"}
					c := &mcpClient{c.Client, t}
					id := c.submit(script(l.task(w)))
					h.reach(t, id, moment)
					fault.inject(t, h)
					c.endsWhole(l, id, w)
					h.waitGone(t)
				})
			}
			if now := h.readForeign(t); now != foreign {
				t.Errorf("the foreign VM's config is now:\n%s", now)
			}
		})
	}
}

// Two chat windows with a job each: the engine both use is killed, both ask at
// once, one engine comes up, both jobs end.
func TestEngineKilled_TwoClients(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	l := newLedger(t)
	clients := []*mcpClient{h.connect(t), h.connect(t)}
	ids, works := make([]string, 2), make([]work, 2)
	for i, c := range clients {
		works[i] = work{n: i, lines: 100, sleep: "2"}
		ids[i] = c.submit(script(l.task(works[i])))
	}
	for i := range clients {
		h.reach(t, ids[i], "run")
	}
	first := h.engine()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	var asking sync.WaitGroup
	for i, c := range clients {
		asking.Go(func() {
			if res, err := c.try("get_job_status", map[string]any{"job_id": ids[i]}); err != nil || res.IsError {
				t.Errorf("client %d after the kill: %v %v", i, err, res)
			}
		})
	}
	asking.Wait()
	if now := h.engine(); now == 0 || now == first {
		t.Errorf("engine was %d, is %d", first, now)
	}
	for i, c := range clients {
		c.endsWhole(l, ids[i], works[i])
	}
	h.waitGone(t)
}

// Of two `linus serve` started at once over the state directory of an engine
// that was killed, one wins and takes the running job up, the other says why
// it does not run.
func TestServe_TwoAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	l, c := newLedger(t), h.connect(t)
	w := work{n: 1, lines: 10, sleep: "3"}
	id := c.submit(script(l.task(w)))
	h.reach(t, id, "run")
	c.Close() // a client starts an engine where there is none
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	type end struct {
		err  error
		said string
	}
	ends := make(chan end, 2)
	for range 2 {
		var said strings.Builder
		serve := exec.Command(filepath.Join(binDir, "linus"), "serve")
		serve.Env, serve.Stderr = h.env, &said
		if err := serve.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			err := serve.Wait()
			ends <- end{err, said.String()}
		}()
	}
	loser := <-ends
	if loser.err == nil || !strings.Contains(loser.said, "an engine is running here already") {
		t.Errorf("the second serve ended with %v and said %q", loser.err, loser.said)
	}
	h.connect(t).endsWhole(l, id, w)
	h.waitGone(t)
	h.cli(t, "serve", "--stop")
	if winner := <-ends; winner.err != nil {
		t.Errorf("the first serve ended with %v and said %q", winner.err, winner.said)
	}
}

// A task that ends while no engine runs is not lost: the runner keeps what it
// came to until the next engine records it.
func TestCompletion_WhileEngineIsDown(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "CALLBACK_PORT="+freePort(t))
	l, c := newLedger(t), h.connect(t)
	w := work{n: 1, lines: 20000, sleep: "0", exit: 4}
	word := fmt.Sprintf("\ncurl -fsS -d over %s/word/end\nexit 4\n", l.url)
	task := strings.Replace(l.task(w), "\nexit 4\n", word, 1)
	task = "sleep 1\n" + task
	id := c.submit(script(task))
	h.reach(t, id, "run")
	c.Close()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	l.word(t, "end")
	if h.engine() != 0 {
		t.Fatal("an engine runs")
	}
	h.connect(t).endsWhole(l, id, w)
	h.waitGone(t)
}

// The host is out of reach for 30 s while the job is made, runs and ends.
func TestHost_UnreachableFor30s(t *testing.T) {
	t.Parallel()
	at := []string{"run", "VM made", "collect"}
	for _, i := range loops.Every(len(at), 3, "TestFault_AtEveryMoment has a host that is away for a shorter time") {
		moment := at[i]
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess)
			l, c := newLedger(t), h.connect(t)
			w := work{n: i, lines: 5000, sleep: "1"}
			id := c.submit(script(l.task(w)))
			h.reach(t, id, moment)
			thaw := h.freezeHost()
			defer thaw()
			time.Sleep(30 * time.Second)
			thaw()
			c.endsWhole(l, id, w)
			h.waitGone(t)
		})
	}
}

// What happens to a VM behind linus's back ends its job as lost, within the
// heartbeat threshold and a bit.
func TestVM_GoneBehindOurBack(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		inject func(t *testing.T, h *host, vm int)
	}{
		{"destroyed by an operator", func(t *testing.T, h *host, vm int) {
			h.qm(t, "stop", strconv.Itoa(vm))
			h.qm(t, "destroy", strconv.Itoa(vm), "--purge", "1", "--destroy-unreferenced-disks", "1")
		}},
		{"rebooted", func(t *testing.T, h *host, vm int) { h.qm(t, "reboot", strconv.Itoa(vm)) }},
		{"reset", func(t *testing.T, h *host, vm int) {
			h.qm(t, "stop", strconv.Itoa(vm))
			h.qm(t, "start", strconv.Itoa(vm))
		}},
		{"stopped", func(t *testing.T, h *host, vm int) { h.qm(t, "stop", strconv.Itoa(vm)) }},
		{"frozen", func(t *testing.T, h *host, vm int) { h.freezeGuest(t, vm) }},
	}
	for _, i := range loops.Every(len(tests), 3, "TestFollow_ARebootedVMsJobIsLost, TestFollow_AVMThatRestartsElsewhereIsLost and TestJob_VMThatGoesDownBeforeItsTaskRunsIsLostAtOnce have the other ways") {
		tt := tests[i]
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS=30")
			c := h.connect(t)
			id := c.submit(script("echo begun; sleep 1000"))
			h.reach(t, id, "run")
			tt.inject(t, h, h.vmOf(id))
			began := time.Now()
			c.endsAs(id, "failed", "lost")
			if took := time.Since(began); took > 90*time.Second {
				t.Errorf("known to be lost after %s only", took)
			}
			h.waitGone(t)
		})
	}
}

// While no engine runs, an operator destroys the job's VM, and its ID goes to
// a VM of somebody else, which lives at the same address. That one is left
// alone.
func TestVMID_RecycledWhileEngineIsDown(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS=30")
	c := h.connect(t)
	id := c.submit(script("sleep 1000"))
	h.reach(t, id, "run")
	c.Close()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	vm := h.vmOf(id)
	number := strconv.Itoa(vm)
	h.qm(t, "stop", number)
	h.qm(t, "destroy", number, "--purge", "1", "--destroy-unreferenced-disks", "1")
	h.qm(t, "clone", strconv.Itoa(lab.TemplateID), number, "--name", "production")
	h.qm(t, "start", number)
	conf, pid := h.conf(vm), h.vmPID(t, vm)
	next := h.connect(t)
	next.endsAs(id, "failed", "lost")
	next.until(id, func(j map[string]any) bool { return j["vm"].(map[string]any)["state"] == "destroyed" })
	leases, err := filepath.Glob(filepath.Join(h.dir, "home/linus/leases/*-*"))
	if err != nil || len(leases) > 0 {
		t.Errorf("leases are left for a VM that is gone: %v, %v", leases, err)
	}
	if h.conf(vm) != conf || h.vmPID(t, vm) != pid {
		t.Errorf("the foreign VM was %d\n%s\nis %d\n%s", pid, conf, h.vmPID(t, vm), h.conf(vm))
	}
}

// What Proxmox does at its worst, end to end: either the job is none the
// worse for it, or it fails with words that name the cause. No VM is left.
func TestProxmoxFaults(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "VM_NETWORK_TIMEOUT=10")
	l, c := newLedger(t), h.connect(t)
	tests := []struct {
		fault lab.Fault
		value string
		says  string // "": the job succeeds
	}{
		{state.FaultTaken, "3", ""},
		{state.FaultTakenCT, "3", ""},
		{state.FaultLockTimeout, "1", ""},
		{state.FaultLockTimeout, "3", ""},
		{state.FaultStorageLockTimeout, "1", ""},
		{state.FaultAgentDelay, "2", ""},
		{state.FaultExtraInterfaces, "1", ""},
		{state.FaultDestroyLeaves, "1", ""},
		{state.FaultDestroyLate, "2", ""},
		{state.FaultCloneFails, "1", ""},
		{state.FaultResizeFails, "1", "size"},
		{state.FaultStartFails, "1", "start"},
		{state.FaultAgentSilent, "1", "agent"},
		{state.FaultMissingBridge, "vmbr0", "bridge"},
		{state.FaultMissingTemplate, strconv.Itoa(lab.TemplateID), "agent-template"},
		{state.FaultNoQuorum, "1", "quorum"},
	}
	for _, i := range loops.Every(len(tests), 4, "TestFaults makes each of them, without an engine") {
		tt := tests[i]
		t.Run(string(tt.fault)+"="+tt.value, func(t *testing.T) {
			c := &mcpClient{c.Client, t}
			h.fault(t, string(tt.fault), tt.value)
			w := work{n: i, lines: 10, sleep: "0"}
			id := c.submit(script(l.task(w)))
			if tt.says == "" {
				c.endsWhole(l, id, w)
			} else if job := c.endsAs(id, "failed", "provision_failed"); !strings.Contains(fmt.Sprint(job["error"]), tt.says) {
				t.Errorf("the error does not speak of %s: %v", tt.says, job["error"])
			}
			if tt.says != "" && l.begun(i) != 0 {
				t.Error("the task began")
			}
			if err := h.lab.ClearFaults(); err != nil {
				t.Error(err)
			}
			h.waitGone(t)
		})
	}
}

// A full state disk: what cannot be kept is refused with words that say so,
// nothing acknowledged is lost, and with room again all goes on.
func TestStateDisk_Full(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a small disk for the state directory needs root")
	}
	if pgtest.Chosen() {
		t.Skip("jobs are not on the state directory's disk")
	}
	h := newHost(t, lab.DriverProcess, "CLEANUP_INTERVAL_SECONDS=10", "LINUS_STATE_RESERVE=0")
	if err := os.MkdirAll(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	// The disk is mounted where the engine alone sees it, and goes with it;
	// clients enter there.
	engine := exec.Command("sh", "-c", `mount -t tmpfs -o size=16m,mode=700 tmpfs "$LINUS_STATE_DIR" && exec "$0" serve`, filepath.Join(binDir, "linus"))
	engine.Env = h.env
	engine.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	var said strings.Builder
	engine.Stderr = &said
	if err := engine.Start(); err != nil {
		t.Skipf("no mount namespace here: %v", err)
	}
	t.Cleanup(func() {
		_ = engine.Process.Signal(syscall.SIGTERM)
		_ = engine.Wait()
		if t.Failed() {
			t.Logf("engine:\n%s", said.String()[max(0, said.Len()-20000):])
		}
	})
	seen := filepath.Join("/proc", strconv.Itoa(engine.Process.Pid), "root", h.state)
	for range 500 {
		if _, err := os.Stat(filepath.Join(seen, "engine.sock")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	l := newLedger(t)
	c := h.connectBy(t, "nsenter", "-m", "-t", strconv.Itoa(engine.Process.Pid), filepath.Join(binDir, "linus"), "mcp")
	w := work{n: 1, lines: 20000, sleep: "2"}
	id := c.submit(script(l.task(w)))
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	ballast := filepath.Join(seen, "ballast")
	fill(t, ballast)
	var refusal string
	for i := 0; refusal == "" && i < 200; i++ { // the database has some room of its own
		res, err := c.try("submit_job", map[string]any{"manifest": script("echo " + strings.Repeat("x", 100_000))})
		if err != nil {
			t.Fatal(err)
		}
		if res.IsError {
			refusal = text(res)
		}
	}
	if !strings.Contains(refusal, "full") && !strings.Contains(refusal, "no space left") {
		t.Errorf("a submit on a full disk says %q", refusal)
	}
	time.Sleep(5 * time.Second) // the task ends meanwhile, and cannot be recorded
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	c.endsWhole(l, id, w)
	next := work{n: 2, lines: 10, sleep: "0"}
	c.endsWhole(l, c.submit(script(l.task(next))), next)
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// A task that fills its VM's disk ends with its own exit status, and what fit
// is its output.
func TestGuestDisk_Full(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("a small disk for the guest needs root")
	}
	h := newHost(t, lab.DriverProcess)
	h.fault(t, string(state.FaultAgentDelay), "2") // time to put the disk in before the job comes
	c := h.connect(t)
	id := c.submit(script("yes | head -c 8000000; echo $? >&2; exit 5"))
	h.reach(t, id, "VM made")
	vm := h.vmOf(id)
	for range 500 {
		if log, _ := os.ReadFile(h.lab.LogPath(vm)); strings.Contains(string(log), ": up at") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	mount := exec.Command("nsenter", "-m", "-t", strconv.Itoa(h.vmPID(t, vm)), "sh", "-c",
		"mkdir -p /var/lib/linus && mount -t tmpfs -o size=2m tmpfs /var/lib/linus")
	if out, err := mount.CombinedOutput(); err != nil {
		t.Skipf("no small disk for the guest: %v %s", err, out)
	}
	job := c.endsAs(id, "failed", "exit_status")
	got := c.call("get_job_result", map[string]any{"job_id": id})
	if n := got["output_bytes"].(float64); got["exit_code"] != 5.0 || n < 1e6 || n > 2<<20 {
		t.Errorf("job %v, exit code %v, %v bytes of output", job, got["exit_code"], got["output_bytes"])
	}
	h.waitGone(t)
}

// Six submits at once, each a process of its own, with no engine there before:
// one engine comes up, every submit is answered, every job runs once.
func TestSubmit_ManyAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	l := newLedger(t)
	ids := make([]string, 4)
	var submits sync.WaitGroup
	for i := range ids {
		submits.Go(func() {
			ids[i] = strings.TrimSpace(h.cli(t, "job", "submit", "--", "bash", "-c", l.task(work{n: i, lines: 5, sleep: "0"})))
		})
	}
	submits.Wait()
	c := h.connect(t)
	for i, id := range ids {
		c.endsWhole(l, id, work{n: i, lines: 5, sleep: "0"})
	}
	h.waitGone(t)
}

// Cancelling at every moment, and again: the job is cancelled unless its end was
// decided before, and then its result is whole: collecting is left the time it
// needs. Its VM goes, and it never comes back to life.
func TestCancel_AtEveryMoment(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	l, c := newLedger(t), h.connect(t)
	for _, i := range loops.Every(len(moments), 3, "TestCancel_AtEveryPhase has the others") {
		moment := moments[i]
		t.Run(moment, func(t *testing.T) {
			c := &mcpClient{c.Client, t}
			decided := moment == "collect" || moment == "destroy"
			w := work{n: i, lines: 5000, sleep: "100"}
			if decided {
				w.sleep = "0"
			}
			id := c.submit(script(l.task(w)))
			h.reach(t, id, moment)
			for range 2 {
				res, err := c.try("cancel_job", map[string]any{"job_id": id})
				if err != nil {
					t.Fatal(err)
				}
				if said := text(res); res.IsError && !strings.Contains(said, "Job already completed") {
					t.Errorf("cancel says %q", said)
				} else if moment == "destroy" && !res.IsError {
					t.Errorf("a job that had ended was cancelled: %q", said)
				}
			}
			if decided {
				c.endsWhole(l, id, w)
			} else {
				c.endsAs(id, "failed", "cancelled")
			}
			h.waitGone(t)
			if n := l.begun(i); n > 1 {
				t.Errorf("the task began %d times", n)
			}
		})
	}
}

// What is said on the callback port decides nothing, whoever says it: not
// without a token, not with another's, not with the job's own, which can be read
// off the wire. It is looked over SSH, and what that shows is what the job comes
// to.
func TestCallbacks_ForgedAndContradictory(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	l, c := newLedger(t), h.connect(t)
	var ids, tokens, urls [2]string
	for i := range ids {
		manifest := script(fmt.Sprintf(`curl -fsS --data-binary @/run/linus/token %s/word/token%d
curl -fsS -d "$(sed -n s/^CALLBACK_URL=//p /opt/job-runner/settings)" %[1]s/word/url%[2]d
echo whole
read -r code
exit "$code"`, l.url, i))
		manifest["stdin"] = "open"
		ids[i] = c.submit(manifest)
	}
	for i := range ids {
		tokens[i] = l.word(t, fmt.Sprintf("token%d", i))
		urls[i] = l.word(t, fmt.Sprintf("url%d", i)) + "/callback/" + ids[i] + "/complete"
	}
	send := func(url, token string, exit int) int {
		status := "success"
		if exit != 0 {
			status = "failed"
		}
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(fmt.Sprintf(`{"status":%q,"exit_code":%d}`, status, exit)))
		if err != nil {
			t.Error(err)
			return 0
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	unknown := strings.Replace(urls[0], ids[0], "00000000-0000-7000-8000-000000000000", 1)
	for _, forged := range []struct {
		name, url, token string
		want             int
	}{
		{"no token", urls[0], "", http.StatusUnauthorized},
		{"wrong token", urls[0], strings.Repeat("0", 64), http.StatusNotFound},
		{"another job's token", urls[0], tokens[1], http.StatusNotFound},
		{"unknown job", unknown, tokens[0], http.StatusNotFound},
	} {
		if got := send(forged.url, forged.token, 0); got != forged.want {
			t.Errorf("%s: HTTP %d, want %d", forged.name, got, forged.want)
		}
	}
	for i, id := range ids {
		c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
		if j := c.call("get_job_status", map[string]any{"job_id": id}); j["status"] != "running" {
			t.Errorf("job %d is %v", i, j)
		}
	}
	var sending sync.WaitGroup
	var taken atomic.Int64
	for i := range 100 {
		sending.Go(func() {
			switch got := send(urls[0], tokens[0], i%5); got {
			case http.StatusOK:
				taken.Add(1)
			case http.StatusServiceUnavailable: // more than one job's at once
			default:
				t.Errorf("complete %d: HTTP %d", i, got)
			}
		})
	}
	sending.Wait()
	if taken.Load() == 0 {
		t.Error("none of 100 completes was taken")
	}
	h.logged(t, "a task's end was reported, but it runs on")
	if j := c.call("get_job_status", map[string]any{"job_id": ids[0]}); j["status"] != "running" {
		t.Errorf("a task that runs on is %v", j)
	}
	c.call("interact_with_job", map[string]any{"job_id": ids[0], "input": "7\n"})
	c.wait(ids[0])
	first := c.call("get_job_result", map[string]any{"job_id": ids[0]})
	if first["reason"] != "exit_status" || first["output"] != "whole\n" || first["exit_code"] != 7.0 || first["status"] != "failed" {
		t.Errorf("result %v", first)
	}
	for i := range 5 {
		if got := send(urls[0], tokens[0], i); got != http.StatusNotFound { // the token has ended with the job
			t.Errorf("late complete: HTTP %d", got)
		}
	}
	if diff := cmp.Diff(first, c.call("get_job_result", map[string]any{"job_id": ids[0]})); diff != "" {
		t.Errorf("late completes changed the result:\n%s", diff)
	}
	if j := c.call("get_job_status", map[string]any{"job_id": ids[1]}); j["status"] != "running" {
		t.Errorf("the other job is %v", j)
	}
	c.call("cancel_job", map[string]any{"job_id": ids[1]})
	h.waitGone(t)
}

// freePort is a TCP port nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

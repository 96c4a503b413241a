package e2e

import (
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/lab/netns"
	"linus/internal/loops"
	"linus/internal/queuetest"
)

// A session is served in a real VM, which is booted for it: by linus itself, which is sent there as
// a file. Nothing of the work is left there in a file, and nothing has the environment's key.
func TestDispatch_ServesASessionInARealVM(t *testing.T) {
	loops.AtNightOnly(t, "TestDispatch_ServesClaudesSessionsInVMs has the same program serve sessions in VMs that are processes, TestJob_RunsInARealVM takes jobs to a real one")
	h := realHost(t)
	q := queuetest.New(t, 2*time.Minute)
	behind, err := url.Parse(q.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(behind)
	forward.FlushInterval = -1 // events
	api := httptest.NewUnstartedServer(forward)
	if err := api.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	if api.Listener, err = net.Listen("tcp", netns.Of(h.lab.State).Outside.String()+":0"); err != nil { // what VMs reach of this machine
		t.Fatal(err)
	}
	api.Start()
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
	})
	const search = "sudo grep -rslE 'sk-env-the-[k]ey' /home /root /tmp /var/tmp /opt; sudo cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -caE 'sk-env-the-[k]ey'; ls -A /dev/shm"
	token := q.Add("sesn_1", false, "uname -r; uname -n", search)
	d := h.dispatch(t, "claude", "--environment", queuetest.Environment, "--key-file", key(t, queuetest.Key), "--api", api.URL, "--sessions", "1", "--memory", "1G")
	for deadline := time.Now().Add(20 * time.Minute); q.Item("sesn_1").State != "stopped"; <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the session is not served: %+v", q.Item("sesn_1"))
		}
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("the dispatcher: %v", err)
	}
	it := q.Item("sesn_1")
	ours, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if len(it.Results) != 2 || !strings.Contains(it.Results[0], "linus-job-") || strings.Contains(it.Results[0], strings.TrimSpace(string(ours))) {
		t.Fatalf("in the VM: %q", it.Results)
	}
	if it.Results[1] != "0" || it.Claims != 1 || !slices.Equal(it.Keys, []string{token}) {
		t.Errorf("the VM has %q; %+v", it.Results[1], it)
	}
	id := jobID.FindString(h.cli(t, "job", "list", "--label", "dispatch/session=sesn_1"))
	if code, out := h.exits(t, "job", "wait", id); code != 0 {
		t.Errorf("the session's job: %d, %s", code, out)
	}
	if refused := q.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	h.waitGone(t)
}

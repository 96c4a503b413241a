package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/forgetest"
	"linus/internal/githubtest"
	"linus/internal/lab"
	"linus/internal/loops"
)

// Three queues are served beside the engine, which is killed with its dispatchers while VMs are made,
// while jobs run and when they have ended; and the three services are away until each dispatcher says
// so. No job is lost, none is run twice, and neither a VM nor a runner is left.
func TestDispatch_ThreeQueuesUnderFaults(t *testing.T) {
	loops.AtNightOnly(t, "TestSoak_ThreeQueues has the same for hours, with stand-ins for queues and engine; TestDispatch_ServesJobsOfGitHubActions and TestDispatch_ServesJobsOfForges have a dispatcher killed while a job runs")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), githubRunner)
	place(t, h.templateDisk(t), map[string]string{"home/debian/.local/bin/forgejo-runner": standInForgeRunner, "home/debian/.local/bin/act_runner": standInForgeRunner})
	var away atomic.Bool
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not now", http.StatusServiceUnavailable) }
	g := githubtest.New(t)
	g.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if away.Load() {
			_, _ = io.Copy(io.Discard, r.Body)
			refuse(w, r)
		}
		return away.Load()
	}
	forges := map[string]*forgetest.Server{"forgejo": forgetest.New(t, false), "gitea": forgetest.New(t, true)}
	const repository = githubtest.Owner + "/web"
	lines := fmt.Sprintf("github --api %s --token-file %s --repository %s --name github --sessions 2 --idle-timeout 5s\n", g.URL, key(t, githubtest.Token), repository)
	for kind, s := range forges {
		lines += fmt.Sprintf("%s --url %s --token-file %s --repository acme/app --name %[1]s --sessions 2 --idle-timeout 5s\n", kind, s.URL, key(t, forgetest.Token))
	}
	file := filepath.Join(t.TempDir(), "dispatch")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	h.env = append(h.env, "DISPATCH_FILE="+file)
	serve := func() *dispatcher {
		d := h.start(t, "serve")
		h.until(t, func() bool { return strings.Count(d.String(), "serving jobs of") == 3 }) // or a command would start an engine
		return d
	}
	service := serve()
	restart := func() {
		if err := service.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = service.cmd.Wait()
		service = serve()
	}
	list := func(text string) int { return strings.Count(h.cli(t, "dispatch", "list"), text) }
	within := func(what string, yes func() bool) {
		t.Helper()
		if !within(8*time.Minute, yes) { // work that has failed waits
			t.Fatalf("it does not come: %s\n%s\n%s", what, h.cli(t, "dispatch", "list"), h.cli(t, "job", "list"))
		}
	}
	within("dispatchers", func() bool { return list("serving") == 3 })
	var ofGitHub []int64
	ofForges := map[string][]int64{}
	jobs := func() int { return strings.Count(h.cli(t, "job", "list"), "\n") }
	for round := range 6 {
		before := jobs()
		id := g.Queue(repository, "self-hosted")[0]
		g.Stay(id)
		ofGitHub = append(ofGitHub, id)
		for kind, s := range forges {
			ofForges[kind] = append(ofForges[kind], s.AddLong("test", "linus"))
		}
		switch round % 3 {
		case 0: // while the VMs are made
			within("a session's job", func() bool { return jobs() > before })
			restart()
		case 1: // while jobs run
			within("a job that runs", func() bool { return g.Job(id).Status == "in_progress" })
			restart()
		case 2: // and neither services are there
			within("a session's job", func() bool { return jobs() > before })
			away.Store(true)
			for _, s := range forges {
				s.Break(refuse)
			}
			within("what the dispatchers say of that", func() bool { return list("failing") == 3 })
			restart()
			within("dispatchers that cannot begin", func() bool { return list("failing") == 3 })
			away.Store(false)
			for _, s := range forges {
				s.Break(nil)
			}
		}
		g.Let(id)
		for kind, s := range forges {
			s.Finish(ofForges[kind][round])
		}
		if round == 4 { // the jobs have ended, perhaps, and what is left of them is not taken back
			within("the end of a job", func() bool { return g.Job(id).Status == "completed" })
			restart()
		}
	}
	for _, id := range ofGitHub {
		within("GitHub's jobs", func() bool { return g.Job(id).Status == "completed" })
		if j := g.Job(id); j.Attempts != 1 || !strings.HasSuffix(j.Said, " found: .") {
			t.Errorf("%+v", j)
		}
	}
	for kind, s := range forges {
		for _, id := range ofForges[kind] {
			within("jobs of "+kind, func() bool { return s.Job(id).Status == "success" })
			if j := s.Job(id); j.Taken != 1 {
				t.Errorf("%s: %+v", kind, j)
			}
		}
		within("the end of runners of "+kind, func() bool { return len(s.Runners()) == 0 })
	}
	within("the end of GitHub's runners", func() bool { return len(g.Runners()) == 0 })
	h.waitGone(t)
	within("dispatchers that go on", func() bool { return list("serving") == 3 })
}

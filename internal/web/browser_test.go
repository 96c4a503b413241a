package web_test

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/job"
	"linus/internal/vm"
	"linus/internal/web"
)

var shots = flag.String("shots", "", "directory that gets pictures of the pages")

// on selects the first element.
func on(selector string) chromedp.CSS { return chromedp.CSS(selector) }

// serve listens on addr and returns the server's address and its end.
func serve(t *testing.T, addr string, e job.Engine) (string, func()) {
	t.Helper()
	return listen(t, addr, web.Options{Engine: e, MCP: echo, Token: token, Log: log})
}

// listen is serve with options.
func listen(t *testing.T, addr string, o web.Options) (string, func()) {
	t.Helper()
	var s *web.Server
	var err error
	for range 50 { // the address may be in use for a moment longer
		if s, err = web.Listen(t.Context(), addr, o); err == nil {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	return s.Addr(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		<-served
	}
}

func TestBrowser_FollowsAJobToItsEnd(t *testing.T) {
	ctx := browsertest.Start(t)
	e := &engine{outputs: map[string]string{}, echoes: true}
	addr, end := serve(t, "127.0.0.1:0", e)
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)))
	browsertest.Shows(t, ctx, "h1", "Jobs")
	browsertest.Shows(t, ctx, "#connection", "Live")

	// A job that is submitted elsewhere appears, and what it does is seen live.
	e.change(func() {
		e.jobs = []job.Job{{
			ID: id, Kind: job.KindTask, Status: job.Pending, Client: "cli", CreatedAt: time.Now(),
			Manifest: job.Manifest{Task: "make <all>", AgentType: job.AgentScript, Stdin: job.StdinOpen},
		}}
	})
	browsertest.Shows(t, ctx, "#jobs", "make <all>")
	browsertest.Do(t, ctx, chromedp.Click(on("#job-"+id)))
	browsertest.Shows(t, ctx, "h1", "make <all>")
	e.happens(id, job.Event{Kind: job.EventPhaseStarted, Phase: "run"}, func(j *job.Job) {
		j.Status, j.Phase, j.StartedAt = job.Running, "run", time.Now()
		j.VM = &vm.VM{ID: 105, Name: "linus-job-1", Node: "pve", IP: "10.0.0.5", State: vm.Created}
	})
	browsertest.Shows(t, ctx, "[sse-swap=facts]", "linus-job-1 (105) on pve")
	e.change(func() { e.outputs[job.Stdout] = "10%\r20%" })
	browsertest.Shows(t, ctx, "#stdout", "20%")
	e.change(func() { e.outputs[job.Stdout] += "\r100%\nname? "; e.outputs[job.Stderr] = "\x1b[31moh\x1b[0m\n" })
	browsertest.Shows(t, ctx, "#stdout", "100%\nname? ")
	browsertest.Shows(t, ctx, "#stderr .f1", "oh")

	// What is typed reaches the task, and the field is empty again.
	browsertest.Do(t, ctx, chromedp.SendKeys(on("#data"), "Linus\n"))
	browsertest.Shows(t, ctx, "#stdout", "name? Linus")
	typed, text := browsertest.Read(t, ctx, chromedp.Value(on("#data"))), browsertest.Read(t, ctx, chromedp.Text(on("#stdout pre")))
	if typed != "" || strings.Contains(text, "20%") || strings.Count(text, "100%") != 1 {
		t.Errorf("field %q, output %q", typed, text)
	}

	// The server restarts: the page says so, connects again, shows nothing twice.
	end()
	browsertest.Shows(t, ctx, "#connection", "Connection lost")
	e.change(func() { e.outputs[job.Stdout] += "while you were away\n" })
	_, end = serve(t, addr, e)
	defer end()
	browsertest.Shows(t, ctx, "#connection", "Live")
	browsertest.Shows(t, ctx, "#stdout", "while you were away")
	e.change(func() { e.outputs[job.Stdout] += "and after\n" })
	browsertest.Shows(t, ctx, "#stdout", "and after")
	text = browsertest.Read(t, ctx, chromedp.Text(on("#stdout pre")))
	if want := "100%\nname? Linus\nwhile you were away\nand after\n"; strings.TrimSpace(text) != strings.TrimSpace(want) {
		t.Errorf("output %q, want %q", text, want)
	}

	// Cancelled by two clicks.
	browsertest.Do(t, ctx, chromedp.Click(on("#cancel")), chromedp.WaitVisible(on("#cancel-now")), chromedp.Click(on("#cancel-now")))
	browsertest.Shows(t, ctx, ".lead .status", "failed")
	browsertest.Shows(t, ctx, ".error", "Cancelled by user")
	if asked := e.asked(); len(asked) != 2 || asked[0] != "input "+id+" Linus\n" || asked[1] != "cancel "+id {
		t.Errorf("asked %q", asked)
	}
}

// Once a job fails whose page is open, why comes first, as on a page that is opened then.
func TestBrowser_AFailureShowsStderrFirst(t *testing.T) {
	ctx := browsertest.Start(t)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/jobs/"+id))
	browsertest.Shows(t, ctx, ".output:has(#stdout) ~ .output", "cannot find <package>")
	browsertest.Shows(t, ctx, "#connection", "Live")
	e.happens(id, job.Event{Kind: job.EventPhaseEnded, Phase: "run"}, func(j *job.Job) {
		j.Status, j.Outcome = job.Failed, &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus}
	})
	browsertest.Shows(t, ctx, ".output:has(#stderr) ~ .output", "Building 214 packages")
	e.change(func() { e.outputs[job.Stdout] += "the last line\n" })
	browsertest.Shows(t, ctx, "#stdout", "the last line") // it is followed where it is now
}

func TestBrowser_PausesWhileHidden(t *testing.T) {
	ctx := browsertest.Start(t)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	run := func(script string) { browsertest.Read(t, ctx, chromedp.Evaluate[bool]("{"+script+"}; true")) }
	hide := func(hidden bool) {
		run(fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/jobs/"+id))
	browsertest.Shows(t, ctx, "#connection", "Live")
	run(`const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms === 30000 ? 0 : ms)`)
	run(`const close = EventSource.prototype.close; let ended = 0; EventSource.prototype.close = function () {
		close.call(this); document.title = ++ended + " of " + document.querySelectorAll("[sse-connect]").length + " streams ended" }`)
	hide(true)
	browsertest.Shows(t, ctx, "title", "1 of 1 streams ended")
	e.change(func() { e.outputs[job.Stdout] += "unseen\n" })
	if text := browsertest.Read(t, ctx, chromedp.Text(on("#stdout"))); strings.Contains(text, "unseen") {
		t.Error("a hidden page is still followed")
	}
	hide(false)
	browsertest.Shows(t, ctx, "#stdout", "unseen")
	e.change(func() { e.outputs[job.Stdout] += "seen again\n" })
	browsertest.Shows(t, ctx, "#stdout", "seen again")
}

func TestBrowser_MakesAJobOfAForm(t *testing.T) {
	ctx := browsertest.Start(t)
	e := sample()
	e.plan = []string{"qm clone 9000 100"}
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Click(on("#new-job")))
	browsertest.Shows(t, ctx, "h1", "New job")
	// What does not apply is hidden, and comes again when it does.
	set := func(name, value string) {
		browsertest.Read(t, ctx, chromedp.Evaluate[bool](fmt.Sprintf(`{const f = document.querySelector("form.making").elements[%q]; f.value = %q; f.dispatchEvent(new Event("change", {bubbles: true})); true}`, name, value)))
	}
	seen := func() string {
		return browsertest.Read(t, ctx, chromedp.Evaluate[string](`[...document.querySelectorAll("form.making [id^=f-]:enabled")].filter((f) => !f.closest("[hidden]")).map((f) => f.name).join(" ")`))
	}
	all := "agentType task agent.command timeout artifacts repository.url vm vmTemplate os resources.cpu resources.memory resources.disk network.bridge network.vlan network.ip network.egress network.allow network.deny secrets credentials cwd sudo tty stdin statusMode lifecycle keep idleSuspend start volumes retry matrix shards failFast labels notify.url"
	browsertest.Do(t, ctx, chromedp.WaitNotVisible(on("#f-agent-claudeModel"))) // the script has run
	if got := seen(); got != all {
		t.Errorf("at first: %s", got)
	}
	for _, step := range []struct{ name, value, want string }{
		{"agentType", "claude", "agentType task agent.command agent.model agent.claudeModel timeout artifacts repository.url vm vmTemplate os resources.cpu resources.memory resources.disk network.bridge network.vlan network.ip network.egress network.allow network.deny secrets credentials cwd sudo statusMode lifecycle keep idleSuspend start volumes retry matrix shards failFast labels notify.url"},
		{"vm", "dev", "agentType task agent.command agent.model agent.claudeModel timeout artifacts repository.url vm secrets credentials cwd sudo statusMode failFast labels notify.url"},
		{"vm", "", ""}, {"agentType", "script", all},
	} {
		if set(step.name, step.value); step.want != "" && seen() != step.want {
			t.Errorf("%s is %q: %s", step.name, step.value, seen())
		}
	}
	browsertest.Do(t, ctx, chromedp.Click(on("[data-fill]")))
	if cpu := browsertest.Read(t, ctx, chromedp.Value(on("#f-resources-cpu"))); cpu != "2" {
		t.Errorf("a pool's VM has %q CPU", cpu)
	}
	for _, name := range []string{"vmTemplate", "resources.cpu", "resources.memory", "resources.disk"} {
		set(name, "")
	}
	browsertest.Do(t, ctx, chromedp.SendKeys(on("#f-task"), "make all"), chromedp.SendKeys(on("#f-resources-cpu"), "many"))
	// A file is dropped, and a variable has room for the next.
	dropped := browsertest.Read(t, ctx, chromedp.Evaluate[string](`{
		const files = new DataTransfer();
		files.items.add(new File(["one"], "one.txt"));
		const zone = document.querySelector(".drop");
		for (const name of ["dragover", "drop"]) zone.dispatchEvent(new DragEvent(name, {dataTransfer: files, bubbles: true, cancelable: true}));
		document.querySelector("#files").files[0].name}`))
	if dropped != "one.txt" {
		t.Errorf("dropped %q", dropped)
	}
	browsertest.Read(t, ctx, chromedp.Evaluate[bool](`for (const d of document.querySelectorAll("details")) d.open = true; true`))
	rows := browsertest.Read(t, ctx, chromedp.Evaluate[int64](`document.querySelectorAll("[name=env_name]").length`))
	for i, name := range []string{"A", "B", "C"} {
		browsertest.Do(t, ctx, chromedp.SendKeys(on(fmt.Sprintf(".pair:nth-of-type(%d) [name=env_name]", i+1)), name))
	}
	if now := browsertest.Read(t, ctx, chromedp.Evaluate[int64](`document.querySelectorAll("[name=env_name]").length`)); now != rows+1 {
		t.Errorf("%d rows, then %d", rows, now)
	}
	browsertest.Do(t, ctx, chromedp.Click(on("#send")))
	browsertest.Shows(t, ctx, "#f-resources-cpu-error", "is not a whole number")
	browsertest.Do(t, ctx, chromedp.WaitReady(on("#f-resources-cpu:focus")))
	browsertest.Do(t, ctx, chromedp.SetValue(on("#f-resources-cpu"), "2"), chromedp.Click(on("#dry-run")))
	browsertest.Shows(t, ctx, "#plan", "qm clone 9000 100")
	browsertest.Do(t, ctx, chromedp.WaitReady(on("#send"))) // the page comes in pieces, and the plan is before it
	// Two clicks are one job, with everything.
	browsertest.Read(t, ctx, chromedp.Evaluate[bool](`{const send = document.querySelector("#send"); send.click(); send.click(); true}`))
	browsertest.Shows(t, ctx, "h1", "make all")
	if len(e.submitted) != 1 {
		t.Fatalf("%d jobs", len(e.submitted))
	}
	m := e.submitted[0].Manifest
	if m.Task != "make all" || m.Resources.CPU != 2 || len(m.Env) != 3 || len(m.Files) != 1 || m.Files[0].Path != "/tmp/one.txt" || m.Files[0].Content != "b25l" {
		t.Errorf("%+v", m)
	}
}

// Every page in both widths and both schemes: nothing is wider than the window,
// and the browser has nothing to complain of.
func TestBrowser_EveryPageFits(t *testing.T) {
	ctx := browsertest.Start(t)
	complaints := chromedp.Console(ctx)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	schemes := []string{"light"}
	if *shots != "" {
		schemes = []string{"light", "dark"}
	}
	pages := []struct{ name, path string }{
		{"jobs", "/jobs"},
		{"job", "/jobs/" + id},
		{"done", "/jobs/" + doneID},
		{"lines", "/jobs/" + id + "/lines?stream=stdout"},
		{"files", "/jobs/" + id + "/files"},
		{"files-empty", "/jobs/" + id + "/files?path=empty"},
		{"files-text", "/jobs/" + id + "/files?path=README.md"},
		{"files-binary", "/jobs/" + id + "/files?path=data.bin"},
		{"new-job", "/jobs/new"},
		{"again", "/jobs/new?from=" + id},
		{"vms", "/vms"},
		{"vm", "/vms/105"},
		{"new-vm", "/vms/new"},
		{"pools", "/pools"},
		{"pool", "/pools/ready"},
		{"new-pool", "/pools/new"},
		{"nodes", "/nodes"},
		{"tokens", "/tokens"},
		{"new-token", "/tokens/new"},
		{"destroy", "/vms/105/destroy"},
		{"templates", "/templates"},
		{"checkpoints", "/checkpoints"},
		{"volumes", "/volumes"},
		{"credentials", "/credentials"},
		{"host", "/host"},
		{"help", "/help"},
		{"document", "/help/settings"},
		{"revert", "/vms/105/revert?snapshot=clean"},
		{"missing", "/jobs/none"},
	}
	fits := func(name, path string) {
		t.Helper()
		for _, scheme := range schemes {
			browsertest.Do(t, ctx, colours(scheme), chromedp.Navigate("http://"+addr+path))
			<-time.After(300 * time.Millisecond)
			for _, window := range []int64{1400, 390} {
				browsertest.Do(t, ctx, chromedp.EmulateViewport(window, 900))
				for browsertest.Read(t, ctx, chromedp.Evaluate[int64](`innerWidth`)) != window {
					<-time.After(5 * time.Millisecond)
				}
				if width := browsertest.Read(t, ctx, chromedp.Evaluate[int64](`document.documentElement.scrollWidth`)); width > window {
					t.Errorf("%s is %d wide in a window of %d", path, width, window)
				}
				if *shots != "" {
					shoot(t, ctx, fmt.Sprintf("%s-%d-%s", name, window, scheme))
				}
			}
		}
	}
	fits("login", "/login")
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)))
	for _, page := range pages {
		fits(page.name, page.path)
	}
	noComplaints(t, ctx, complaints, "status of 401", "status of 404") // asked for
}

// Of a list of jobs, enough is seen without scrolling: fifteen on a laptop, four on a phone. What the
// filters count follows the jobs.
func TestBrowser_ManyJobsAreSeenAtOnce(t *testing.T) {
	ctx := browsertest.Start(t)
	e := sample()
	for i := range 20 {
		j := e.jobs[i%2]
		j.ID, j.Principal = fmt.Sprintf("0197a1b2-0000-7000-8000-0000000002%02d", i), "ann"
		e.jobs = append(e.jobs, j)
	}
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)))
	for _, window := range []struct{ width, height, rows int64 }{{1280, 800, 15}, {390, 844, 4}} {
		browsertest.Do(t, ctx, chromedp.EmulateViewport(window.width, window.height), chromedp.Navigate("http://"+addr+"/jobs"))
		browsertest.Shows(t, ctx, "#connection", "Live")
		seen := browsertest.Read(t, ctx, chromedp.Evaluate[int64](`[...document.querySelectorAll("#jobs tbody tr")].filter((r) => r.getBoundingClientRect().bottom <= innerHeight).length`))
		if seen < window.rows {
			t.Errorf("%d rows in a window of %d by %d", seen, window.width, window.height)
		}
		if *shots != "" {
			if err := os.WriteFile(filepath.Join(*shots, fmt.Sprintf("fold-%d.png", window.width)), browsertest.Read(t, ctx, chromedp.CaptureScreenshot()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	browsertest.Shows(t, ctx, ".filters", "running 11")
	e.change(func() { e.jobs = e.jobs[1:] })
	browsertest.Shows(t, ctx, ".filters", "running 10")
}

// The host is tested at a press, and what it comes to is seen as it goes on; another press ends it.
func TestBrowser_TheHostIsTested(t *testing.T) {
	ctx := browsertest.Start(t)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	browsertest.Do(t, ctx, chromedp.EmulateViewport(390, 844), chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/host"),
		chromedp.Click(`input[name="quick"]`), chromedp.Click("#test-host"))
	browsertest.Shows(t, ctx, "#tests h3", "pve: running, quick")
	browsertest.Shows(t, ctx, "#tests", "make room")
	e.change(func() { e.tests[0].Steps[2].Text = "the host is waited for" })
	browsertest.Shows(t, ctx, "#tests", "the host is waited for")
	if *shots != "" {
		shoot(t, ctx, "host-test")
	}
	browsertest.Do(t, ctx, chromedp.Click("#cancel-t1"))
	browsertest.Shows(t, ctx, ".checking", "Checking")
	browsertest.Shows(t, ctx, "#tests h3", "pve: running, quick")
	asked := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Contains(e.calls, "cancel test t1")
	}
	for !asked() {
		select {
		case <-ctx.Done():
			t.Fatal("nobody asked for the cancel")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// noComplaints checks that the browser has had nothing to complain of, but for what has
// one of some texts.
func noComplaints(t *testing.T, ctx context.Context, complaints iter.Seq2[chromedp.ConsoleMessage, error], expected ...string) { //nolint:revive // t first
	t.Helper()
	browsertest.Read(t, ctx, chromedp.Evaluate[bool](`console.log("the end"); true`))
	for c, err := range complaints {
		if err != nil {
			t.Fatal(err)
		}
		if c.Text == "the end" {
			break
		}
		if !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(c.Text, text) }) {
			t.Errorf("the browser says: %s: %s %s", c.Type, c.Text, c.URL)
		}
	}
}

// shoot takes a picture of the page.
func shoot(t *testing.T, ctx context.Context, name string) { //nolint:revive // t first
	t.Helper()
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), browsertest.Read(t, ctx, chromedp.FullScreenshot(100)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// colours makes the browser prefer a colour scheme.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	}
}

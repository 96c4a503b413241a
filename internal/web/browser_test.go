package web_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"linus/internal/job"
	"linus/internal/web"
)

var shots = flag.String("shots", "", "directory that gets pictures of the pages")

// browser starts Chromium, or skips the test and says why.
func browser(t *testing.T) context.Context {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium here: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox) // root has no sandbox, and the pages are ours
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, _ := chromedp.NewContext(allocator)
	do(t, ctx) // starts it
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	ctx, end = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(end)
	return ctx
}

// on selects the first element.
func on(selector string) chromedp.CSS { return chromedp.CSS(selector) }

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) { //nolint:revive // t first, as everywhere in tests
	t.Helper()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// read returns what an action reads.
func read[T any](t *testing.T, ctx context.Context, action chromedp.Action[T]) T { //nolint:revive // t first
	t.Helper()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// shows waits until an element's text has the wanted part.
func shows(t *testing.T, ctx context.Context, selector, want string) { //nolint:revive // t first
	t.Helper()
	timed, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		text, err := chromedp.Run(timed, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector)))
		if err == nil && strings.Contains(text, want) {
			return
		}
		if timed.Err() != nil {
			t.Fatalf("%s shows %q, never %q", selector, text, want)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// serve listens on addr and returns the server's address and its end.
func serve(t *testing.T, addr string, e job.Engine) (string, func()) {
	t.Helper()
	var s *web.Server
	var err error
	for range 50 { // the address may be in use for a moment longer
		if s, err = web.Listen(t.Context(), addr, web.Options{Engine: e, MCP: echo, Token: token, Log: log}); err == nil {
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
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		<-served
	}
}

func TestBrowser_FollowsAJobToItsEnd(t *testing.T) {
	ctx := browser(t)
	e := &engine{outputs: map[string]string{}}
	addr, end := serve(t, "127.0.0.1:0", e)
	do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)))
	shows(t, ctx, "h1", "Jobs")
	shows(t, ctx, "#connection", "Live")

	// A job that is submitted elsewhere appears, and what it does is seen live.
	e.change(func() {
		e.jobs = []job.Job{{
			ID: id, Kind: job.KindTask, Status: job.Pending, Client: "cli", CreatedAt: time.Now(),
			Manifest: job.Manifest{Task: "make <all>", AgentType: job.AgentScript, Stdin: job.StdinOpen},
		}}
	})
	shows(t, ctx, "#jobs", "make <all>")
	do(t, ctx, chromedp.Click(on("#job-"+id)))
	shows(t, ctx, "h1", "make <all>")
	e.happens(id, job.Event{Kind: job.EventPhaseStarted, Phase: "run"}, func(j *job.Job) {
		j.Status, j.Phase, j.StartedAt = job.Running, "run", time.Now()
		j.VM = &job.VM{ID: 105, Name: "linus-job-1", Node: "pve", IP: "10.0.0.5", State: job.VMCreated}
	})
	shows(t, ctx, "[sse-swap=summary]", "linus-job-1 (105) on pve")
	e.change(func() { e.outputs[job.Stdout] = "10%\r20%" })
	shows(t, ctx, "#stdout", "20%")
	e.change(func() { e.outputs[job.Stdout] += "\r100%\nname? "; e.outputs[job.Stderr] = "\x1b[31moh\x1b[0m\n" })
	shows(t, ctx, "#stdout", "100%\nname? ")
	shows(t, ctx, "#stderr .f1", "oh")

	// What is typed reaches the task, and the field is empty again.
	do(t, ctx, chromedp.SendKeys(on("#data"), "Linus\n"))
	shows(t, ctx, "#stdout", "name? Linus")
	typed, text := read(t, ctx, chromedp.Value(on("#data"))), read(t, ctx, chromedp.Text(on("#stdout pre")))
	if typed != "" || strings.Contains(text, "20%") || strings.Count(text, "100%") != 1 {
		t.Errorf("field %q, output %q", typed, text)
	}

	// The server restarts: the page says so, connects again, shows nothing twice.
	end()
	shows(t, ctx, "#connection", "Connection lost")
	e.change(func() { e.outputs[job.Stdout] += "while you were away\n" })
	_, end = serve(t, addr, e)
	defer end()
	shows(t, ctx, "#connection", "Live")
	shows(t, ctx, "#stdout", "while you were away")
	e.change(func() { e.outputs[job.Stdout] += "and after\n" })
	shows(t, ctx, "#stdout", "and after")
	text = read(t, ctx, chromedp.Text(on("#stdout pre")))
	if want := "100%\nname? Linus\nwhile you were away\nand after\n"; strings.TrimSpace(text) != strings.TrimSpace(want) {
		t.Errorf("output %q, want %q", text, want)
	}

	// Cancelled by two clicks.
	do(t, ctx, chromedp.Click(on("#cancel")), chromedp.WaitVisible(on("#cancel-now")), chromedp.Click(on("#cancel-now")))
	shows(t, ctx, ".lead .status", "failed")
	shows(t, ctx, ".error", "Cancelled by user")
	if asked := e.asked(); len(asked) != 2 || asked[0] != "input "+id+" Linus\n" || asked[1] != "cancel "+id {
		t.Errorf("asked %q", asked)
	}
}

func TestBrowser_PausesWhileHidden(t *testing.T) {
	ctx := browser(t)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	run := func(script string) { read(t, ctx, chromedp.Evaluate[bool]("{"+script+"}; true")) }
	hide := func(hidden bool) {
		run(fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %v, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/jobs/"+id))
	shows(t, ctx, "#connection", "Live")
	run(`const real = setTimeout; window.setTimeout = (f, ms) => real(f, ms === 30000 ? 0 : ms)`)
	run(`const close = EventSource.prototype.close; let ended = 0; EventSource.prototype.close = function () {
		close.call(this); document.title = ++ended + " of " + document.querySelectorAll("[sse-connect]").length + " streams ended" }`)
	hide(true)
	shows(t, ctx, "title", "1 of 1 streams ended")
	e.change(func() { e.outputs[job.Stdout] += "unseen\n" })
	if text := read(t, ctx, chromedp.Text(on("#stdout"))); strings.Contains(text, "unseen") {
		t.Error("a hidden page is still followed")
	}
	hide(false)
	shows(t, ctx, "#stdout", "unseen")
	e.change(func() { e.outputs[job.Stdout] += "seen again\n" })
	shows(t, ctx, "#stdout", "seen again")
}

// Every page in both widths and both schemes: nothing is wider than the window,
// and the browser has nothing to complain of.
func TestBrowser_EveryPageFits(t *testing.T) {
	ctx := browser(t)
	complaints := chromedp.Console(ctx)
	e := sample()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	for _, p := range []struct{ name, path string }{
		{"login", "/login"},
		{"jobs", "/jobs"},
		{"job", "/jobs/" + id},
		{"done", "/jobs/" + doneID},
		{"vms", "/vms"},
		{"pools", "/pools"},
		{"nodes", "/nodes"},
		{"destroy", "/vms/105/destroy"},
		{"host", "/host"},
		{"help", "/help"},
		{"document", "/help/settings"},
		{"missing", "/jobs/none"},
	} {
		for _, window := range []int64{1400, 390} {
			for _, scheme := range []string{"light", "dark"} {
				do(t, ctx, chromedp.EmulateViewport(window, 900), colours(scheme), chromedp.Navigate("http://"+addr+p.path))
				<-time.After(300 * time.Millisecond)
				if width := read(t, ctx, chromedp.Evaluate[int64](`document.documentElement.scrollWidth`)); width > window {
					t.Errorf("%s is %d wide in a window of %d", p.path, width, window)
				}
				if *shots != "" {
					name := filepath.Join(*shots, fmt.Sprintf("%s-%d-%s.png", p.name, window, scheme))
					if err := os.WriteFile(name, read(t, ctx, chromedp.FullScreenshot(100)), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if p.name == "login" {
			do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)))
		}
	}
	read(t, ctx, chromedp.Evaluate[bool](`console.log("the end"); true`))
	for c, err := range complaints {
		if err != nil {
			t.Fatal(err)
		}
		if c.Text == "the end" {
			break
		}
		if !strings.Contains(c.Text, "status of 401") && !strings.Contains(c.Text, "status of 404") { // asked for
			t.Errorf("the browser says: %s: %s %s", c.Type, c.Text, c.URL)
		}
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

package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/web"
)

// withTerminal is an engine whose first job runs on a terminal, and the options of a
// server for it.
func withTerminal() (*engine, web.Options) {
	e := sample()
	e.jobs[0].Manifest.TTY = true
	e.complete = false
	return e, web.Options{Engine: e, MCP: echo, API: control.API(e, control.APIOptions{}), Token: token, Log: log}
}

func TestTerminalPage_AllowsItsOwnStylesOnly(t *testing.T) {
	e, options := withTerminal()
	v := visitWith(t, options)
	v.get(web.LoginPath(token))
	seen := map[string]bool{}
	for range 2 {
		resp, err := v.client.Get(v.server.URL + "/jobs/" + id + "/terminal")
		if err != nil {
			t.Fatal(err)
		}
		text := body(t, resp)
		resp.Body.Close()
		nonce := regexp.MustCompile(`data-nonce="([A-Z2-7]{20,})"`).FindStringSubmatch(text)
		policy := resp.Header.Get("Content-Security-Policy")
		if nonce == nil || !strings.Contains(policy, "style-src 'self' 'nonce-"+nonce[1]+"'; ") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "script-src 'self'; ") || seen[nonce[1]] {
			t.Fatalf("policy %q, page %s", policy, text)
		}
		seen[nonce[1]] = true
	}
	e.jobs[0].Manifest.TTY = false
	if resp, _ := v.do(http.MethodGet, "/jobs/"+id+"/terminal", "", nil); resp.Path != "/jobs/"+id {
		t.Errorf("of a job without a terminal: %s", resp.Path)
	}
}

func TestVM_OpensATerminalOnce(t *testing.T) {
	e, options := withTerminal()
	v := visitWith(t, options)
	v.get(web.LoginPath(token))
	_, text := v.get("/vms/105")
	key := regexp.MustCompile(`name="key" value="([^"]+)"`).FindStringSubmatch(text)
	if key == nil {
		t.Fatal(text)
	}
	form := "job=" + doneID + "&key=" + key[1] + "&form_token=" + url.QueryEscape(v.formToken())
	first, _ := v.do(http.MethodPost, "/vms/105/terminal", form, nil)
	second, _ := v.do(http.MethodPost, "/vms/105/terminal", form, nil)
	if first.Path != second.Path || !strings.HasSuffix(first.Path, "/terminal") || len(e.submitted) != 1 {
		t.Fatalf("%+v %+v, %d jobs", first, second, len(e.submitted))
	}
	if m := e.submitted[0].Manifest; m.VM != "dev" || !m.TTY || m.Stdin != job.StdinOpen || m.Validate() != nil {
		t.Errorf("%+v: %v", m, m.Validate())
	}
	if resp, text := v.do(http.MethodPost, "/vms/105/terminal", strings.Replace(form, doneID, id, 1), nil); resp.StatusCode != 422 || !strings.Contains(text, "is now another VM") {
		t.Errorf("of another VM by now: %d", resp.StatusCode)
	}
}

func TestBrowser_Terminal(t *testing.T) {
	ctx := browsertest.Start(t)
	complaints := chromedp.Console(ctx)
	e, options := withTerminal()
	// What a terminal could be made to do: another title, a link, the clipboard, and
	// answers to questions, which are for whoever was there when they were asked.
	hostile := "\x1b]0;another title\x07\x1b]8;;https://evil.example/\x07click\x1b]8;;\x07 \x1b]52;c;ZXZpbA==\x07\x1b[c\x1b[6n<script>document.title='evil'</script>"
	e.outputs[job.Stdout] = "\x1b[31mred\x1b[0m " + hostile + "\r\n$ "
	e.jobs[0].Stdout.Total = int64(len(e.outputs[job.Stdout]))
	addr, end := listen(t, "127.0.0.1:0", options)
	browsertest.Do(t, ctx, chromedp.EmulateViewport(1200, 800), chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/jobs/"+id))
	browsertest.Shows(t, ctx, "#connection", "Live")
	browsertest.Do(t, ctx, chromedp.Click(on("#terminal")))
	browsertest.Shows(t, ctx, "#connection", "Live")
	browsertest.Shows(t, ctx, ".xterm-rows", "<script>document.title='evil'</script>")
	if title := browsertest.Read(t, ctx, chromedp.Title()); !strings.Contains(title, "terminal · job") {
		t.Errorf("title %q", title)
	}
	if links := browsertest.Read(t, ctx, chromedp.Evaluate[bool](`document.querySelector(".xterm-rows a, .xterm-underline-5") !== null`)); links {
		t.Error("the task's output has a link")
	}
	// Its colours are the page's: the style elements are allowed.
	if styled := browsertest.Read(t, ctx, chromedp.Evaluate[bool](`[...document.querySelectorAll("style")].filter((s) => s.sheet && s.sheet.cssRules.length > 0).length >= 2`)); !styled {
		t.Error("xterm's styles are not applied")
	}
	asked := func(want string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for !strings.Contains(strings.Join(e.asked(), "\n"), want) {
			if time.Now().After(deadline) {
				t.Fatalf("asked %q, never %q", e.asked(), want)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	asked("resize " + id)
	e.change(func() { e.echoes = false })
	browsertest.Press(t, ctx, "ls é\r\x03")
	asked("\x03")
	var typed strings.Builder
	for _, call := range e.asked() {
		if text, ok := strings.CutPrefix(call, "input "+id+" "); ok {
			typed.WriteString(text)
		}
	}
	if typed.String() != "ls é\r\x03" {
		t.Errorf("the task was sent %q", typed.String())
	}
	// One key lets the keyboard out, and is not the task's.
	before := len(e.asked())
	browsertest.Read(t, ctx, chromedp.Evaluate[bool](`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "L", code: "KeyL", keyCode: 76, ctrlKey: true, shiftKey: true, bubbles: true, cancelable: true }))`))
	if focused := browsertest.Read(t, ctx, chromedp.Evaluate[string](`document.activeElement.id`)); focused != "leave-terminal" {
		t.Errorf("the keyboard is still the terminal's: focus is on %q", focused)
	}
	if calls := e.asked()[before:]; len(calls) > 0 {
		t.Errorf("the task was sent %q", calls)
	}
	browsertest.Do(t, ctx, chromedp.Focus(on(".xterm-helper-textarea")))
	e.change(func() { e.outputs[job.Stdout] += "ls é\r\nfile1 file2\r\n$ " })
	browsertest.Shows(t, ctx, ".xterm-rows", "file1 file2")
	if *shots != "" {
		for _, window := range []int64{1200, 390} {
			for _, scheme := range []string{"light", "dark"} {
				browsertest.Do(t, ctx, chromedp.EmulateViewport(window, 800), colours(scheme))
				<-time.After(400 * time.Millisecond)
				shoot(t, ctx, fmt.Sprintf("terminal-%d-%s", window, scheme))
			}
		}
	}
	browsertest.Do(t, ctx, chromedp.EmulateViewport(390, 800))
	if width := browsertest.Read(t, ctx, chromedp.Evaluate[int64](`document.documentElement.scrollWidth`)); width > 390 {
		t.Errorf("%d wide in a window of 390", width)
	}
	// A question that is asked now is answered.
	e.change(func() { e.outputs[job.Stdout] += "\x1b[c" })
	asked("input " + id + " \x1b[?1;2c")

	// The server restarts: it goes on where it was, and nothing is shown twice.
	end()
	browsertest.Shows(t, ctx, "#connection", "Connection lost")
	e.change(func() { e.outputs[job.Stdout] += "while you were away\r\n" })
	_, end = listen(t, addr, options)
	defer end()
	browsertest.Shows(t, ctx, "#connection", "Live")
	browsertest.Shows(t, ctx, ".xterm-rows", "while you were away")
	text := browsertest.Read(t, ctx, chromedp.Text(on(".xterm-rows")))
	if strings.Count(text, "file1 file2") != 1 || strings.Contains(text, "not kept") {
		t.Errorf("shown twice, or left out: %q", text)
	}
	if err := e.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	browsertest.Shows(t, ctx, "#terminal-note", "The job has ended")
	noComplaints(t, ctx, complaints, "WebSocket connection to", "ERR_CONNECTION", "ERR_INCOMPLETE") // the restart
}

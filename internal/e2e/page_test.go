package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
)

// onPage uses the page with a browser, as a person would: the files of the persistent VM
// dev, a terminal there, and the terminal of a job. url is the server's.
func onPage(t *testing.T, h *host, url string) {
	ctx := browsertest.Start(t)
	click := func(selector string) {
		t.Helper()
		browsertest.Do(t, ctx, chromedp.Click(chromedp.CSS(selector)))
	}
	// says waits until the terminal's screen matches a regular expression.
	says := func(pattern string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
			text := browsertest.Read(t, ctx, chromedp.Evaluate[string](`[...document.querySelectorAll(".xterm-rows > div")].map((row) => row.textContent.trimEnd()).join("\n").trimEnd()`))
			matches := fmt.Sprintf(`new RegExp(%q, "m").test(%q)`, pattern, text)
			if browsertest.Read(t, ctx, chromedp.Evaluate[bool](matches)) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the terminal shows %q, never %s", text, pattern)
			}
		}
	}
	browsertest.Do(t, ctx, chromedp.EmulateViewport(1200, 900), chromedp.Navigate(url+"/login?token="+strings.TrimPrefix(clientsToken, "HTTP_TOKEN=")), chromedp.Navigate(url+"/vms/dev"))

	click("#files")
	browsertest.Shows(t, ctx, ".files", "other/")
	browsertest.Read(t, ctx, chromedp.Evaluate[bool](`{
		const files = new DataTransfer();
		files.items.add(new File(["from <the> page\n"], "a b.txt"));
		document.querySelector(".drop").dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
		true}`))
	click("#upload")
	browsertest.Shows(t, ctx, ".files", "a b.txt")
	if got := h.cli(t, "vm", "cat", "dev:a b.txt"); got != "from <the> page\n" {
		t.Errorf("uploaded: %q", got)
	}
	click(`td.main a[href$="path=in"]`)
	click(`td.main a[href$="path=in%2Fdeep"]`)
	browsertest.Shows(t, ctx, ".files", "a b;$(reboot)_ 'c'_")
	click(`td.main a`)
	browsertest.Shows(t, ctx, "#no-text", "not text")
	got := browsertest.Read(t, ctx, chromedp.Evaluate[string](`(() => {
		const request = new XMLHttpRequest();
		request.open("GET", document.querySelector("#download").href, false);
		request.overrideMimeType("text/plain; charset=x-user-defined");
		request.send();
		return [...request.responseText].map((c) => (c.charCodeAt(0) & 0xff).toString(16).padStart(2, "0")).join("");
	})()`))
	if want := fmt.Sprintf("%x", pageFile); got != want {
		t.Errorf("downloaded %s, want %s", got, want)
	}

	browsertest.Do(t, ctx, chromedp.Navigate(url+"/vms/dev"))
	click("#open-terminal")
	browsertest.Shows(t, ctx, "#terminal-status", "running")
	browsertest.Press(t, ctx, "echo $((6*7)) $(tty) é\r")
	says(`^42 /dev/pts/\d+ é$`)
	browsertest.Press(t, ctx, "while [ ! -e ~/sized ]; do stty size; sleep 0.1; done; echo o''ver\r")
	says(`^\d+ \d+$`)
	rows := func() int64 {
		t.Helper()
		return browsertest.Read(t, ctx, chromedp.Evaluate[int64](`document.querySelectorAll(".xterm-rows > div").length`))
	}
	before := rows()
	browsertest.Do(t, ctx, chromedp.EmulateViewport(600, 700))
	for deadline := time.Now().Add(time.Minute); rows() == before; <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the terminal has %d rows still", before)
		}
	}
	says(fmt.Sprintf(`^%d \d+$`, rows()))
	h.cli(t, "vm", "cp", t.TempDir(), "dev:sized")
	says(`^over$`)
	browsertest.Press(t, ctx, "exit\r")
	browsertest.Shows(t, ctx, "#terminal-note", "The job has ended")

	// A job's terminal: what was written before it was opened, what is typed, and Ctrl+C.
	c := h.connect(t)
	id := c.submit(map[string]any{
		"agentType": "script", "vm": "dev", "tty": true, "stdin": "open", "statusMode": "streaming",
		"task": `trap 'echo interrupted; exit 3' INT; read -r -p 'name? ' name; echo "hello $name"; while :; do sleep 0.1; done`,
	})
	browsertest.Do(t, ctx, chromedp.Navigate(url+"/jobs/"+id))
	browsertest.Shows(t, ctx, "#stdout", "name? ")
	click("#terminal")
	says(`^name\?`)
	browsertest.Press(t, ctx, "Ada\r")
	says(`^hello Ada$`)
	browsertest.Press(t, ctx, "\x03")
	says(`interrupted$`)
	c.endsAs(id, "failed", "exit_status")
	browsertest.Shows(t, ctx, "#terminal-status", "failed")
}

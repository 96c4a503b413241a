package web_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/web"
)

// hostilePage tries what a page in a VM may want of the server that shows it, and says what
// came of it.
const hostilePage = `<!doctype html><title>hostile</title><p id="said">trying</p><script>
const server = "SERVER", other = "OTHER", tries = {
	cookie: () => { document.cookie = "tossed=1; path=/; domain=vms.localhost"; document.cookie = "mine=1"; return document.cookie.includes("linus-") ? "sees the session" : "none of the server's"; },
	storage: () => { localStorage.x = "1"; return "has storage"; },
	api: async () => (await fetch(server + "/api/v1/jobs", {credentials: "include"})).status,
	page: async () => (await fetch(server + "/jobs", {credentials: "include"})).text(),
	form: async () => (await fetch(server + "/vms/105/destroy", {method: "POST", credentials: "include", mode: "no-cors", body: new URLSearchParams({job: "x"})})).type,
	terminal: () => new Promise((done) => { const ws = new WebSocket(server.replace("http", "ws") + "/api/v1/jobs/x/terminal"); ws.onopen = () => done("connected"); ws.onerror = () => done("refused"); }),
	sibling: async () => (await fetch(other, {credentials: "include"})).text(),
	frame: () => new Promise((done) => { const f = document.createElement("iframe"); f.src = server + "/jobs"; f.onload = () => { try { done(f.contentDocument ? "read" : "closed"); } catch { done("closed"); } }; document.body.append(f); }),
	own: async () => (await fetch("data", {credentials: "include"})).text(),
	events: () => new Promise((done) => { const s = new EventSource("events"); s.onmessage = (e) => { s.close(); done(e.data); }; s.onerror = () => done("none"); }),
	socket: () => new Promise((done) => { const ws = new WebSocket(new URL("echo", location.href.replace("http", "ws"))); ws.onopen = () => ws.send("ping"); ws.onmessage = (e) => done(e.data); ws.onerror = () => done("refused"); }),
};
(async () => {
	const said = [];
	for (const [name, one] of Object.entries(tries)) {
		try { said.push(name + ": " + await one()); } catch (e) { said.push(name + ": " + e.name); }
	}
	document.querySelector("#said").textContent = said.join("; ") + "; done";
})();
</script>`

// What a hostile page can do in a real browser: reach its own port, and nothing else.
func TestBrowser_PageOfAPortIsApart(t *testing.T) {
	for _, tt := range []struct{ name, domain, cookie, storage string }{
		{"sandboxed", "", "SecurityError", "SecurityError"}, {"host of its own", "vms.localhost", "none of the server's", "has storage"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := browsertest.Start(t)
			server, other := "", ""
			page := func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.Header().Set("Set-Cookie", "sid=1; Path=/; HttpOnly")
				_, _ = io.WriteString(w, strings.NewReplacer("SERVER", server, "OTHER", other).Replace(hostilePage))
			}
			vm := newGuestPage(t, map[string]http.HandlerFunc{"/": page, "/data": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "its own data") }})
			sibling := newGuestPage(t, nil)
			e := &exposing{engine: sample(), at: map[string]string{webID: vm.Listener.Addr().String(), otherID: sibling.Listener.Addr().String()}}
			addr, end := listen(t, "127.0.0.1:0", web.Options{Engine: e, MCP: echo, API: echo, Token: token, Log: log, URL: func() string { return server }, PortDomain: tt.domain})
			defer end()
			server = "http://" + addr
			at := web.PortURL(server, tt.domain, webID)
			other = web.PortURL(server, tt.domain, otherID)
			browsertest.Do(t, ctx, chromedp.Navigate(server+web.LoginPath(token)))
			browsertest.Shows(t, ctx, "h1", "Jobs")
			browsertest.Do(t, ctx, chromedp.Navigate(other)) // so that there is a grant for it, too
			browsertest.Shows(t, ctx, "body", "hello from the VM")
			browsertest.Do(t, ctx, chromedp.Navigate(at))
			browsertest.Shows(t, ctx, "#said", "done")
			said := browsertest.Read(t, ctx, chromedp.Text(chromedp.CSS("#said")))
			want := fmt.Sprintf("cookie: %s; storage: %s; api: TypeError; page: TypeError; form: opaque; terminal: refused; sibling: TypeError; frame: closed; own: its own data; events: one; socket: ping; done", tt.cookie, tt.storage)
			if said != want {
				t.Errorf("it says %s\nwant %s", said, want)
			}
			if got := e.asked(); len(got) > 0 {
				t.Errorf("the engine was asked: %q", got)
			}
			cookies := map[string]string{"": "", "vms.localhost": "sid=1"}[tt.domain]
			if got := vm.at("/data").Header.Get("Cookie"); got != cookies {
				t.Errorf("the VM got the cookies %q, want %q", got, cookies)
			}
			// What the page has set for the whole domain does not reach another VM.
			browsertest.Do(t, ctx, chromedp.Navigate(other))
			browsertest.Shows(t, ctx, "body", "hello from the VM")
			if got := sibling.at("/").Header.Get("Cookie"); got != "" {
				t.Errorf("another VM got the cookies %q", got)
			}
			browsertest.Do(t, ctx, chromedp.Navigate(server+"/jobs"))
			browsertest.Shows(t, ctx, "h1", "Jobs")
		})
	}
}

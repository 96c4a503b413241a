package web_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/web"
)

// visitor is a browser without JavaScript.
type visitor struct {
	*testing.T
	server *httptest.Server
	client *http.Client
}

func visit(t *testing.T, e job.Engine) *visitor {
	t.Helper()
	return visitWith(t, web.Options{Engine: e, MCP: echo, Token: token, Log: log})
}

func visitWith(t *testing.T, o web.Options) *visitor {
	t.Helper()
	s := httptest.NewServer(web.Handler(o))
	t.Cleanup(s.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{t, s, &http.Client{Jar: jar, Transport: s.Client().Transport}}
}

func loggedIn(t *testing.T, e job.Engine) *visitor {
	t.Helper()
	v := visit(t, e)
	if code, text := v.get(web.LoginPath(token)); code != 200 {
		t.Fatalf("log in: %d %s", code, text)
	}
	return v
}

// answer is the response to a request, after any redirects.
type answer struct {
	StatusCode int
	Path       string
}

func (v *visitor) do(method, path, form string, change func(*http.Request)) (answer, string) {
	v.Helper()
	req, err := http.NewRequest(method, v.server.URL+path, strings.NewReader(form))
	if err != nil {
		v.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", v.server.URL)
	}
	if change != nil {
		change(req)
	}
	resp, err := v.client.Do(req)
	if err != nil {
		v.Fatal(err)
	}
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Request.URL.Path}, body(v.T, resp)
}

func (v *visitor) get(path string) (int, string) {
	v.Helper()
	resp, text := v.do(http.MethodGet, path, "", nil)
	return resp.StatusCode, text
}

// formToken reads the token out of a page.
func (v *visitor) formToken() string {
	v.Helper()
	_, text := v.get("/jobs")
	m := regexp.MustCompile(`name="form_token" value="([^"]+)"`).FindStringSubmatch(text)
	if m == nil {
		v.Fatalf("no form token in %s", text)
	}
	return m[1]
}

func TestPages_AreForThoseWithTheToken(t *testing.T) {
	v := visit(t, sample())
	for _, path := range []string{"/", "/jobs", "/jobs/" + id, "/jobs/live", "/jobs/" + id + "/live", "/vms", "/vms/live", "/pools", "/pools/live", "/nodes", "/nodes/live", "/host/live", "/vms/105/destroy", "/vms/105", "/vms/105/live", "/vms/new", "/jobs/new", "/jobs/new?from=" + id, "/pools/new", "/pools/ready", "/tokens", "/tokens/new", "/host", "/templates", "/checkpoints", "/volumes", "/queues", "/credentials", "/help", "/help/tools", "/jobs/" + id + "/output", "/jobs/" + id + "/lines", "/metrics", "/mcp"} {
		code, text := v.get(path)
		if code != 401 || strings.Contains(text, "make all") || strings.Contains(text, "10.0.0.5") || strings.Contains(text, "storage") {
			t.Errorf("%s without login: %d %s", path, code, text)
		}
	}
	for _, token := range []string{"", "wrong", token + "x", token[:5]} {
		if code, text := v.get("/login?token=" + token); code != 401 || !strings.Contains(text, "Log in") {
			t.Errorf("log in with %q: %d", token, code)
		}
	}
	if resp, text := v.do(http.MethodPost, "/login", url.Values{"token": {token}, "next": {"/vms"}}.Encode(), nil); resp.Path != "/vms" || !strings.Contains(text, "10.0.0.5") {
		t.Errorf("log in by form leads to %s: %s", resp.Path, text)
	}
	// Downloads are there for who is logged in; MCP is for programs alone.
	if code, text := v.get("/jobs/" + id + "/output?stream=stderr"); code != 200 || !strings.Contains(text, "cannot find <package>") {
		t.Errorf("output: %d %s", code, text)
	}
	if code, _ := v.get("/mcp"); code != 401 {
		t.Errorf("MCP by cookie: %d", code)
	}
	if resp, _ := v.do(http.MethodPost, "/logout", "form_token="+url.QueryEscape(v.formToken()), nil); resp.Path != "/login" {
		t.Errorf("log out leads to %s", resp.Path)
	}
	if code, _ := v.get("/jobs"); code != 401 {
		t.Errorf("after logging out: %d", code)
	}
}

func TestLogin_CookieIsForThisServersPagesOnly(t *testing.T) {
	h := web.Handler(web.Options{Engine: sample(), MCP: echo, Token: token, Log: log})
	login := func(target string, change func(*http.Request)) *httptest.ResponseRecorder {
		return request(t, h, http.MethodGet, target, func(r *http.Request) {
			r.Header.Del("Authorization")
			if change != nil {
				change(r)
			}
		})
	}
	resp := login(web.LoginPath(token), nil)
	c, err := http.ParseSetCookie(resp.Header().Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Code != 303 || resp.Header().Get("Location") != "/jobs" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || strings.Contains(c.Value, token) {
		t.Errorf("%d %v %+v", resp.Code, resp.Header(), c)
	}
	// From a page elsewhere the strict cookie would not come along a redirect.
	resp = login(web.LoginPath(token), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
	if resp.Code != 200 || resp.Header().Get("Refresh") != "0; url=/jobs" || resp.Header().Get("Set-Cookie") == "" {
		t.Errorf("from elsewhere: %d %v", resp.Code, resp.Header())
	}
	for _, next := range []string{"https://evil.example/", "//evil.example", `/\evil.example`, "///evil.example", "javascript:alert(1)", "/login", "/logout", ""} {
		resp := login(web.LoginPath(token)+"&next="+url.QueryEscape(next), nil)
		if got := resp.Header().Get("Location"); got != "/jobs" {
			t.Errorf("next=%s leads to %q", next, got)
		}
	}
	with := func(value string) int {
		return login("/jobs", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: c.Name, Value: value}) }).Code
	}
	expiry, rest, _ := strings.Cut(c.Value, ".")
	for value, want := range map[string]int{
		c.Value: 200, "": 401, "x": 401, c.Value + "x": 401, c.Value[:len(c.Value)-2]: 401, "9" + expiry[1:] + "." + rest: 401, "9999999999." + rest: 401,
	} {
		if got := with(value); got != want {
			t.Errorf("cookie %q: %d, want %d", value, got, want)
		}
	}
	// The cookie of another token is not ours.
	other := web.Handler(web.Options{Engine: sample(), MCP: echo, Token: token + "2", Log: log})
	if got := request(t, other, http.MethodGet, "/jobs", func(r *http.Request) { r.AddCookie(c) }).Code; got != 401 {
		t.Errorf("under another token: %d", got)
	}
}

func TestPages_RestrictWhatTheyMayDo(t *testing.T) {
	v := loggedIn(t, sample())
	for _, path := range []string{"/jobs", "/jobs/" + id, "/vms", "/pools", "/nodes", "/host", "/help", "/help/tools", "/login", "/jobs/none", "/jobs/live"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, v.server.URL+path, nil)
		resp, err := v.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		h := resp.Header
		if p := h.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") || !strings.Contains(p, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, p)
		}
		if h.Get("X-Frame-Options") != "DENY" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" || h.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

func TestForms_NeedTheSessionsTokenAndOrigin(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	good := url.QueryEscape(v.formToken())
	origin := func(value string) func(*http.Request) {
		return func(r *http.Request) {
			if r.Header.Set("Origin", value); value == "" {
				r.Header.Del("Origin")
			}
		}
	}
	for _, path := range []string{"/jobs/" + id + "/cancel", "/jobs/" + id + "/kill", "/jobs/" + id + "/input", "/vms/105/destroy", "/vms/105/suspend", "/vms/105/resume", "/vms/105/snapshot", "/vms/105/fork", "/vms/105/forget", "/vms/105/revert", "/vms/105/remove-snapshot", "/vms/105/save", "/pools/ready/resize", "/pools/ready/remove", "/nodes/pve1/cordon", "/host/test", "/host/test/t1/cancel", "/tokens/a1b2c3d4e5f6/revoke", "/vms/105/terminal", "/logout"} {
		for name, bad := range map[string]struct {
			form   string
			change func(*http.Request)
		}{
			"no form token":     {"", nil},
			"wrong form token":  {"form_token=x", nil},
			"in the address":    {"", func(r *http.Request) { r.URL.RawQuery = "form_token=" + good }},
			"no origin":         {"form_token=" + good, origin("")},
			"foreign origin":    {"form_token=" + good, origin("https://evil.example")},
			"other port":        {"form_token=" + good, origin("http://127.0.0.1:1")},
			"another session's": {"form_token=" + url.QueryEscape(loggedIn(t, e).formToken()), nil},
		} {
			if resp, _ := v.do(http.MethodPost, path, bad.form, bad.change); resp.StatusCode != 403 {
				t.Errorf("%s, %s: %d", path, name, resp.StatusCode)
			}
		}
		if resp, _ := visit(t, e).do(http.MethodPost, path, "form_token="+good, nil); resp.StatusCode != 401 {
			t.Errorf("%s without session: %d", path, resp.StatusCode)
		}
	}
	if asked := e.asked(); len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
}

func TestForms_DoWhatTheySay(t *testing.T) {
	missing := "0197a1b2-0000-7000-8000-00000000dead"
	tests := []struct {
		name, path, form string
		code             int
		want             string // asked of the engine
		text             string // in the answer
		tty              bool
	}{
		{"cancel", "/jobs/" + id + "/cancel", "", 200, "cancel " + id, "Cancelled by user", false},
		{"cancel what has ended", "/jobs/" + doneID + "/cancel", "", 409, "cancel " + doneID, "Job already completed", false},
		{"cancel nothing", "/jobs/" + missing + "/cancel", "", 404, "cancel " + missing, "Job not found", false},
		{"kill", "/jobs/" + id + "/kill", "", 200, "kill " + id + " ", "make all", false},
		{"kill what has ended", "/jobs/" + doneID + "/kill", "", 409, "kill " + doneID + " ", "already completed", false},
		{"a line", "/jobs/" + id + "/input", "data=a+%3Cb%3E", 200, "input " + id + " a <b>\n", "make all", false},
		{"a line for a terminal", "/jobs/" + id + "/input", "data=ls", 200, "input " + id + " ls\r", "make all", true},
		{"the end of input", "/jobs/" + id + "/input", "data=x&do=close", 200, "close " + id + " ", "make all", false},
		{"Ctrl-C", "/jobs/" + id + "/input", "data=x&do=interrupt", 200, "input " + id + " \x03", "make all", true},
		{"destroy", "/vms/105/destroy", "job=" + doneID, 200, "destroy " + doneID, "destroying", false},
		{"destroy another VM by now", "/vms/105/destroy", "job=" + id, 422, "", "is now another VM", false},
		{"destroy what is in use", "/vms/linus-job-000000000001/destroy", "job=" + id, 422, "destroy " + id, "jobs run in it", false},
		{"suspend", "/vms/105/suspend", "job=" + doneID, 200, "suspend " + doneID, "/vms/105/resume", false},
		{"suspend another VM by now", "/vms/105/suspend", "job=" + id, 422, "", "is now another VM", false},
		{"resume", "/vms/105/resume", "job=" + doneID, 200, "resume " + doneID, "running", false},
		{"expose", "/vms/105/expose", "job=" + doneID + "&port=3000&name=web", 200, "expose 3000 web " + doneID, "https://web-abcdefghijkl.vms.example/", false},
		{"expose no port", "/vms/105/expose", "job=" + doneID + "&port=x", 200, "expose -1  " + doneID, "", false},
		{"unexpose", "/vms/105/unexpose", "job=" + doneID + "&name=web", 200, "unexpose web " + doneID, "dev", false},
		{"destroy nothing", "/vms/nothing/destroy", "job=x", 422, "", "not a VM of ours", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := sample()
			e.jobs[0].Manifest.TTY = tt.tty
			v := loggedIn(t, e)
			resp, text := v.do(http.MethodPost, tt.path, tt.form+"&form_token="+url.QueryEscape(v.formToken()), nil)
			if resp.StatusCode != tt.code || !strings.Contains(text, tt.text) {
				t.Errorf("%d %s", resp.StatusCode, text)
			}
			if got := strings.Join(e.asked(), ", "); got != tt.want {
				t.Errorf("asked %q, want %q", got, tt.want)
			}
		})
	}
}

func TestForms_SendAScriptNoPage(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	script := func(r *http.Request) { r.Header.Set("HX-Request", "true") }
	form := "data=x&form_token=" + url.QueryEscape(v.formToken())
	if resp, text := v.do(http.MethodPost, "/jobs/"+id+"/input", form, script); resp.StatusCode != 204 || text != "" {
		t.Errorf("%d %q", resp.StatusCode, text)
	}
	if resp, text := v.do(http.MethodPost, "/jobs/"+doneID+"/input", form, script); resp.StatusCode != 409 || text != "Job already completed" {
		t.Errorf("%d %q", resp.StatusCode, text)
	}
}

func TestPages_CanBeReadWithoutJavaScript(t *testing.T) {
	e := sample()
	e.jobs[0].Manifest.Task = `<script>alert("task")</script>`
	e.jobs[0].Progress = "<i>progress</i>"
	e.outputs[job.Stdout] = "<script>alert(1)</script>\n\x1b[31mred\x1b[0m\n"
	tests := []struct {
		path string
		code int
		want []string
	}{
		{"/jobs", 200, []string{"running", "uname -a", "mcp:claude-code", "pve2", `data-label="Phase">run<`, `data-label="Phase"><`, `data-label="Took">85 s<`, "/jobs/" + id, `http-equiv="refresh"`}},
		{"/jobs?status=success", 200, []string{"uname -a"}},
		{"/jobs/" + id, 200, []string{"&lt;script&gt;alert(1)&lt;/script&gt;", `<span class="f1">red</span>`, "wait_for_network", "Cancel", "Kill", "linus vm ssh linus-job-000000000001", `http-equiv="refresh"`, `name="data"`, "<svg", "<code>note=&lt;b&gt;&amp;</code> <code>team=web</code>"}},
		{"/jobs/" + doneID, 200, []string{"exit code 0", "Nothing was written.", "/artifacts/dist/app-linux-amd64.tar.gz", "/artifacts/odd%20name%20%231%3F.txt", "destroy", "core.&lt;1&gt; <span class=\"sub\">not kept: its 9 bytes", "6 more were not kept", "stdout is incomplete: collecting was cancelled by user"}},
		{"/jobs/none", 404, []string{"Job not found"}},
		{"/vms", 200, []string{"10.0.0.5", "linus vm ssh dev", "/vms/105/destroy", "/jobs/" + id, "in 4 h", "provisioning", "left_alone", "Left alone: its description does not carry linus-job=&lt;...&gt;", "qm destroy 117"}},
		{"/vms/kept/destroy", 200, []string{"It is left alone", "qm destroy 117"}},
		{"/vms/105/destroy", 200, []string{"with its disk", `name="job" value="` + doneID + `"`}},
		{"/vms/linus-job-000000000001/destroy", 200, []string{"is destroyed with", "/jobs/" + id}},
		{"/vms/dev", 200, []string{"<code>note=&lt;b&gt;&amp;</code> <code>team=web</code>", "<bdi>User ID</bdi>", "<bdi>&lt;i&gt;</bdi>", "<code>API_KEY</code>", `Sandbox.connect("0197a1b20000700080000000000000d1")`}},
		{"/pools/ready", 200, []string{"<code>team=web</code>"}},
		{"/host", 200, []string{"not ready", "there is no template agent-template", "linus template build makes one"}},
	}
	v := loggedIn(t, e)
	for _, tt := range tests {
		code, text := v.get(tt.path)
		if code != tt.code {
			t.Errorf("%s: %d %s", tt.path, code, text)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", tt.path, want)
			}
		}
		if strings.Contains(text, "<script>") || strings.Contains(text, "<i>") || strings.Contains(text, "style=") || regexp.MustCompile(` on[a-z]+=`).MatchString(text) {
			t.Errorf("%s has what is not ours, or what the policy forbids: %s", tt.path, text)
		}
	}
	_, text := v.get("/jobs/" + doneID)
	for _, not := range []string{"Cancel", "Kill", "sse-connect", `http-equiv="refresh"`, `name="data"`} {
		if strings.Contains(text, not) {
			t.Errorf("the page of a job that is done has %s", not)
		}
	}
	if _, text := v.get("/jobs?status=success"); strings.Contains(text, "mcp:claude-code") {
		t.Error("the filter lets other jobs through")
	}
}

// noJob is an engine that finds no job.
type noJob struct{ *engine }

func (noJob) Job(context.Context, string) (job.Job, error) {
	return job.Job{}, errors.New("a list reads single jobs")
}

func TestJobs_ShowWhatTheListHas(t *testing.T) {
	code, text := loggedIn(t, noJob{sample()}).get("/jobs")
	if code != 200 || !strings.Contains(text, "mcp:claude-code") || !strings.Contains(text, "pve2") {
		t.Errorf("%d %s", code, text)
	}
}

func TestJob_HasTheOutputsItsTaskHas(t *testing.T) {
	for name, change := range map[string]func(*job.Job){
		"stdout stderr": func(*job.Job) {},
		"stdout":        func(j *job.Job) { j.Manifest.TTY = true },
		"":              func(j *job.Job) { j.Kind = job.KindMake },
	} {
		e := sample()
		change(&e.jobs[0])
		_, text := loggedIn(t, e).get("/jobs/" + id)
		for _, stream := range []string{"stdout", "stderr"} {
			if strings.Contains(text, `id="`+stream+`"`) != slices.Contains(strings.Fields(name), stream) {
				t.Errorf("want %q: %s is wrong", name, stream)
			}
		}
	}
}

// What people come for is first: what to do, how it went, what it wrote. The rest follows.
func TestJob_BeginsWithErrorAndOutput(t *testing.T) {
	t.Parallel()
	e := sample()
	e.change(func() {
		e.jobs[0].Manifest.Task = "exec -- " + strings.Repeat("make ", 40)
		e.jobs[0].Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonLost, Error: "the VM is gone"}
	})
	_, text := loggedIn(t, e).get("/jobs/" + id)
	at := 0
	for _, next := range []string{"<h1", `id="again"`, `id="cancel"`, "the VM is gone", `id="stdout"`, `id="stderr"`, `id="facts"`, `id="time-title"`, `<details class="card" id="events">`, "<h2>Manifest"} {
		i := strings.Index(text[at:], next)
		if i < 0 {
			t.Fatalf("%s is missing, or before what it should follow", next)
		}
		at += i
	}
	for _, want := range []string{`<h1 class="task">make make`, "make…</h1>", "16, 1 warning<"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// Both outputs can be read as one, in which stderr can be told apart.
func TestJob_ShowsItsOutputsAsOne(t *testing.T) {
	t.Parallel()
	e := sample()
	e.outputs[job.Stdout], e.outputs[job.Stderr] = "one\n50%", "oh\nwhy"
	v := loggedIn(t, e)
	_, text := v.get("/jobs/" + id)
	if !strings.Contains(text, `href="/jobs/`+id+`?output=together"`) {
		t.Error("there is no way to it")
	}
	_, text = v.get("/jobs/" + id + "?output=together")
	for _, want := range []string{`one` + "\n" + `<span class="of-stderr">oh` + "\n</span>", "50%\n" + `<span class="of-stderr">why</span></span>`, `sse-connect="/jobs/` + id + `/live?output=together"`, `href="/jobs/` + id + `" id="apart"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	var all string
	told(t, v, "/jobs/"+id+"/live?output=together", func(name, html string) bool {
		if name == "together-all" {
			e.change(func() { e.outputs[job.Stderr] += "?\nlater\n" })
		}
		if strings.HasPrefix(name, "std") {
			t.Errorf("told %s", name)
		}
		if name == "together" {
			all += html
		}
		return strings.Contains(all, "later")
	})
	if !strings.Contains(all, `<span class="of-stderr">why?`+"\nlater\n</span>") {
		t.Error(all)
	}
	// Of a terminal and of a VM there are no two.
	e.change(func() { e.jobs[0].Manifest.TTY = true })
	if _, text = v.get("/jobs/" + id + "?output=together"); strings.Contains(text, "together") {
		t.Error("a terminal has one output")
	}
}

func TestJobs_ComeInPages(t *testing.T) {
	e := &engine{}
	for i := range 60 {
		e.jobs = append(e.jobs, job.Job{ID: "job-" + string(rune('A'+i)), Status: job.Success, Manifest: job.Manifest{Task: "true"}, CreatedAt: time.Now()})
	}
	v := loggedIn(t, e)
	seen, path := 0, "/jobs?status=success"
	for path != "" {
		_, text := v.get(path)
		seen += strings.Count(text, `class="main"`)
		next := regexp.MustCompile(`id="next-page" href="([^"]+)"`).FindStringSubmatch(text)
		if path = ""; next != nil {
			if path = strings.ReplaceAll(next[1], "&amp;", "&"); !strings.Contains(path, "status=success") {
				t.Fatalf("%s forgets the filter", path)
			}
		}
	}
	if seen != 60 {
		t.Errorf("%d jobs in all pages", seen)
	}
}

func TestPages_SayWhatWentWrong(t *testing.T) {
	e := sample()
	e.vmsErr, e.reportErr, e.outputErr = errors.New("disk on fire"), &job.HostError{Op: "check", Host: "pve", Text: "connection refused", Remedy: "is it on?"}, errors.New("no answer from the VM")
	v := loggedIn(t, e)
	for path, want := range map[string]string{"/vms": "disk on fire", "/host": "connection refused; is it on?", "/jobs/" + id: "Not read: no answer from the VM"} {
		if _, text := v.get(path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %q: %s", path, want, text)
		}
	}
	browser := func(r *http.Request) { r.Header.Set("Accept", "text/html,*/*") }
	if resp, text := v.do(http.MethodGet, "/nothing", "", browser); resp.StatusCode != 404 || !strings.Contains(text, "no such page") {
		t.Errorf("no page: %d %s", resp.StatusCode, text)
	}
}

// told collects the events of a stream until its end or until stop says so.
func told(t *testing.T, v *visitor, path string, stop func(name, html string) bool) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, v.server.URL+path, nil)
	resp, err := v.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var names []string
	var name string
	var data []string
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			data = append(data, line[6:])
		case line == "" && name != "":
			names = append(names, name)
			if stop(name, strings.Join(data, "\n")) {
				return names
			}
			name, data = "", nil
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("%s told %q and went on", path, names)
	}
	return names
}

func TestLive_OfAJobEndsWithIt(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	var last string
	names := told(t, v, "/jobs/"+id+"/live", func(name, html string) bool {
		if name == "summary" {
			last = html
		}
		if name == "stdout-all" {
			if !strings.Contains(html, "compiling  64%") || strings.Contains(html, "10%") {
				t.Errorf("output %s", html)
			}
			e.change(func() { e.outputs[job.Stdout] += "\rcarriage\r\n" })
			if err := e.Cancel(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		return false
	})
	if names[len(names)-1] != "done" || !strings.Contains(last, "Cancelled by user") {
		t.Errorf("told %q, in the end %s", names, last)
	}
	for _, name := range []string{"summary", "actions", "timeline", "events", "stdout-all", "stdout", "stderr-all"} {
		if !slices.Contains(names, name) {
			t.Errorf("never told %s: %q", name, names)
		}
	}
}

// Of a task that writes more than a page can show, the end is shown.
func TestLive_KeepsUpWithATaskThatWritesMuch(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	big := strings.Repeat(strings.Repeat("x", 99)+"\n", 20_000) // 2 MB
	size := 0
	told(t, v, "/jobs/"+id+"/live", func(name, html string) bool {
		if name == "stdout-all" && size == 0 {
			e.change(func() { e.outputs[job.Stdout] += "\n" + big + "the end\n" })
		}
		if strings.HasPrefix(name, "stdout") {
			size += len(html)
		}
		return strings.Contains(html, "the end")
	})
	if size > 1<<20 {
		t.Errorf("%d bytes were sent", size)
	}
}

func TestJob_OutputBeginsWithAWholeLine(t *testing.T) {
	e := sample()
	e.outputs[job.Stdout] = "first\n" + strings.Repeat("x", 100) + "\n" + strings.Repeat(strings.Repeat("y", 63)+"\n", 2048)[50:]
	_, text := loggedIn(t, e).get("/jobs/" + id)
	if strings.Contains(text, "xxx") || !strings.Contains(text, "B before this") || !strings.Contains(text, `<span class="piece">yyy`) {
		t.Errorf("%.200s", text[strings.Index(text, `id="stdout"`):])
	}
}

func TestLive_SaysWhatWasNotKept(t *testing.T) {
	e := sample()
	e.outputs[job.Stdout], e.gap, e.complete = "head---", 4, true
	var all string
	told(t, loggedIn(t, e), "/jobs/"+id+"/live", func(name, html string) bool {
		if strings.HasPrefix(name, "stdout") {
			all += html
		}
		return strings.Contains(all, "tail")
	})
	if !strings.Contains(all, "100 B were not kept") {
		t.Error(all)
	}
}

func TestLive_OfTheListSendsWhatChanges(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	times := 0
	told(t, v, "/jobs/live", func(name, html string) bool {
		if times++; times == 1 {
			if err := e.Cancel(t.Context(), id); err != nil {
				t.Error(err)
			}
			e.change(func() {
				fresh := e.jobs[0]
				fresh.ID, fresh.Manifest.Task, fresh.Status = "0197a1b2-0000-7000-8000-00000000beef", "brand new", job.Running
				e.jobs = append([]job.Job{fresh}, e.jobs...)
			})
		}
		if strings.Contains(html, "brand new") && strings.Count(html, "status-failed") != 2 {
			t.Errorf("the cancelled job is not shown as such: %s", html)
		}
		return name == "list" && strings.Contains(html, "brand new")
	})
	if code, _ := v.get("/jobs/none/live"); code != 404 {
		t.Errorf("stream of no job: %d", code)
	}
}

func TestPools_ShowMembersAndHitRate(t *testing.T) {
	v := loggedIn(t, sample())
	_, text := v.get("/pools")
	for _, want := range []string{"ready", "1 of 2", "0 of 1", "90 % of 10 jobs", "paused: &lt;b&gt;jobs", ">106</a> warm", `href="/jobs/` + id + `"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of pools lacks %q:\n%s", want, text)
		}
	}
}

func TestNodes_ShowMemoryAndVMs(t *testing.T) {
	v := loggedIn(t, sample())
	_, text := v.get("/nodes")
	for _, want := range []string{"pve1", "64.0 GiB, 21.0 GiB used", "40.0 GiB", "17.0 GiB", ">12<", "agent-template, &lt;b&gt;ci", "no VMs of &lt;b&gt;ci: it was not built by linus, as on other nodes", "maintenance, cordoned: it gets no new VMs", "unknown"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of nodes lacks %q:\n%s", want, text)
		}
	}
}

func TestNodes_ShowTheEngines(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/nodes")
	for _, want := range []string{"linus1.example.lan", "00000000e001", "v1.3.9", "13 s left", "ended 1 min ago", "this one", "leads:", "takes no more jobs", ">dead<", "&lt;b&gt;linus3", "Its jobs cannot be taken over: node pve2 is &lt;offline&gt;"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of nodes lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "leads:"); n != 1 {
		t.Errorf("%d engines lead", n)
	}
	// One that shares no database has no ID and no lease, and is not dead.
	e.engines = []job.EngineInfo{{Host: "alone", Version: "v1", Jobs: 2, Leads: true, Self: true, StartedAt: time.Now()}}
	if _, text = v.get("/nodes"); !strings.Contains(text, "none needed") || !strings.Contains(text, ">alive<") || strings.Contains(text, "leads:") {
		t.Errorf("%s", text)
	}
}

// How far the messages about a job's end have come is on its page, and in its stream.
func TestJob_ShowsWebhooks(t *testing.T) {
	t.Parallel()
	e := sample()
	v := loggedIn(t, e)
	if _, text := v.get("/jobs/" + doneID); strings.Contains(text, "webhooks-title") {
		t.Error("webhooks of a job that has none")
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	e.happens(id, job.Event{Kind: job.EventWarning, Text: "webhook failed"}, func(j *job.Job) {
		j.Webhooks = []job.Delivery{
			{State: job.DeliveryPending, At: at},
			{To: "<b>ci", State: job.DeliveryPending, Attempts: 2, Error: "the receiver returned <500>", At: at, NextAt: at.Add(time.Hour)},
			{To: "late.example", State: job.DeliveryGivenUp, Attempts: 10, Error: "no answer", At: at},
		}
	})
	_, text := v.get("/jobs/" + id)
	for _, want := range []string{
		"<li>WEBHOOK_URL <span class=\"sub\">pending</span></li>",
		"&lt;b&gt;ci <span class=\"sub\">pending, attempt 2 <time", ", the next at <time datetime=\"2026-03-04T06:06:07Z\">2026-03-04 06:06:07 UTC</time>", "the receiver returned &lt;500&gt;",
		"late.example <span class=\"sub\">given up, attempt 10",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if !strings.Contains(text, `sse-swap="webhooks"`) {
		t.Error("they do not change with the job")
	}
}

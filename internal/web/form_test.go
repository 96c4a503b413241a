package web_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
	"linus/internal/web"
)

// part is a field of a form, or a file if it has a file name.
type part struct{ name, value, file string }

// upload sends a form with files.
func (v *visitor) upload(path string, parts ...part) (answer, string) {
	v.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		var field io.Writer
		var err error
		if p.file != "" {
			field, err = w.CreateFormFile(p.name, p.file)
		} else {
			field, err = w.CreateFormField(p.name)
		}
		if err != nil {
			v.Fatal(err)
		}
		_, _ = io.WriteString(field, p.value)
	}
	_ = w.Close()
	return v.do(http.MethodPost, path, b.String(), func(r *http.Request) { r.Header.Set("Content-Type", w.FormDataContentType()) })
}

// fields reads the fields that a browser would send with the form of a page.
func fields(text string) []part {
	_, text, _ = strings.Cut(text, `<form class="making"`)
	text, _, _ = strings.Cut(text, "</form>")
	var parts []part
	attr := func(tag, name string) string {
		m := regexp.MustCompile(`\s` + name + `="([^"]*)"`).FindStringSubmatch(tag)
		if m == nil {
			return ""
		}
		return html.UnescapeString(m[1])
	}
	for _, m := range regexp.MustCompile(`(?s)<input [^>]*>|<textarea ([^>]*)>\n(.*?)</textarea>|<select ([^>]*)>(.*?)</select>`).FindAllStringSubmatch(text, -1) {
		switch tag := m[0]; {
		case strings.HasPrefix(tag, "<textarea"):
			parts = append(parts, part{attr(tag, "name"), strings.ReplaceAll(html.UnescapeString(m[2]), "\n", "\r\n"), ""})
		case strings.HasPrefix(tag, "<select"):
			chosen := regexp.MustCompile(`value="([^"]*)" selected`).FindStringSubmatch(tag)
			value := ""
			if chosen != nil {
				value = html.UnescapeString(chosen[1])
			} else if first := regexp.MustCompile(`<option value="([^"]*)"`).FindStringSubmatch(tag); first != nil {
				value = first[1]
			}
			parts = append(parts, part{attr(tag, "name"), value, ""})
		case attr(tag, "type") == "file", attr(tag, "type") == "checkbox" && !strings.Contains(tag, " checked"):
		default:
			parts = append(parts, part{attr(tag, "name"), attr(tag, "value"), ""})
		}
	}
	return parts
}

// setting sets fields of a form.
func setting(parts []part, change map[string]string) []part {
	var all []part
	for _, p := range parts {
		if _, ok := change[p.name]; !ok {
			all = append(all, p)
		}
	}
	for name, value := range change {
		all = append(all, part{name, value, ""})
	}
	return all
}

func TestNewJob_IsSubmittedOnceAsItWasTyped(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/jobs/new")
	parts := append(setting(fields(text), map[string]string{"task": "echo $X\r\ncat /tmp/a.txt\r\n", "resources.memory": " 4G ", "dir": "/srv/in", "timeout": "90", "artifacts": "dist/**\r\n\r\nlog"}),
		part{"env_name", "X", ""}, part{"env_value", "a\r\nb", ""}, part{"files", "<&>\x00\xff", "a.txt"}, part{"files", "", "empty"}, part{"do", "send", ""})
	resp, text := v.upload("/jobs/new", parts...)
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Path, "/jobs/0197") {
		t.Fatalf("%d %s %s", resp.StatusCode, resp.Path, text)
	}
	want := job.Manifest{
		Task: "echo $X\ncat /tmp/a.txt\n", AgentType: job.AgentScript, StatusMode: job.StatusStreaming, Resources: vm.Resources{Memory: "4G"}, Timeout: 90,
		Env: map[string]string{"X": "a\nb"}, Artifacts: []string{"dist/**", "log"},
		Files: []job.File{{Path: "/srv/in/a.txt", Content: base64.StdEncoding.EncodeToString([]byte("<&>\x00\xff"))}, {Path: "/srv/in/empty"}},
	}
	if len(e.submitted) != 1 || e.jobs[0].Kind != job.KindTask || e.submitted[0].Client != "web" {
		t.Fatalf("%+v", e.submitted)
	}
	if diff := cmp.Diff(want, e.submitted[0].Manifest); diff != "" {
		t.Error(diff)
	}
	// A double click is one job.
	again, _ := v.upload("/jobs/new", parts...)
	if again.Path != resp.Path || len(e.submitted) != 1 {
		t.Errorf("sent twice: %s and %s, %d jobs", resp.Path, again.Path, len(e.submitted))
	}
	// Back, something else, and sent again: the form says so, and has another key.
	again, text = v.upload("/jobs/new", setting(parts, map[string]string{"task": "other"})...)
	if again.StatusCode != 422 || !strings.Contains(text, "was used for another submission") {
		t.Errorf("%d %s", again.StatusCode, text)
	}
	if again, _ = v.upload("/jobs/new", setting(fields(text), map[string]string{"do": "send"})...); again.StatusCode != 200 || len(e.submitted) != 2 || e.submitted[1].Manifest.Task != "other" {
		t.Errorf("with another key: %d, %d jobs", again.StatusCode, len(e.submitted))
	}
}

func TestNewJob_ErrorsAreAtTheirFieldsAndNothingIsLost(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, blank := v.get("/jobs/new")
	nasty := `</textarea><script>alert("1")</script>`
	typed := append(setting(fields(blank), map[string]string{"task": "\r\n" + nasty, "resources.memory": nasty, "tty": "on", "os": "debian-12", "vmTemplate": "x", "secrets": "A B", "do": "send"}),
		part{"env_name", "1X", ""}, part{"env_value", nasty, ""}, part{"files", nasty, `a"><b>.txt`}, part{"files", strings.Repeat("x", 9<<20), "large.bin"})
	check := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("lacks %s", want)
			}
		}
		if strings.Contains(text, "<script>alert") || strings.Contains(text, "<b>") || len(e.submitted) > 0 {
			t.Error("what was typed is not escaped, or was submitted")
		}
	}
	// What is no number is seen before the engine is asked.
	resp, text := v.upload("/jobs/new", setting(typed, map[string]string{"timeout": "soon", "network.vlan": "0"})...)
	if resp.StatusCode != 422 {
		t.Errorf("%d", resp.StatusCode)
	}
	check(text, `id="f-timeout-error">&#34;soon&#34; is not a time`, `id="f-network-vlan-error">0 is out of range`, `value="soon"`, "/tmp/large.bin is too large to stay in the form")
	// The rest is the engine's to say.
	_, text = v.upload("/jobs/new", setting(typed, map[string]string{"timeout": "99999"})...)
	check(text, `id="f-timeout-error">99999 is out of range; give seconds from 1 to 86400`, `id="f-resources-memory-error">`, `id="f-os-error">is given together with Template`,
		`is not a variable name`, `aria-invalid="true"`, `value="1X"`, `name="tty" type="checkbox" value="on" checked`, `value="A B"`)
	got := map[string]string{}
	for _, p := range fields(text) {
		got[p.name] = p.value
	}
	if got["task"] != "\r\n"+nasty || got["resources.memory"] != nasty || got["kept_path"] != `/tmp/a"><b>.txt` || got["kept"] != base64.StdEncoding.EncodeToString([]byte(nasty)) || got["os"] != "debian-12" {
		t.Errorf("lost: %q", got)
	}
	// What is about no field is above them.
	e.formErr = fmt.Errorf("policy: %w", errors.New("not today <b>"))
	_, text = v.upload("/jobs/new", setting(fields(blank), map[string]string{"task": "x", "do": "send"})...)
	check(text, "<p>policy: not today &lt;b&gt;</p>")
}

func TestNewJob_ShowsThePlan(t *testing.T) {
	e := sample()
	e.plan = []string{"qm clone 9000 100 --name <x>", "qm start 100"}
	v := loggedIn(t, e)
	for _, path := range []string{"/jobs/new", "/vms/new"} {
		_, text := v.get(path)
		resp, text := v.upload(path, setting(fields(text), map[string]string{"task": "true", "vmName": "dev", "do": "plan", "lifecycle": "persistent"})...)
		if resp.StatusCode != 200 || !strings.Contains(text, "--name &lt;x&gt;\nqm start 100") || !strings.Contains(text, `value="dev"`) || len(e.submitted) > 0 {
			t.Errorf("%s: %d %s", path, resp.StatusCode, text)
		}
	}
}

func TestRunAgain_SubmitsTheSame(t *testing.T) {
	e := sample()
	m := job.Manifest{
		Task: "\n#!/bin/sh\necho \"$A\" <b>\n", AgentType: job.AgentScript, Env: map[string]string{"A": "1\n2\n", "B": ""}, Secrets: []string{"S"}, Timeout: 5, Lifecycle: vm.Ephemeral,
		Files: []job.File{{Path: "/root/x", Mode: "0755", Content: "AAEC"}, {Path: "/root/<y>", Content: ""}}, StatusMode: job.StatusSimple,
	}
	e.jobs[0].Manifest = m
	v := loggedIn(t, e)
	_, text := v.get("/jobs/" + id)
	if !strings.Contains(text, `href="/jobs/new?from=`+id+`"`) {
		t.Fatal("no way to run it again")
	}
	_, text = v.get("/jobs/new?from=" + id)
	if resp, text := v.upload("/jobs/new", setting(fields(text), map[string]string{"do": "send"})...); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if diff := cmp.Diff(m, e.submitted[0].Manifest); diff != "" {
		t.Error(diff)
	}
	e.dropped = true
	_, text = v.get("/jobs/new?from=" + id)
	if !strings.Contains(text, "/root/x is not kept once its job is done: choose it again") || strings.Contains(text, "AAEC") || !strings.Contains(text, "echo &#34;$A&#34;") {
		t.Errorf("files that are not kept: %s", text)
	}
	if code, _ := v.get("/jobs/new?from=none"); code != 404 {
		t.Errorf("from no job: %d", code)
	}
}

func TestNewVM_IsCreated(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/vms/new")
	if resp, text := v.upload("/vms/new", setting(fields(text), map[string]string{"vmName": "dev2", "os": "debian-12", "resources.cpu": "4", "ttl": "3600", "task": "ignored", "do": "send"})...); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	want := job.Manifest{VMName: "dev2", OS: "debian-12", Resources: vm.Resources{CPU: 4}, TTL: 3600}
	if diff := cmp.Diff(want, e.submitted[0].Manifest); diff != "" || e.jobs[0].Kind != job.KindMake {
		t.Error(e.jobs[0].Kind, diff)
	}
}

func TestPools_AreCreatedResizedAndRemoved(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/pools/new")
	typed := setting(fields(text), map[string]string{"name": "big", "resources.memory": "16G", "warm": "2", "hibernated": "1"})
	resp, text := v.upload("/pools/new", setting(typed, map[string]string{"name": "<B>", "idle_limit": "5", "resources.cpu": "x"})...)
	if resp.StatusCode != 422 || !strings.Contains(text, `id="f-resources-cpu-error"`) || !strings.Contains(text, `value="&lt;B&gt;"`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	_, text = v.upload("/pools/new", setting(typed, map[string]string{"name": "<B>", "idle_limit": "5"})...)
	if !strings.Contains(text, `id="f-name-error"`) || !strings.Contains(text, `id="f-idle_limit-error"`) || len(e.pools) != 1 {
		t.Errorf("%d pools: %s", len(e.pools), text)
	}
	if resp, text = v.upload("/pools/new", typed...); resp.Path != "/pools" || !strings.Contains(text, `href="/pools/big"`) {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if p := e.pools[1].Pool; p.Resources.Memory != "16G" || p.Warm != 2 || p.Hibernated != 1 {
		t.Errorf("%+v", p)
	}
	post := func(path, form string) string {
		t.Helper()
		_, text := v.do(http.MethodPost, path, form+"&form_token="+url.QueryEscape(v.formToken()), nil)
		return text
	}
	if _, text = v.get("/pools/big"); !strings.Contains(text, `name="hibernated" type="text" value="1"`) {
		t.Error(text)
	}
	if text = post("/pools/big/resize", "warm=1000&hibernated=0"); !strings.Contains(text, `id="f-warm-error">1000 is out of range`) || !strings.Contains(text, `value="1000"`) {
		t.Error(text)
	}
	post("/pools/big/resize", "warm=0&hibernated=0&max_age=3600")
	if p := e.pools[1].Pool; p.Warm != 0 || p.Hibernated != 0 || p.MaxAge != 3600 {
		t.Errorf("%+v", p)
	}
	post("/pools/big/remove", "")
	if len(e.pools) != 1 {
		t.Error("it is not removed")
	}
	if text = post("/pools/big/remove", ""); !strings.Contains(text, "there is no pool big") {
		t.Error(text)
	}
}

func TestTokens_AreCreatedShownOnceAndRevoked(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/tokens/new")
	typed := setting(fields(text), map[string]string{"name": "alice", "role": "read", "ttl": "3600", "secrets": "CI_*, X", "storages": "nfs", "jobs": "3", "vms": "0"})
	resp, text := v.upload("/tokens/new", setting(typed, map[string]string{"name": "<Alice>", "networks": "5000", "memory_mb": "x"})...)
	if resp.StatusCode != 422 || !strings.Contains(text, `id="f-memory_mb-error"`) || !strings.Contains(text, "&lt;Alice&gt;") || len(e.tokens) != 4 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if _, text = v.upload("/tokens/new", setting(typed, map[string]string{"name": "<Alice>", "networks": "5000"})...); !strings.Contains(text, `id="f-name-error"`) || !strings.Contains(text, `id="f-networks-error"`) {
		t.Error(text)
	}
	resp, text = v.upload("/tokens/new", typed...)
	if resp.StatusCode != 200 || strings.Count(text, "linus_very-secret") != 1 {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if diff := cmp.Diff(job.TokenSpec{Name: "alice", Role: job.RoleRead, TTL: 3600, Secrets: []string{"CI_*", "X"}, Storages: []string{"nfs"}, Limits: job.Limits{Jobs: 3, VMs: job.NoLimit}}, e.tokens[4].TokenSpec); diff != "" {
		t.Error(diff)
	}
	_, text = v.get("/tokens")
	for _, want := range []string{"alice", "secrets CI_*, X", "storages nfs", "at most 3 unfinished jobs", "&lt;b&gt;bob", "login of Carol &lt;b&gt;", ">expired<", "never"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(text, "very-secret") {
		t.Error("the secret is shown twice")
	}
	v.do(http.MethodPost, "/tokens/"+e.tokens[4].ID+"/revoke", "form_token="+url.QueryEscape(v.formToken()), nil)
	if len(e.tokens) != 4 {
		t.Error("it is not revoked")
	}
}

func TestNodes_AreCordoned(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	for _, verb := range []string{"cordon", "uncordon"} {
		_, text := v.do(http.MethodPost, "/nodes/pve1/"+verb, "form_token="+url.QueryEscape(v.formToken()), nil)
		if e.nodes[0].Cordoned != (verb == "cordon") || strings.Contains(text, `action="/nodes/pve1/cordon"`) == (verb == "cordon") {
			t.Errorf("%s: %s", verb, text)
		}
	}
}

func TestVM_HasAllTheVerbs(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	post := func(path, form string) (answer, string) {
		t.Helper()
		return v.do(http.MethodPost, path, form+"&job="+doneID+"&form_token="+url.QueryEscape(v.formToken()), nil)
	}
	_, text := v.get("/vms/105")
	for _, want := range []string{"VM dev", `action="/vms/105/stop"`, `action="/vms/105/suspend"`, `action="/vms/105/snapshot"`, `action="/vms/105/fork"`, `href="/vms/105/destroy"`, `href="/jobs/new?vm=dev"`,
		`href="/vms/105/revert?snapshot=a"`, `href="/vms/105/remove-snapshot?snapshot=a"`, `data-label="Disk">3.0 MiB<`, `data-label="Memory">4.0 GiB<`, `b <span class="note">current</span>`,
		`half <span class="note">incomplete</span>`, `href="/vms/105/remove-snapshot?snapshot=half"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of a VM lacks %s", want)
		}
	}
	if strings.Contains(text, "/vms/105/revert?snapshot=half") {
		t.Error("one can revert to half a snapshot")
	}
	e.unlisted = errors.New("no host")
	if status, text := v.get("/vms/105"); status != 200 || !strings.Contains(text, "could not be listed: no host") {
		t.Errorf("without the host: %d %s", status, text)
	}
	for _, tt := range []struct{ verb, form, want string }{
		{"stop", "", "stop " + doneID}, {"start", "", "start " + doneID}, {"suspend", "", "suspend " + doneID}, {"resume", "", "resume " + doneID},
		{"snapshot", "snapshot=a", "snapshot a false " + doneID}, {"snapshot", "snapshot=b&memory=on", "snapshot b true " + doneID}, {"revert", "snapshot=a", "revert a " + doneID},
		{"fork", "count=3&name=x-%25d", "fork 3 x-%d " + doneID},
		{"remove-snapshot", "snapshot=a", "remove-snapshot a " + doneID},
		{"save", "template=setup", "save setup false " + doneID},
		{"forget", "", "forget " + doneID}, {"destroy", "", "destroy " + doneID},
	} {
		resp, text := post("/vms/105/"+tt.verb, tt.form)
		if asked := e.asked(); resp.StatusCode != 200 || asked[len(asked)-1] != tt.want {
			t.Errorf("%s: %d, asked %q: %s", tt.verb, resp.StatusCode, asked, text)
		}
	}
	// What cannot be undone is asked about.
	for path, want := range map[string]string{
		"/vms/105/revert?snapshot=%3Cb%3E": `to snapshot &lt;b&gt;?`, "/vms/105/remove-snapshot?snapshot=%3Cb%3E": `Remove snapshot &lt;b&gt; of VM dev`, "/vms/105/forget": "Only a VM that is left alone", "/vms/kept/forget": `id="forget-now"`, "/vms/kept": `href="/vms/117/forget"`,
	} {
		if _, text := v.get(path); !strings.Contains(text, want) {
			t.Errorf("%s lacks %s: %s", path, want, text)
		}
	}
}

func TestUploads_AreBoundedAndOurs(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	ok := []part{{"form_token", v.formToken(), ""}, {"task", "true", ""}, {"agentType", "script", ""}, {"dir", "/tmp", ""}, {"do", "send", ""}}
	many := ok
	for i := range 201 {
		many = append(many, part{"files", "x", fmt.Sprint(i)})
	}
	fields := ok
	for range 3001 {
		fields = append(fields, part{"env_name", "", ""})
	}
	for _, path := range []string{"/jobs/new", "/vms/new"} {
		for _, tt := range []struct {
			name  string
			parts []part
			code  int
			says  string
		}{
			{"too many files", many, 400, "more than 200 files"},
			{"too many fields", fields, 400, "more than 3000 fields"},
			{"no form token", ok[1:], 403, "does not belong to this session"},
			{"another session's", append([]part{{"form_token", loggedIn(t, e).formToken(), ""}}, ok[1:]...), 403, "does not belong"},
		} {
			if resp, text := v.upload(path, tt.parts...); resp.StatusCode != tt.code || !strings.Contains(text, tt.says) {
				t.Errorf("%s, %s: %d %s", path, tt.name, resp.StatusCode, text)
			}
		}
		for name, change := range map[string]func(*http.Request){
			"no origin":      func(r *http.Request) { r.Header.Del("Origin") },
			"foreign origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		} {
			if resp, _ := v.do(http.MethodPost, path, "form_token="+url.QueryEscape(ok[0].value), change); resp.StatusCode != 403 {
				t.Errorf("%s, %s: %d", path, name, resp.StatusCode)
			}
		}
		if resp, _ := visit(t, e).upload(path, ok...); resp.StatusCode != 401 {
			t.Errorf("%s without session: %d", path, resp.StatusCode)
		}
	}
	if resp, text := v.upload("/jobs/new", append(ok, part{"files", strings.Repeat("x", web.MaxBody), "x"})...); resp.StatusCode != 413 || !strings.Contains(text, "larger than 96.0 MiB") {
		t.Errorf("too large: %d %s", resp.StatusCode, text)
	}
	keys := &keyring{tokens: map[string]job.Principal{"linus_x": {Name: "alice", Token: "a1", Role: job.RoleRead}}}
	reader := visitWith(t, web.Options{Engine: e, MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	reader.do(http.MethodPost, "/login", "token=linus_x", nil)
	if resp, text := reader.upload("/jobs/new", append([]part{{"form_token", reader.formToken(), ""}}, ok[1:]...)...); resp.StatusCode != 403 || !strings.Contains(text, "needs role run") {
		t.Errorf("of who may only read: %d %s", resp.StatusCode, text)
	}
	if len(e.submitted) > 0 {
		t.Errorf("%+v", e.submitted)
	}
}

// A number that was taken out of a form is the default that the form has shown, never
// nothing: a token for ever, or a pool without VMs.
func TestForms_AnEmptyNumberIsTheDefault(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	_, text := v.get("/tokens/new")
	v.upload("/tokens/new", setting(fields(text), map[string]string{"name": "kim", "ttl": ""})...)
	if made := e.tokens[len(e.tokens)-1]; made.Name != "kim" || made.TTL != 90*24*3600 {
		t.Errorf("token %+v", made)
	}
	_, text = v.get("/pools/new")
	v.upload("/pools/new", setting(fields(text), map[string]string{"name": "fresh", "warm": "", "hibernated": "2"})...)
	if made := e.pools[len(e.pools)-1]; made.Name != "fresh" || made.Warm != 1 || made.Hibernated != 2 {
		t.Errorf("pool %+v", made)
	}
	e.pools[0].MaxAge = 7200
	form := url.Values{"form_token": {v.formToken()}, "warm": {""}, "hibernated": {"3"}, "idle_limit": {" "}, "max_age": {""}}
	v.do(http.MethodPost, "/pools/ready/resize", form.Encode(), nil)
	if p := e.pools[0]; p.Warm != 2 || p.Hibernated != 3 || p.MaxAge != 7200 {
		t.Errorf("pool %+v", p)
	}
}

// One file that is too large for the form keeps no other from being given back.
func TestNewJob_GivesSmallFilesBackBesideALargeOne(t *testing.T) {
	v := loggedIn(t, sample())
	_, blank := v.get("/jobs/new")
	_, text := v.upload("/jobs/new", append(setting(fields(blank), map[string]string{"task": "x", "timeout": "soon"}),
		part{"files", strings.Repeat("x", 9<<20), "large.bin"}, part{"files", "small", "small.txt"})...)
	if !strings.Contains(text, "/tmp/large.bin is too large") || strings.Contains(text, "small.txt is too large") || !strings.Contains(text, `name="kept_path" value="/tmp/small.txt"`) {
		t.Error("the small file is lost")
	}
}

// A form offers what there is, to those who may see it.
func TestForms_OfferWhatThereIs(t *testing.T) {
	t.Parallel()
	e := sample()
	v := loggedIn(t, e)
	templates := `<datalist id="f-vmTemplate-offers"><option value="&lt;b&gt;ci"></option><option value="agent-template"></option></datalist>`
	for path, wants := range map[string][]string{
		"/jobs/new":            {templates, `<datalist id="f-vm-offers"><option value="dev"></option><option value="fresh"></option></datalist>`, `href="/jobs/new?pool=ready" data-fill="network.allow=`, "agent-template, 2 CPU, 2G, 10G disk; 1 ready"},
		"/vms/new":             {templates},
		"/pools/new":           {templates},
		"/jobs/new?pool=ready": {`name="vmTemplate" type="text" value="agent-template"`, `name="resources.cpu" type="text" value="2"`, `value="script" selected`},
		"/pools/ready":         {`href="/jobs/new?pool=ready"`},
	} {
		_, text := v.get(path)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
	// What is wrong does not take the offers away, and a host that does not answer no form.
	_, text := v.upload("/vms/new", part{"form_token", v.formToken(), ""}, part{"ttl", "soon", ""})
	if !strings.Contains(text, templates) {
		t.Error("after an error nothing is offered")
	}
	e.vmsErr = errors.New("no answer")
	if code, _ := v.get("/jobs/new"); code != 200 {
		t.Errorf("%d", code)
	}
	keys := &keyring{tokens: map[string]job.Principal{"linus_x": {Name: "alice", Token: "a1", Role: job.RoleRun, Templates: []string{"mine", "ci-*", "debian-12"}}}}
	hers := visitWith(t, web.Options{Engine: e, MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	hers.do(http.MethodPost, "/login", "token=linus_x", nil)
	if _, text = hers.get("/jobs/new"); !strings.Contains(text, `<datalist id="f-vmTemplate-offers"><option value="mine"></option></datalist>`) || strings.Contains(text, "data-fill") {
		t.Error("what a token may not see is offered, or what it may use is not")
	}
}

// What is wrong is listed above the form, and the first such field has the focus.
func TestForms_LeadToTheFirstWrongField(t *testing.T) {
	t.Parallel()
	v := loggedIn(t, sample())
	_, blank := v.get("/jobs/new")
	if strings.Contains(blank, "autofocus") {
		t.Error("a blank form leads somewhere")
	}
	_, text := v.upload("/jobs/new", setting(fields(blank), map[string]string{"timeout": "soon", "network.vlan": "x"})...)
	_, top, _ := strings.Cut(text, `id="faults"`)
	top, _, _ = strings.Cut(top, "</div>")
	if i, j := strings.Index(top, `<a href="#f-timeout">Time limit</a>: &#34;soon&#34; is not`), strings.Index(top, `<a href="#f-network-vlan">VLAN tag</a>: `); i < 0 || j < i {
		t.Error(top)
	}
	if strings.Count(text, "autofocus") != 1 || !regexp.MustCompile(`<input id="f-timeout" [^>]*autofocus`).MatchString(text) {
		t.Error("the first wrong field has no focus")
	}
	for _, tt := range []struct{ part, want string }{
		{"env_name", `name="env_name" value="A" [^>]*autofocus`}, {"files", `id="files" [^>]*autofocus`},
	} {
		parts := setting(fields(blank), map[string]string{"task": "x"})
		if tt.part == "files" {
			parts = append(parts, part{"kept_path", "/tmp/a", ""}, part{"kept_mode", "rwx", ""}, part{"kept", "", ""})
		} else {
			parts = append(parts, part{"env_name", "A", ""}, part{"env_value", "1", ""}, part{"env_name", "A", ""}, part{"env_value", "2", ""})
		}
		if _, text = v.upload("/jobs/new", parts...); strings.Count(text, "autofocus") != 1 || !regexp.MustCompile(tt.want).MatchString(text) {
			t.Errorf("%s: %s", tt.part, text)
		}
	}
}

func TestHost_IsTested(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	form := "form_token=" + url.QueryEscape(v.formToken())
	if v.do(http.MethodPost, "/host/test", form+"&quick=on", nil); len(e.tests) != 1 || !e.tests[0].Quick {
		t.Fatalf("begun: %+v", e.tests)
	}
	view := ""
	told(t, v, "/host/live", func(name, html string) bool {
		view = html
		return name == "tests"
	})
	for _, want := range []string{"pve: running, quick", "12.3 s", "&lt;b&gt;full", "make room", ">running<", `action="/host/test/t1/cancel"`} {
		if !strings.Contains(view, want) {
			t.Errorf("the tests lack %q:\n%s", want, view)
		}
	}
	v.do(http.MethodPost, "/host/test/t1/cancel", form, nil)
	if !slices.Contains(e.calls, "cancel test t1") {
		t.Errorf("asked for: %v", e.calls)
	}
}

package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
	"linus/internal/web"
)

// A port can be given a URL while a job runs in the VM, whose server it mostly is.
func TestVMPage_OffersAURLWhileAJobRuns(t *testing.T) {
	e := sample()
	e.vms[0].Jobs = []string{id}
	v := loggedIn(t, e)
	for _, ref := range []string{"105", "linus-job-000000000001"} {
		if _, text := v.get("/vms/" + ref); !strings.Contains(text, `id="expose"`) {
			t.Errorf("VM %s: there is no form for a port", ref)
		}
	}
	for _, ref := range []string{"fresh", "kept"} { // not there yet, and left alone
		if _, text := v.get("/vms/" + ref); strings.Contains(text, `id="expose"`) {
			t.Errorf("VM %s has a form for a port", ref)
		}
	}
}

// What can be done with a VM is in cards, and one button stands out.
func TestVMPage_HasOnePrimaryButton(t *testing.T) {
	_, text := loggedIn(t, sample()).get("/vms/105")
	buttons := regexp.MustCompile(`<button[^>]*>`).FindAllString(text, -1)
	var primary []string
	for _, b := range buttons {
		if !strings.Contains(b, `class="plain"`) {
			primary = append(primary, b)
		}
	}
	if len(primary) != 1 || !strings.Contains(primary[0], "open-terminal") {
		t.Errorf("primary buttons %q of %d", primary, len(buttons))
	}
	for _, form := range regexp.MustCompile(`action="/vms/105/(terminal|snapshot|expose|save|fork)"`).FindAllStringIndex(text, -1) {
		before := text[:form[0]]
		if strings.LastIndex(before, "<section") < strings.LastIndex(before, "</section>") {
			t.Errorf("not in a card: %s", text[form[0]:form[1]])
		}
	}
}

// What a failed task wrote to stderr comes first, and its exit code is said once.
func TestJobPage_OfAFailedTask(t *testing.T) {
	code := 1
	order := func(change func(j *job.Job)) (string, bool) {
		e := sample()
		e.jobs[1].Status = job.Failed
		e.jobs[1].Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 1"}
		e.jobs[1].Stderr = job.OutputInfo{Total: 42}
		change(&e.jobs[1])
		_, text := loggedIn(t, e).get("/jobs/" + doneID)
		text, _, _ = strings.Cut(text, `id="events"`)
		return text, strings.Index(text, `id="stderr-title"`) < strings.Index(text, `id="stdout-title"`)
	}
	if text, first := order(func(*job.Job) {}); !first || strings.Contains(text, "exit status 1") || strings.Count(text, "exit code 1") != 1 {
		t.Errorf("stderr first: %v; %s", first, text)
	}
	if text, _ := order(func(j *job.Job) { j.Outcome.Error = "a line of the agent" }); !strings.Contains(text, "a line of the agent") {
		t.Errorf("an error of its own is not shown: %s", text)
	}
	for name, change := range map[string]func(*job.Job){
		"nothing on stderr": func(j *job.Job) { j.Stderr.Total = 0 },
		"it runs":           func(j *job.Job) { j.Status, j.Outcome = job.Running, nil },
		"it succeeded":      func(j *job.Job) { j.Status = job.Success },
	} {
		if _, first := order(change); first {
			t.Errorf("%s, and stderr comes first", name)
		}
	}
}

// Output can be saved as a file with a name that says of which job it is.
func TestJobPage_OutputIsDownloaded(t *testing.T) {
	v := loggedIn(t, sample())
	for _, at := range []string{"", "?output=together"} {
		_, text := v.get("/jobs/" + doneID + at)
		for _, stream := range []string{job.Stdout, job.Stderr} {
			if !strings.Contains(text, `href="/jobs/`+doneID+`/output?stream=`+stream+`" download="0000000000d1-`+stream+`.txt"`) {
				t.Errorf("%s of the page%s is not downloaded", stream, at)
			}
		}
	}
}

// An admin sees whose each VM is; others see their own alone, and need not be told.
func TestVMs_ShowTheirOwnersToAdmins(t *testing.T) {
	e := sample()
	e.vms[0].Principal = "alice"
	v := visitWith(t, web.Options{Engine: e, MCP: echo, API: echo, Token: token, Log: log})
	v.get(web.LoginPath(token))
	for _, path := range []string{"/vms", "/vms/105"} {
		if _, text := v.get(path); !strings.Contains(text, "alice") {
			t.Errorf("%s does not say whose it is", path)
		}
	}
}

// Help is searched for words of a document, wherever they stand in it, and says where to start.
func TestHelp_IsSearched(t *testing.T) {
	v := loggedIn(t, sample())
	_, index := v.get("/help")
	if !strings.Contains(index, "Start here") || !strings.Contains(index, `name="q"`) {
		t.Errorf("the list: %s", index)
	}
	found := func(q string) []string {
		_, text := v.get("/help?q=" + url.QueryEscape(q))
		var topics []string
		for _, m := range regexp.MustCompile(`<dt><a href="/help/([a-z-]+)"`).FindAllStringSubmatch(text, -1) {
			topics = append(topics, m[1])
		}
		if strings.Contains(text, "<b>") {
			t.Errorf("%s: what was typed is not escaped: %s", q, text)
		}
		return topics
	}
	if got := found("EXPOSE_domain wildcard"); len(got) == 0 || len(got) > 3 || got[0] != "http" && got[0] != "settings" {
		t.Errorf("EXPOSE_DOMAIN is in %v", got)
	}
	if got := found("manifest"); len(got) < 2 || got[0] != "manifest" {
		t.Errorf("what is named so does not come first: %v", got)
	}
	if got := found("<b>nosuchword"); len(got) > 0 {
		t.Errorf("found %v", got)
	}
	if code, text := v.get("/help?q=" + url.QueryEscape("<b>nosuchword")); code != http.StatusOK || !strings.Contains(text, "No document contains") {
		t.Errorf("%d %s", code, text)
	}
}

// The list of jobs comes before what is less often looked at: the search is folded, unless
// something is searched for.
func TestJobs_ListComesFirst(t *testing.T) {
	v := loggedIn(t, sample())
	_, text := v.get("/jobs")
	if !strings.Contains(text, `id="jobs"`) || !strings.Contains(text, `<details class="searching">`) {
		t.Errorf("%s", text)
	}
	if _, text := v.get("/jobs?text=x"); !strings.Contains(text, `<details class="searching" open>`) {
		t.Error("a search is folded")
	}
}

// What is made elsewhere is listed here, for those who may list it.
func TestLists_ShowWhatTheCommandLineMakes(t *testing.T) {
	keys := &keyring{tokens: map[string]job.Principal{"linus_runner": {Name: "runner", Token: "r1", Role: job.RoleRun, Life: t.Context()}}}
	o := web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log}
	operator, runner := visitWith(t, o), visitWith(t, o)
	operator.get(web.LoginPath(token))
	runner.do(http.MethodPost, "/login", url.Values{"token": {"linus_runner"}}.Encode(), nil)
	for path, tt := range map[string]struct {
		shows []string
		all   bool // others than admins see it
	}{
		"/volumes":     {[]string{"<b>cache</b>", "20 GB", "VM 105 at /srv (ro)", "&lt;b&gt;alice", "60 min ago"}, true},
		"/templates":   {[]string{"<b>agent-template</b>", "&lt;b&gt;ci", "pve1"}, false},
		"/checkpoints": {[]string{"<b>linus-checkpoint-1</b>", "debian-13", "2 CPU, 2G, 10G disk", "failed: the &lt;disk&gt; is full"}, false},
		"/queues":      {[]string{"<b>github:o/&lt;r&gt;</b>", "failing: the &lt;key&gt; is refused", "2 of 8", "41", "3 lost", "operator"}, true},
		"/credentials": {[]string{"<b>forge</b>", "forge.example/api", "FORGE_TOKEN"}, false},
	} {
		code, text := operator.get(path)
		if code != http.StatusOK || !strings.Contains(text, `<a href="`+path+`" aria-current="page">`) {
			t.Errorf("%s: %d %s", path, code, text)
		}
		for _, want := range tt.shows {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q: %s", path, want, text)
			}
		}
		code, text = runner.get(path)
		if may := code == http.StatusOK; may != tt.all || strings.Contains(text, `<nav aria-label="Main">`) && strings.Contains(text, `<a href="`+path+`"`) != tt.all {
			t.Errorf("%s for the role run: %d %s", path, code, text)
		}
	}
}

// Times are typed, and shown again, as people write them.
func TestForms_TakeTimesAsPeopleWriteThem(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	form := func(timeout string) string {
		_, text := v.upload("/jobs/new", part{"form_token", v.formToken(), ""}, part{"task", "true", ""}, part{"agentType", "script", ""}, part{"timeout", timeout, ""}, part{"do", "send", ""})
		return text
	}
	for typed, want := range map[string]int{"90m": 5400, "1h30m": 5400, "1d": 86400, "45": 45} {
		e.submitted = nil
		if text := form(typed); len(e.submitted) != 1 || e.submitted[0].Manifest.Timeout != want {
			t.Errorf("%s: %+v: %s", typed, e.submitted, text)
		}
	}
	if text := form("soon"); !strings.Contains(text, "is not a time: give seconds, or 90m, 2h or 7d") || !strings.Contains(text, `value="soon"`) {
		t.Errorf("%s", text)
	}
	if _, text := v.get("/jobs/new?from=" + id); !strings.Contains(text, `name="timeout" type="text" value="1h"`) {
		t.Errorf("an hour is not shown as one: %s", text)
	}
	if _, text := v.get("/tokens/new"); !strings.Contains(text, `name="ttl" type="text" value="90d"`) {
		t.Error("90 days are not shown as such")
	}
}

// A form says what each field is that is left empty.
func TestForms_ShowDefaultsByValue(t *testing.T) {
	o := web.Options{Engine: sample(), MCP: echo, API: echo, Token: token, Log: log, Defaults: job.Defaults{VMTemplate: "<ci>", Timeout: 3600, CPU: 2, Memory: "4G", Disk: "20G", Egress: "internet"}}
	v := visitWith(t, o)
	v.get(web.LoginPath(token))
	for path, all := range map[string][]string{
		"/jobs/new":  {`name="timeout" type="text" value="" placeholder="1h"`, `name="resources.cpu" type="text" value="" placeholder="2"`, `placeholder="4G"`, `placeholder="20G"`, `placeholder="&lt;ci&gt;"`, ">default: internet<", ">default: ephemeral<"},
		"/pools/new": {`name="resources.cpu" type="text" value="" placeholder="2"`, `placeholder="4G"`, `placeholder="&lt;ci&gt;"`, `name="max_age" type="text" value="" placeholder="1d"`, ">default: internet<"},
		"/vms/new":   {`name="resources.cpu" type="text" value="" placeholder="2"`, `placeholder="&lt;ci&gt;"`},
	} {
		_, text := v.get(path)
		for _, want := range all {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %s", path, want)
			}
		}
	}
}

// Who exposes a port on which nothing listens is told, and a list of VMs says why it does not know
// the status of one.
func TestVMs_SayWhatIsToBeKnown(t *testing.T) {
	e := sample()
	e.note = "nothing listens on port 3000 <yet>"
	e.vms[0].Labels = nil
	v := loggedIn(t, e)
	if answer, text := v.do(http.MethodPost, "/vms/105/expose", "form_token="+v.formToken()+"&job="+doneID+"&port=3000&name=web", nil); answer.StatusCode != http.StatusOK || !strings.Contains(text, `role="status" id="note">nothing listens on port 3000 &lt;yet&gt;</p>`) {
		t.Errorf("%v, %s", answer, text)
	}
	e.change(func() { e.vms[0].Status, e.vms[0].Reason = vm.Unknown, "the host could not be asked: <no> route" })
	for _, path := range []string{"/vms", "/vms/105"} {
		if _, text := v.get(path); !strings.Contains(text, `class="error">the host could not be asked: &lt;no&gt; route<`) {
			t.Errorf("%s does not say why: %s", path, text)
		}
	}
}

// An output's lines have numbers and addresses, and can be searched.
func TestLines_HaveAddressesAndASearch(t *testing.T) {
	e := sample()
	var b strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&b, "line %d <b>\x1b[31mred\x1b[0m\n", i+1)
	}
	e.outputs[job.Stdout] = b.String() + "Straße no end"
	v := loggedIn(t, e)
	at := "/jobs/" + id + "/lines?stream=stdout"
	for path, wants := range map[string][]string{
		at:                                     {`<li id="L1"><a href="` + strings.ReplaceAll("/jobs/"+id+"/lines?from=1&stream=stdout", "&", "&amp;") + `#L1"`, "<span>line 1 &lt;b&gt;red</span>", `id="L1000"`, "from=1001&amp;stream=stdout\" rel=\"next\""},
		at + "&from=2001":                      {`id="L2001"`, `<li id="L2501">`, "<span>Straße no end</span>", "from=1001&amp;stream=stdout\" rel=\"prev\""},
		at + "&text=STRASS":                    {"No line contains this text."},
		at + "&text=LINE+2001+<":               {`<li id="L2001"><a href="/jobs/` + id + `/lines?from=2001&amp;stream=stdout#L2001"`, `value="LINE 2001 &lt;"`},
		at + "&text=red":                       {"give more of the text"},
		"/jobs/" + id + "/lines?stream=stderr": {"cannot find"},
		"/jobs/" + doneID + "/lines":           {"There are no lines."},
	} {
		code, text := v.get(path)
		for _, want := range wants {
			if code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, no %s", path, code, want)
			}
		}
		if strings.Contains(path, "2001") && strings.Contains(text, `id="L1999"`) || strings.Count(text, "<li id=") > 1000 {
			t.Errorf("%s has too many lines", path)
		}
	}
	e.gap = 20
	if _, text := v.get(at); !strings.Contains(text, "were not kept") {
		t.Error("it does not say what is missing")
	}
	_, text := v.get("/jobs/" + id)
	for _, stream := range []string{"stdout", "stderr"} {
		if !strings.Contains(text, `href="/jobs/`+id+`/lines?stream=`+stream+`"`) {
			t.Errorf("the job's page does not lead to the lines of %s", stream)
		}
	}
}

package web_test

import (
	"net/http"
	"strings"
	"testing"

	"linus/internal/job"
)

// A parent's page has its jobs, and their tests as one report, however hostile that is.
func TestJobPage_OfAParent(t *testing.T) {
	e := sample()
	three := 3
	parent := e.jobs[1]
	parent.ID, parent.Children = id, []job.Child{{Name: "go=1.25", ID: doneID, Status: job.Success}, {Name: "go=1.26", ID: "c2", Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &three}}
	parent.Artifacts = []job.Artifact{{Path: "go=1.25/a.xml"}, {Path: "go=1.26/a.xml"}, {Path: "go=1.26/b.xml"}, {Path: "go=1.26/other.xml"}}
	e.jobs[0] = parent
	e.artifacts = map[string]string{
		"go=1.25/a.xml":     `<testsuite name="s"><testcase name="fine"/></testsuite>`,
		"go=1.26/a.xml":     `<testsuite name="s"><testcase name="&lt;script&gt;bad"><failure message="&lt;b&gt;no"/></testcase></testsuite>`,
		"go=1.26/b.xml":     `<testsuite><testcase>`,
		"go=1.26/other.xml": `<coverage/>`,
	}
	v := loggedIn(t, e)
	_, text := v.get("/jobs/" + id)
	for _, want := range []string{`<a href="/jobs/` + doneID + `">go=1.25</a>`, "exit code 3", `href="/jobs/` + id + `/tests"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	_, text = v.get("/jobs/" + id + "/tests")
	for _, want := range []string{`<a href="/jobs" aria-current="page">`, "2 tests, 1 failed", "go=1.25: s", "&lt;script&gt;bad", "&lt;b&gt;no", "Not read: go=1.26/b.xml: is no whole XML"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page of tests lacks %s", want)
		}
	}
	if strings.Contains(text, "<script>bad") || strings.Contains(text, "other.xml") {
		t.Error("what a VM says is markup, or what is no report is said to be one")
	}
	code, text := v.get("/jobs/" + id + "/tests?as=xml")
	if code != http.StatusOK || !strings.Contains(text, `<testsuites tests="2" failures="1"`) {
		t.Errorf("%d %s", code, text)
	}
}

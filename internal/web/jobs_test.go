package web_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

func TestJobs_AreSearchedByTheEngine(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	query := url.Values{
		"status": {"failed"}, "reason": {"lost"}, "client": {" mcp:<b> "}, "owner": {"alice"}, "text": {`100% "<b>`},
		"since": {"2026-01-02T15:00:00Z"}, "before": {"2026-01-02T16:00:00+02:00"}, "cursor": {"next"},
	}
	_, text := v.get("/jobs?" + query.Encode())
	want := job.Filter{
		Status: job.Failed, Reason: job.ReasonLost, Client: "mcp:<b>", Principal: "alice", Text: `100% "<b>`,
		Since: time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC), Before: time.Date(2026, 1, 2, 14, 0, 0, 0, time.UTC), Cursor: "next", Limit: 25,
	}
	if diff := cmp.Diff(want, e.filter); diff != "" {
		t.Error(diff)
	}
	// The page shows what was asked, and every way on asks the same.
	for _, want := range []string{`value="100% &#34;&lt;b&gt;"`, `value="mcp:&lt;b&gt;"`, `value="lost" selected`, `name="status" value="failed"`, "2026-01-02T15:00:00Z to 2026-01-02T16:00:00", "No jobs match"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(text, "<b>") {
		t.Error("what was asked is not escaped")
	}
	query.Set("client", "mcp:<b>")
	for _, m := range regexp.MustCompile(`(?:href|sse-connect)="(/jobs(?:/live)?\?[^"]*)"`).FindAllStringSubmatch(text, -1) {
		got, err := url.Parse(html.UnescapeString(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"reason", "client", "owner", "text", "since", "before"} {
			if got.Query().Get(name) != query.Get(name) {
				t.Errorf("%s forgets %s", m[1], name)
			}
		}
	}
	// A span is counted back from now.
	if v.get("/jobs?since=24h"); time.Since(e.filter.Since) < 24*time.Hour || time.Since(e.filter.Since) > 25*time.Hour {
		t.Errorf("since %v", e.filter.Since)
	}
	for _, bad := range []string{"since=yesterday", "before=1", "since=-5h"} {
		if code, text := v.get("/jobs?" + bad); code != 422 || !strings.Contains(text, "is not a time") {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
}

// A job's patch is shown as text, however it is meant, with what differs marked, and only its
// beginning if it is long; the job's page leads there if there is one.
func TestDiff_ShowsThePatchAsText(t *testing.T) {
	e := sample()
	v := loggedIn(t, e)
	// An artifact of the name that a job without a repository has left is no patch of one.
	e.artifacts = map[string]string{job.PatchArtifact: "what its VM shows"}
	theirs := e.jobs[1]
	theirs.ID, theirs.Artifacts = id, []job.Artifact{{Path: job.PatchArtifact}}
	sampled := e.jobs[0]
	e.jobs[0] = theirs
	if code, text := v.get("/jobs/" + id + "/diff"); code != http.StatusNotFound || strings.Contains(text, "what its VM shows") {
		t.Errorf("without a repository: %d %s", code, text)
	}
	if _, text := v.get("/jobs/" + id); strings.Contains(text, `href="/jobs/`+id+`/diff"`) {
		t.Error("the page of a job without a repository leads to a patch")
	}
	e.jobs[0] = sampled
	if code, _ := v.get("/jobs/" + doneID + "1/diff"); code != http.StatusNotFound {
		t.Errorf("of no job: %d", code)
	}
	e.artifacts = map[string]string{job.PatchArtifact: " a.txt | 2 +-\n+ not of the patch\n\ndiff --git a/a.txt b/a.txt\n@@ -1 +1 @@\n-one\n+<script>\x1b[31mtwo\x1b[0m\xff\n same\n"}
	done := e.jobs[1]
	done.ID, done.Artifacts = id, []job.Artifact{{Path: job.PatchArtifact}}
	done.Repository = &job.Checkout{Commit: "1", Head: "2", Commits: 1, Files: 1, Insertions: 1, Deletions: 1, Pushed: "fix"}
	e.jobs[0] = done
	if _, text := v.get("/jobs/" + id); !strings.Contains(text, `href="/jobs/`+id+`/diff"`) {
		t.Error("the job's page does not lead there")
	}
	code, text := v.get("/jobs/" + id + "/diff")
	for _, want := range []string{
		`<a href="/jobs" aria-current="page">`, "1 commit, 1 file changed (+1 -1), pushed to fix", "\n+ not of the patch\n", `<span class="file">diff --git a/a.txt b/a.txt</span>`,
		`<span class="hunk">@@ -1 +1 @@</span>`, `<span class="removed">-one</span>`, `<span class="added">+&lt;script&gt;two` + "\uFFFD</span>", "\n same\n",
	} {
		if !strings.Contains(html.UnescapeString(text), html.UnescapeString(want)) {
			t.Errorf("%d, the page lacks %s", code, want)
		}
	}
	if strings.Contains(text, "<script>two") || strings.Contains(text, "\x1b") || strings.Contains(text, "this is its beginning") {
		t.Error("it is not text, or not all of it")
	}
	e.artifacts[job.PatchArtifact] += strings.Repeat("+more\n", 100_000)
	if _, text := v.get("/jobs/" + id + "/diff"); !strings.Contains(text, "this is its beginning") || len(text) > 4<<20 {
		t.Errorf("a long one: %d bytes", len(text))
	}
}

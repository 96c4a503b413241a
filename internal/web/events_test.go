package web_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"linus/internal/job"
)

// A VM that cannot be destroyed causes events as long as that lasts.
func TestJob_WithManyEventsIsAShortPage(t *testing.T) {
	e := sample()
	const tries = 5_000
	before := len(e.events[id])
	for i := range tries {
		for _, event := range []job.Event{
			{Kind: job.EventPhaseStarted, Phase: "destroy"},
			{Kind: job.EventWarning, Text: fmt.Sprintf("VM not destroyed, try %d.", i)},
			{Kind: job.EventPhaseEnded, Phase: "destroy", Text: "no answer"},
		} {
			event.Seq, event.JobID, event.At = int64(len(e.events[id])+1), id, e.events[id][0].At
			e.events[id] = append(e.events[id], event)
		}
	}
	v := loggedIn(t, e)
	code, page := v.get("/jobs/" + id)
	if code != 200 || len(page) > 200_000 || !strings.Contains(page, fmt.Sprintf("try %d.", tries-1)) || strings.Contains(page, "try 5.") {
		t.Fatalf("%d, %d bytes", code, len(page))
	}
	if want := fmt.Sprintf(`<a href="/jobs/%s/events">%d earlier events</a>`, id, before+3*tries-200); !strings.Contains(page, want) {
		t.Errorf("the page does not say %s", want)
	}
	told(t, v, "/jobs/"+id+"/live", func(name, html string) bool {
		if len(html) > 200_000 {
			t.Errorf("%s has %d bytes", name, len(html))
		}
		return name == "events"
	})
	seen, pages := 0, 0
	for next := "/jobs/" + id + "/events"; next != ""; pages++ {
		code, page := v.get(next)
		if code != 200 || len(page) > 500_000 {
			t.Fatalf("%s: %d, %d bytes", next, code, len(page))
		}
		seen += strings.Count(page, `<li class="event-`)
		next = ""
		if m := regexp.MustCompile(`href="(/jobs/[^"]+/events\?after=\d+)"`).FindStringSubmatch(page); m != nil {
			next = m[1]
		}
	}
	if seen != before+3*tries || pages < 2 {
		t.Errorf("%d of %d events on %d pages", seen, before+3*tries, pages)
	}
	for path, want := range map[string]int{"/jobs/nobody/events": 404, "/jobs/" + id + "/events?after=x": 200, "/jobs/" + id + "/events?after=-1": 200} {
		if code, _ := v.get(path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
	if resp, _ := visit(t, e).do(http.MethodGet, "/jobs/"+id+"/events", "", nil); resp.StatusCode != 401 {
		t.Errorf("without a session: %d", resp.StatusCode)
	}
}

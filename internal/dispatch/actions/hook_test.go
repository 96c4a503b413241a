package actions

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/dispatch"
	"linus/internal/githubtest"
)

func TestHook_TellsWhereToLook(t *testing.T) {
	g := githubtest.New(t)
	q, _ := queue(t, g, Options{HookSecret: "hook-secret", Labels: []string{"large"}})
	server := httptest.NewServer(hooked{q}.Hook())
	defer server.Close()
	g.Tell(server.URL, "hook-secret")
	waits := func(want ...string) {
		t.Helper()
		works, err := q.Waiting(t.Context())
		var ids []string
		for _, w := range works {
			ids = append(ids, w.ID)
		}
		if diff := cmp.Diff(want, ids); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	waits()
	looks := len(g.Requests("/actions/runs"))

	ids := g.Queue(web, "self-hosted", "ubuntu-latest", "large")
	<-hooked{q}.Woken()
	waits(texts(ids[0], ids[2])...)
	if got := g.Requests("/actions/runs")[looks:]; len(got) != 2 { // the run and its jobs
		t.Errorf("asked for %q", got)
	}
	g.Queue(web, "ubuntu-latest")
	g.QueueFork(web, "self-hosted")
	<-hooked{q}.Woken()
	waits(texts(ids[0], ids[2])...) // of the fork nothing

	event := func(action, repository string, id int64) []byte {
		body, _ := json.Marshal(map[string]any{"action": action, "workflow_job": map[string]any{"id": id, "run_id": 1, "labels": []string{"self-hosted"}}, "repository": map[string]any{"full_name": repository}})
		return body
	}
	if code := g.Deliver("workflow_job", "d1", "", event("in_progress", web, ids[0])); code != http.StatusNoContent {
		t.Errorf("%d", code)
	}
	waits(texts(ids[2])...)
	for what, tt := range map[string]struct {
		event, id, secret string
		body              []byte
		want              int
	}{
		"a delivery again":        {"workflow_job", "d1", "", event("completed", web, ids[2]), http.StatusConflict},
		"no delivery":             {"workflow_job", "", "", event("completed", web, ids[2]), http.StatusConflict},
		"another secret":          {"workflow_job", "d2", "other", event("completed", web, ids[2]), http.StatusUnauthorized},
		"an event of nothing":     {"ping", "d3", "", []byte(`{"zen":"x"}`), http.StatusNoContent},
		"nonsense":                {"workflow_job", "d4", "", []byte(`[`), http.StatusBadRequest},
		"too much":                {"workflow_job", "d5", "", bytes.Repeat([]byte(" "), 1<<20+1), http.StatusRequestEntityTooLarge},
		"another's repository":    {"workflow_job", "d6", "", event("queued", "mallory/web", 9), http.StatusNoContent},
		"a path for a repository": {"workflow_job", "d7", "", event("queued", "acme/../../x", 9), http.StatusNoContent},
	} {
		if code := g.Deliver(tt.event, tt.id, tt.secret, tt.body); code != tt.want {
			t.Errorf("%s: %d", what, code)
		}
	}
	if len(q.noted) != 0 {
		t.Errorf("noted: %v", q.noted)
	}
	waits(texts(ids[2])...)

	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/", nil),
		httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}")),
	} {
		w := httptest.NewRecorder()
		hooked{q}.Hook().ServeHTTP(w, r)
		if w.Code/100 != 4 {
			t.Errorf("%s: %d", r.Method, w.Code)
		}
	}
}

// A run that a webhook tells of and that cannot be looked at holds nothing else, and ends no dispatcher.
func TestHook_ARunThatFailsHoldsNoOther(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			g := githubtest.New(t)
			g.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/actions/runs/999") {
					return false
				}
				w.WriteHeader(code)
				return true
			}
			q, _ := queue(t, g, Options{HookSecret: "hook-secret"})
			hooked{q}.hear(queued, web, workflowJob{ID: 1, Run: 999, Labels: []string{"self-hosted"}})
			ids := g.Queue(web, "self-hosted")
			for n := 0; ; n++ {
				works, err := q.Waiting(t.Context())
				if _, fatal := errors.AsType[*dispatch.Fatal](err); fatal || n > 5 {
					t.Fatalf("%v, %v", works, err)
				}
				if len(works) == 1 && works[0].ID == texts(ids...)[0] {
					return
				}
			}
		})
	}
}

// What webhooks leave in memory is bounded.
func TestHook_NotesSoMuch(t *testing.T) {
	g := githubtest.New(t)
	q, _ := queue(t, g, Options{HookSecret: "hook-secret"})
	for i := range int64(maxNoted + 10) {
		hooked{q}.hear(queued, web, workflowJob{ID: i + 1, Run: i + 1, Labels: []string{"self-hosted"}})
	}
	if len(q.noted) != maxNoted {
		t.Errorf("%d noted", len(q.noted))
	}
}

package forge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/dispatch"
	"linus/internal/dispatch/forge"
	"linus/internal/forgetest"
	"linus/internal/job"
)

var kinds = []forge.Kind{forge.Forgejo, forge.Gitea}

func newQueue(t *testing.T, s *forgetest.Server, o forge.Options) dispatch.Queue {
	t.Helper()
	o.URL, o.Log = s.URL+"/", slog.New(slog.NewTextHandler(io.Discard, nil))
	if o.Token == "" {
		o.Token = forgetest.Token
	}
	if o.Repository == "" && o.Organization == "" && !o.Instance {
		o.Repository = forgetest.Repository
	}
	if o.Labels == nil {
		o.Labels = []string{"linus", "big"}
	}
	q, err := forge.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func waiting(t *testing.T, q dispatch.Queue) []dispatch.Work {
	t.Helper()
	works, err := q.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return works
}

// TestQueue_ServesJobs is against the stand-in of Forgejo 15 and Gitea 1.25, whose documents it names.
func TestQueue_ServesJobs(t *testing.T) {
	for _, kind := range kinds {
		for name, o := range map[string]forge.Options{"repository": {}, "organization": {Organization: "acme"}, "instance": {Instance: true}} {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				s := forgetest.New(t, kind == forge.Gitea)
				o.Kind = kind
				q := newQueue(t, s, o)
				if works := waiting(t, q); len(works) > 0 {
					t.Errorf("nothing waits, and yet %v", works)
				}
				id := s.Add("test", "linus", "big")
				s.Add("another's", "linus", "docker")
				s.Add("nobody's")
				for range 120 {
					s.Add("more", "linus")
				}
				works := waiting(t, q)
				if len(works) != 121 {
					t.Fatalf("%d jobs wait", len(works))
				}
				w := works[0]
				if w.ID != fmt.Sprint(id) || w.Of != "acme/app" || w.Title != "test" || !strings.HasPrefix(w.URL, s.URL+"/acme/app/actions/runs/") || len(w.Labels) != 2 {
					t.Errorf("%+v", w)
				}
				if ours, err := q.Claim(t.Context(), w); !ours || err != nil {
					t.Error(ours, err)
				}
				session := dispatch.Session{Work: w, Name: "linus-dispatch-A"}
				h, err := q.Handover(t.Context(), session)
				if err != nil {
					t.Fatal(err)
				}
				runners := s.Runners()
				if len(runners) != 1 || runners[0].Name != session.Name || !runners[0].Ephemeral {
					t.Fatalf("runners: %+v", runners)
				}
				for _, secret := range []string{forgetest.Token, "registers-any-number"} {
					if strings.Contains(string(h.Secret), secret) {
						t.Errorf("the VM gets %s: %s", secret, h.Secret)
					}
				}
				if !strings.Contains(string(h.Secret), runners[0].Token) || !strings.Contains(string(h.Secret), runners[0].UUID) {
					t.Errorf("the VM gets %s", h.Secret)
				}
				// A runner that never connected is removed, also by a process that has not made it, and again.
				for _, by := range []dispatch.Queue{newQueue(t, s, o), q, q} {
					if err := by.Release(t.Context(), session, nil); err != nil {
						t.Error(err)
					}
				}
				if left := s.Runners(); len(left) > 0 {
					t.Errorf("left: %+v", left)
				}
				if err := q.Release(t.Context(), session, &job.Outcome{Status: job.Success}); err != nil {
					t.Error(err)
				}
				if refused := s.Refused(); len(refused) > 0 {
					t.Errorf("refused: %q", refused)
				}
			})
		}
	}
}

func TestHandover_OfAJobThatWaitsNoMore(t *testing.T) {
	s := forgetest.New(t, false)
	q := newQueue(t, s, forge.Options{Kind: forge.Forgejo})
	id := s.Add("test", "linus")
	w := waiting(t, q)[0]
	s.End(id)
	if _, err := q.Handover(t.Context(), dispatch.Session{Work: w, Name: "A"}); !errors.Is(err, dispatch.ErrLost) {
		t.Error(err)
	}
	if made := s.Runners(); len(made) > 0 {
		t.Errorf("made: %+v", made)
	}
}

func TestWaiting_RefusedForGood(t *testing.T) {
	for status, says := range map[int]string{401: "give another", 403: "it needs write access to repository", 404: "or does not show it to this token"} {
		for _, kind := range kinds {
			s := forgetest.New(t, kind == forge.Gitea)
			s.Break(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"message":"no\u001b[31m"}`, status) })
			_, err := newQueue(t, s, forge.Options{Kind: kind}).Waiting(t.Context())
			if _, fatal := errors.AsType[*dispatch.Fatal](err); !fatal || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s, %d: %v", kind, status, err)
			}
		}
	}
	for _, kind := range kinds { // what was good once may be revoked
		s := forgetest.New(t, kind == forge.Gitea)
		q := newQueue(t, s, forge.Options{Kind: kind})
		waiting(t, q)
		s.Break(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"message":"no"}`, 401) })
		_, err := q.Waiting(t.Context())
		if _, fatal := errors.AsType[*dispatch.Fatal](err); err == nil || fatal {
			t.Errorf("%s, once: %v", kind, err)
		}
		if _, err = q.Waiting(t.Context()); !strings.Contains(fmt.Sprint(err), "give another") {
			t.Errorf("%s, again: %v", kind, err)
		}
	}
	s := forgetest.New(t, true)
	s.Age("1.24.7")
	_, err := newQueue(t, s, forge.Options{Kind: forge.Gitea}).Waiting(t.Context())
	if _, fatal := errors.AsType[*dispatch.Fatal](err); !fatal || !strings.Contains(err.Error(), "this Gitea does not list jobs (1.25 does), and there is no webhook") {
		t.Error(err)
	}
	s.Age("1.23.8") // with a webhook's secret, too: no VM is made for nothing
	_, err = newQueue(t, s, forge.Options{Kind: forge.Gitea, HookSecret: "s"}).Waiting(t.Context())
	if _, fatal := errors.AsType[*dispatch.Fatal](err); !fatal || !strings.Contains(err.Error(), "this Gitea is version 1.23.8, which has no runners for one job") {
		t.Error(err)
	}
	var removed int
	s.Break(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/runners/7"):
			removed++
		case strings.HasSuffix(r.URL.Path, "/registration-token"):
			_, _ = io.WriteString(w, `{"token":"any"}`)
		default:
			_, _ = io.WriteString(w, `{"runner":{"id":"7","uuid":"u","token":"t"}}`)
		}
	})
	session := dispatch.Session{Work: dispatch.Work{ID: "1", Labels: []string{"linus"}}, Name: "A"}
	_, err = newQueue(t, s, forge.Options{Kind: forge.Gitea}).Handover(t.Context(), session)
	if _, fatal := errors.AsType[*dispatch.Fatal](err); !fatal || !strings.Contains(err.Error(), "for any number of jobs: that takes Gitea 1.24 or later") || removed != 1 {
		t.Errorf("%v, %d removed", err, removed)
	}
}

// What a hostile forge answers is an error, or nothing, and passes.
func TestQueue_HostileAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the token goes elsewhere: %v", r.Header)
	}))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"nothing":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"others":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"text"`) },
		"numbers":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"jobs":7,"runners":7}`) },
		"too long": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 17<<20)) },
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"ends": func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"lost": func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, // by a proxy
		"busy": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusTooManyRequests) },
	} {
		for _, kind := range kinds {
			s := forgetest.New(t, kind == forge.Gitea)
			q := newQueue(t, s, forge.Options{Kind: kind})
			waiting(t, q)
			s.Break(answer)
			_, err := q.Waiting(t.Context())
			if _, fatal := errors.AsType[*dispatch.Fatal](err); err == nil || fatal {
				t.Errorf("%s of %s: %v", name, kind, err)
			}
			_, err = q.Handover(t.Context(), dispatch.Session{Work: dispatch.Work{ID: "1", Labels: []string{"linus"}}, Name: "A"})
			if err == nil {
				t.Errorf("%s of %s: handed over", name, kind)
			}
			if err := q.Release(t.Context(), dispatch.Session{Name: "A"}, nil); err == nil {
				t.Errorf("%s of %s: released", name, kind)
			}
		}
	}
	s := forgetest.New(t, false)
	q := newQueue(t, s, forge.Options{Kind: forge.Forgejo})
	waiting(t, q)
	jobs := `[{"id":1,"status":"waiting","runs_on":["linus"],"handle":"$(id)","html_url":"javascript:alert(1)","name":"x"},{"id":-1,"status":"waiting","runs_on":["linus"]},{"id":2,"status":"waiting","runs_on":["linus\n"]},{"id":3,"status":"running","runs_on":["linus"]},{"id":4,"attempt":2,"status":"waiting","runs_on":["linus"],"handle":"h","html_url":"` + s.URL + `/../x"}]`
	made := `{"id":5,"uuid":"a\nb","token":"c"}`
	s.Break(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, made)
			return
		}
		_, _ = io.WriteString(w, jobs)
	})
	works := waiting(t, q)
	want := []dispatch.Work{{ID: "1", Labels: []string{"linus"}, Title: "x", Of: "acme/app"}, {ID: "4-2", Labels: []string{"linus"}, Of: "acme/app", URL: s.URL + "/../x"}}
	if diff := cmp.Diff(want, works); diff != "" {
		t.Fatal(diff)
	}
	for _, w := range works {
		if h, err := q.Handover(t.Context(), dispatch.Session{Work: w, Name: "A"}); err == nil || !strings.Contains(err.Error(), "no handle") && !strings.Contains(err.Error(), "no runner's id, uuid and token") {
			t.Errorf("%+v: %s, %v", w, h.Secret, err)
		}
	}
}

func TestNew_Refuses(t *testing.T) {
	good := forge.Options{Kind: forge.Gitea, URL: "https://forge.example", Token: "x", Repository: "a/b", Labels: []string{"linus"}}
	for says, change := range map[string]func(o *forge.Options){
		"is not the URL of a forge":               func(o *forge.Options) { o.URL = "forge.example" },
		"not the URL of a forge: give one":        func(o *forge.Options) { o.URL = "https://user:word@forge.example" },
		"give one of: a repository":               func(o *forge.Options) { o.Organization = "a" },
		"is not a repository: give owner/name":    func(o *forge.Options) { o.Repository = "a/b/../c" },
		"is not an organization's name":           func(o *forge.Options) { o.Repository, o.Organization = "", "a/b" },
		"labels: give 1 to 50":                    func(o *forge.Options) { o.Labels = nil },
		`"a:b" is not a label`:                    func(o *forge.Options) { o.Labels = []string{"a:b"} },
		"there is no token":                       func(o *forge.Options) { o.Token = "" },
		"forgejo has no webhook for waiting jobs": func(o *forge.Options) { o.Kind, o.HookSecret = forge.Forgejo, "s" },
	} {
		o := good
		change(&o)
		if _, err := forge.New(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := forge.New(good); err != nil {
		t.Error(err)
	}
}

// A Gitea 1.24 tells of its jobs by webhooks alone: signed, once each, of ours.
func TestHook_TellsOfJobs(t *testing.T) {
	s := forgetest.New(t, true)
	s.Age("1.24.7")
	q := newQueue(t, s, forge.Options{Kind: forge.Gitea, HookSecret: "shared"})
	hooked := q.(dispatch.Hooked)
	hook := hooked.Hook()
	waiting(t, q)
	id, others := s.Add("test", "linus"), s.Add("another's", "docker")
	send := func(want int, r *http.Request) {
		t.Helper()
		w := httptest.NewRecorder()
		hook.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%d %s, want %d", w.Code, w.Body, want)
		}
	}
	send(401, s.Event(t, id, "queued", "1", "guessed"))
	unsigned := s.Event(t, id, "queued", "1", "shared")
	unsigned.Header.Del("X-Gitea-Signature")
	send(401, unsigned)
	if works := waiting(t, q); len(works) > 0 {
		t.Errorf("believed: %+v", works)
	}
	send(204, s.Event(t, id, "queued", "1", "shared"))
	send(204, s.Event(t, others, "queued", "2", "shared"))
	<-hooked.Woken()
	if works := waiting(t, q); len(works) != 1 || works[0].ID != fmt.Sprint(id) || works[0].Of != "acme/app" {
		t.Errorf("%+v", works)
	}
	send(204, s.Event(t, id, "in_progress", "3", "shared"))
	if works := waiting(t, q); len(works) > 0 {
		t.Errorf("%+v", works)
	}
	send(409, s.Event(t, id, "queued", "1", "shared")) // once more, from who has heard it
	other := s.Event(t, id, "queued", "4", "shared")
	other.Header.Set("X-Gitea-Event", "push")
	send(204, other)
	send(405, httptest.NewRequest(http.MethodGet, "/", nil))
	send(413, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 1<<20+1))))
	if works := waiting(t, q); len(works) > 0 {
		t.Errorf("%+v", works)
	}
}

// Gitea gives a runner the oldest job with its labels: the one it was made for waits for another.
func TestWaiting_AJobWhoseRunnerHasAnother(t *testing.T) {
	s := forgetest.New(t, true)
	q := newQueue(t, s, forge.Options{Kind: forge.Gitea})
	older, newer := s.Add("older", "linus"), s.Add("newer", "linus", "big")
	take := func(w dispatch.Work, want int64) dispatch.Session {
		t.Helper()
		session := dispatch.Session{Work: w, Name: "linus-dispatch-" + w.ID}
		h, err := q.Handover(t.Context(), session)
		if err != nil {
			t.Fatal(err)
		}
		var is struct{ UUID, Token string }
		req, _ := http.NewRequest(http.MethodPost, s.URL+"/api/actions/runner.v1.RunnerService/FetchTask", strings.NewReader("{}"))
		if err := json.Unmarshal(h.Secret, &is); err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Runner-Uuid", is.UUID)
		req.Header.Set("X-Runner-Token", is.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil || s.Job(want).By != session.Name {
			t.Fatalf("%v; the runner for %s has not job %d", err, w.ID, want)
		}
		_ = resp.Body.Close()
		return session
	}
	first := take(waiting(t, q)[1], older)
	next := newQueue(t, s, forge.Options{Kind: forge.Gitea}) // after a restart of the dispatcher
	next.(dispatch.Continued).Continue(first)
	works := waiting(t, next)
	for _, works := range [][]dispatch.Work{works, waiting(t, q)} {
		if len(works) != 1 || works[0].ID != fmt.Sprintf("%d-again1", newer) {
			t.Fatalf("%+v", works)
		}
	}
	take(works[0], newer)
	if works := waiting(t, q); len(works) > 0 {
		t.Errorf("%+v", works)
	}
	s.Add("one more", "linus")
	if err := q.Release(t.Context(), first, nil); err != nil {
		t.Error(err)
	}
	if works := waiting(t, q); len(works) != 1 || strings.Contains(works[0].ID, "again") {
		t.Errorf("%+v", works)
	}
}

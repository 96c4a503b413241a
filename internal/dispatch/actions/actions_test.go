package actions

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/dispatch"
	"linus/internal/githubtest"
	"linus/internal/job"
	"linus/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const web = githubtest.Owner + "/web"

// queue is one of the stand-in, with what it logs.
func queue(t *testing.T, g *githubtest.GitHub, o Options) (*Queue, *bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	o.API, o.Log = g.URL, slog.New(slog.NewTextHandler(&said, nil))
	if o.Key.App == nil {
		o.Key.Token = githubtest.Token
	}
	if o.Organization == "" && o.Repositories == nil {
		o.Repositories = []string{web}
	}
	made, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if h, is := made.(hooked); is {
		return h.Queue, &said
	}
	return made.(*Queue), &said
}

// look has all be looked at, and returns the IDs of what waits.
func look(t *testing.T, q *Queue) (ids []string) {
	t.Helper()
	q.looked = time.Now().Add(-time.Hour)
	works, err := q.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range works {
		ids = append(ids, w.ID)
	}
	return ids
}

func texts(ids ...int64) (all []string) {
	for _, id := range ids {
		all = append(all, strconv.FormatInt(id, 10))
	}
	return all
}

func TestWaiting_IsTheJobsForRunnersLikeOurs(t *testing.T) {
	g := githubtest.New(t)
	first := g.Queue(web, "self-hosted", "ubuntu-latest", "self-hosted,gpu", "Self-Hosted,Linux,X64,large", "linux,x64", "large")
	other := g.Queue(githubtest.Owner+"/other", "self-hosted")
	fork := g.QueueFork(web, "self-hosted")
	q, said := queue(t, g, Options{Labels: []string{"Large"}})
	want := texts(first[0], first[3], first[5])
	if diff := cmp.Diff(want, look(t, q)); diff != "" {
		t.Error(diff)
	}
	g.Start(first[0], "somebody") // the run is in progress now, and its other jobs wait still
	if diff := cmp.Diff(want[1:], look(t, q)); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(said.String(), "left alone"); n != 1 {
		t.Errorf("said %d times that a fork is left alone: %s", n, said)
	}
	works, err := q.Waiting(t.Context())
	if err != nil || works[0].Of != web || works[0].Title != "CI / build" || !strings.HasSuffix(works[0].URL, "/job/"+works[0].ID) || works[0].Since.IsZero() || works[0].Check() != nil {
		t.Errorf("%+v, %v", works, err)
	}

	q, _ = queue(t, g, Options{Forks: true})
	if diff := cmp.Diff(texts(fork[0]), look(t, q)); diff != "" {
		t.Error(diff)
	}
	q, _ = queue(t, g, Options{Organization: githubtest.Owner})
	if diff := cmp.Diff(texts(other[0]), look(t, q)); diff != "" {
		t.Error(diff)
	}
	if refused := g.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// What has not changed is not read again, and a look after a short while asks for nothing.
func TestWaiting_AsksForWhatHasChanged(t *testing.T) {
	g := githubtest.New(t)
	conditional, all := 0, 0
	g.Intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		all++
		if r.Header.Get("If-None-Match") != "" {
			conditional++
		}
		return false
	}
	ids := g.Queue(web, "self-hosted", "self-hosted")
	q, _ := queue(t, g, Options{})
	for range 3 {
		if diff := cmp.Diff(texts(ids...), look(t, q)); diff != "" {
			t.Error(diff)
		}
	}
	if all != 1+3*3 || conditional != 2*3 {
		t.Errorf("%d requests, %d conditional ones", all, conditional)
	}
	if _, err := q.Waiting(t.Context()); err != nil || all != 10 {
		t.Errorf("%v, %d requests", err, all)
	}
}

// The runner that was made for a job may have another one: the job waits then though it has a
// session.
func TestWaiting_AJobWhoseRunnerHasAnotherWaitsAgain(t *testing.T) {
	g := githubtest.New(t)
	ids := g.Queue(web, "self-hosted", "self-hosted")
	q, _ := queue(t, g, Options{})
	works, err := q.Waiting(t.Context())
	if err != nil || len(works) != 2 {
		t.Fatal(works, err)
	}
	s := dispatch.Session{Work: works[1], Name: "its-runner"}
	if _, err := q.Handover(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	g.Start(ids[0], s.Name)
	again := texts(ids[1])[0] + "-again"
	next, _ := queue(t, g, Options{}) // after a restart of the dispatcher
	next.Continue(s)
	for _, q := range []*Queue{q, next} {
		look(t, q)
		if diff := cmp.Diff([]string{again}, look(t, q)); diff != "" {
			t.Error(diff)
		}
	}
	w := works[1]
	w.ID = again
	if ok, err := q.Claim(t.Context(), w); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	g.Finish(ids[0])
	if err := q.Release(t.Context(), s, &job.Outcome{Status: job.Success}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts(ids[1]), look(t, q)); diff != "" {
		t.Error(diff)
	}
}

func TestClaim_IsOfWhatWaitsStill(t *testing.T) {
	g := githubtest.New(t)
	ids := g.Queue(web, "self-hosted", "self-hosted")
	q, _ := queue(t, g, Options{})
	works, err := q.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.Start(ids[0], "somebody")
	for i, want := range []bool{false, true} {
		if got, err := q.Claim(t.Context(), works[i]); got != want || err != nil {
			t.Errorf("job %d: %t, %v", i, got, err)
		}
	}
	if works, err := q.Waiting(t.Context()); len(works) != 1 || err != nil {
		t.Errorf("%v, %v", works, err)
	}
	if got, err := q.Claim(t.Context(), dispatch.Work{ID: "9", Of: web}); got || err != nil {
		t.Errorf("a job that is not there: %t, %v", got, err)
	}
}

func session(ids ...int64) dispatch.Session {
	return dispatch.Session{Name: "linus-dispatch-1", Work: dispatch.Work{ID: texts(ids...)[0], Of: web, Labels: []string{"self-hosted", "large"}}}
}

func TestHandover_RegistersARunnerAndReleaseTakesItBack(t *testing.T) {
	for _, tt := range []struct {
		name  string
		o     Options
		scope string
	}{
		{"of a repository", Options{}, "repos/" + web},
		{"of an organization", Options{Organization: githubtest.Owner, Group: "Builders"}, "orgs/" + githubtest.Owner},
		{"of a group by its ID", Options{Organization: githubtest.Owner, Group: "7"}, "orgs/" + githubtest.Owner},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := githubtest.New(t)
			ids := g.Queue(web, "self-hosted,large")
			q, _ := queue(t, g, tt.o)
			s := session(ids...)
			for range 2 { // the first one's answer may not have come
				h, err := q.Handover(t.Context(), s)
				if err != nil || len(h.Secret) < 20 || h.Tree != nil {
					t.Fatalf("%+v, %v", h, err)
				}
			}
			all := g.Runners()
			if len(all) != 1 || all[0].Name != s.Name || all[0].Scope != tt.scope || !slices.Equal(all[0].Labels, s.Work.Labels) {
				t.Errorf("%+v", all)
			}
			for range 2 {
				if err := q.Release(t.Context(), s, nil); err != nil {
					t.Error(err)
				}
			}
			if all := g.Runners(); len(all) != 0 {
				t.Errorf("left: %+v", all)
			}
			if refused := g.Refused(); len(refused) > 0 {
				t.Errorf("refused: %q", refused)
			}
		})
	}
}

// An answer in which there is no list of runners is not one that there are none.
func TestRelease_BelievesNoNonsense(t *testing.T) {
	g := githubtest.New(t)
	g.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"message":"hello"}`))
		return true
	}
	q, _ := queue(t, g, Options{})
	if err := q.Release(t.Context(), session(1), nil); err == nil || !strings.Contains(err.Error(), "has no runners") {
		t.Error(err)
	}
}

func TestRelease_LeavesARunnerThatHasAJob(t *testing.T) {
	g := githubtest.New(t)
	ids := g.Queue(web, "self-hosted")
	q, said := queue(t, g, Options{})
	s := session(ids...)
	h, err := q.Handover(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Runner(t.Context(), string(h.Secret), "take"); err != nil {
		t.Fatal(err)
	}
	if err := q.Release(t.Context(), s, &job.Outcome{Status: job.Failed}); err != nil || !strings.Contains(said.String(), "has a job") || len(g.Runners()) != 1 {
		t.Errorf("%v, %s, %+v", err, said, g.Runners())
	}
}

func TestErrors_SayWhatToDo(t *testing.T) {
	answer := func(path string, code int, message string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, path) {
				return false
			}
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"message":%q}`, message)
			return true
		}
	}
	waiting := func(ctx context.Context, q *Queue) error { _, err := q.Waiting(ctx); return err }
	handover := func(ctx context.Context, q *Queue) error { _, err := q.Handover(ctx, session(1)); return err }
	for _, tt := range []struct {
		name      string
		o         Options
		intercept func(http.ResponseWriter, *http.Request) bool
		do        func(context.Context, *Queue) error
		want      string
		fatal     bool
	}{
		{"a key that is not known", Options{}, answer("/runners", 401, "Bad credentials"), waiting, "Bad credentials; give another", true},
		{"a key without the right", Options{}, answer("/runners", 403, "Resource not accessible by personal access token"), waiting, "Administration, write", true},
		{"an organization's", Options{Organization: "acme"}, answer("/runners", 403, "Resource not accessible by integration"), waiting, "Self-hosted runners, write", true},
		{"no such repository", Options{}, answer("/runners", 404, "Not Found"), waiting, "there is no acme/web", true},
		{"workflows that are not seen", Options{}, answer("/runs", 403, "Resource not accessible by integration"), waiting, "right to read Actions", true},
		{"no such group", Options{Organization: "acme", Group: "none"}, nil, waiting, `no runner group "none"`, true},
		{"GitHub's own group", Options{Organization: "acme", Group: "2"}, nil, handover, `group "2" must be one that is yours`, true},
		{"a group's ID that is none", Options{Organization: "acme", Group: "99999"}, nil, handover, `no group "99999"`, true},
		{"labels that are none", Options{}, answer("/generate-jitconfig", 422, "Invalid request"), handover, "look at the labels of the job", false},
		{"a name that stays", Options{}, answer("/generate-jitconfig", 409, "Already exists"), handover, "does not go away", false},
		{"no configuration", Options{}, answer("/generate-jitconfig", 201, ""), handover, "no configuration", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := githubtest.New(t)
			g.Intercept = tt.intercept
			g.Queue(web, "self-hosted")
			q, _ := queue(t, g, tt.o)
			err := tt.do(t.Context(), q)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), githubtest.Token) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if _, is := errors.AsType[*dispatch.Fatal](err); is != tt.fatal {
				t.Errorf("fatal: %t", is)
			}
		})
	}
}

func TestNew_RefusesWhatCannotBe(t *testing.T) {
	key := Key{Token: "t"}
	for want, o := range map[string]Options{
		"is not the URL of an API":  {API: "ftp://x", Key: key, Organization: "acme"},
		"there is nothing to serve": {Key: key},
		"not an organization's":     {Key: key, Organization: "a/b"},
		"is not a repository":       {Key: key, Repositories: []string{"web"}},
		"../":                       {Key: key, Repositories: []string{"acme/../x"}},
		"acme/..":                   {Key: key, Repositories: []string{"acme/.."}},
		"has one owner":             {Key: key, Organization: "acme", Repositories: []string{"other/web"}},
		"only organizations have":   {Key: key, Repositories: []string{web}, Group: "builders"},
		"no key":                    {Repositories: []string{web}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if text := fmt.Sprintf("%v %+v", Options{Key: key}, key); strings.Contains(text, "{t ") {
		t.Error(text)
	}
}

func TestApp_GetsTokensAndReplacesThem(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"RSA PRIVATE KEY": x509.MarshalPKCS1PrivateKey(private), "PRIVATE KEY": pkcs8} {
		parsed, err := ParseAppKey(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
		if err != nil || !parsed.Equal(private) {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	for _, wrong := range []string{"ghp_token", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}))} {
		if _, err := ParseAppKey([]byte(wrong)); err == nil || !strings.Contains(err.Error(), "GitHub has generated") {
			t.Error(err)
		}
	}

	for _, installation := range []int64{0, githubtest.Installation} {
		g := githubtest.New(t)
		g.AppKey = &private.PublicKey
		ids := g.Queue(web, "self-hosted")
		q, _ := queue(t, g, Options{Organization: githubtest.Owner, Key: Key{App: &App{ID: githubtest.App, Key: private, Installation: installation}}})
		for range 2 {
			if diff := cmp.Diff(texts(ids...), look(t, q)); diff != "" {
				t.Error(diff)
			}
		}
		g.Revoke()
		if _, err := q.Handover(t.Context(), session(ids...)); err != nil {
			t.Error(err)
		}
		if n := len(g.Requests("access_tokens")); n != 2 {
			t.Errorf("%d tokens", n)
		}
		if n := len(g.Requests("/installation/repositories")); n != 2 {
			t.Errorf("%d lists of repositories", n)
		}
		if refused := g.Refused(); len(refused) > 0 {
			t.Errorf("refused: %q", refused)
		}
	}
	g := githubtest.New(t)
	g.AppKey = &private.PublicKey
	q, _ := queue(t, g, Options{Key: Key{App: &App{ID: githubtest.App + 1, Key: private}}})
	if _, err := q.Waiting(t.Context()); err == nil || !strings.Contains(err.Error(), "installation of App 4712") {
		t.Error(err)
	}
}

// A server that means ill, or is ill, costs a bounded time and memory, and no job of another.
func TestHostile_IsBounded(t *testing.T) {
	hundred := func(kind, item string) []byte {
		return fmt.Appendf(nil, `{"total_count":1000000,%q:[%s]}`, kind, strings.TrimSuffix(strings.Repeat(item+",", 100), ","))
	}
	run := `{"id":5,"repository":{"full_name":"acme/web"},"head_repository":{"full_name":"acme/web"}}`
	for _, tt := range []struct {
		name string
		path string
		code int
		body []byte
		want string // of the error
	}{
		{"nonsense", "/runs", 200, []byte(`<html>it is down</html>`), "not what the API says"},
		{"another shape", "/runs", 200, []byte(`{"workflow_runs":{"id":"x"}}`), "not what the API says"},
		{"nothing", "/runs", 200, nil, "not what the API says"},
		{"too much", "/runs", 200, bytes.Repeat([]byte(" "), dispatch.MaxAnswer+10), "longer than"},
		{"an error", "/runs", 502, bytes.Repeat([]byte("x\n"), 1<<20), "502 Bad Gateway"},
		{"endless runs", "/runs", 200, hundred("workflow_runs", `{"id":1}`), ""},
		{"endless jobs", "/jobs", 200, hundred("jobs", `{"id":3,"status":"queued","labels":["self-hosted"]}`), ""},
		{"runs of nobody", "/runs", 200, []byte(`{"workflow_runs":[{"id":-1},{"id":5,"head_repository":null}]}`), ""},
		{"labels", "/jobs", 200, fmt.Appendf(nil, `{"jobs":[{"id":3,"status":"queued","labels":[%s"self-hosted"]}]}`, strings.Repeat(`"linux",`, 5000)), ""},
		{"a title", "/jobs", 200, fmt.Appendf(nil, `{"jobs":[{"id":3,"status":"queued","labels":["self-hosted"],"name":"\u001b[2J%s"}]}`, strings.Repeat("x", 5000)), ""},
		{"many repositories", "/orgs/acme/repos", 200, []byte(`[` + strings.TrimSuffix(strings.Repeat(`{"full_name":"acme/../../x"},`, 100), ",") + `]`), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := githubtest.New(t)
			requests := 0
			g.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
				requests++
				if strings.HasSuffix(r.URL.Path, "/runs") && tt.path == "/jobs" {
					fmt.Fprintf(w, `{"workflow_runs":[%s]}`, run)
					return true
				}
				if !strings.HasSuffix(r.URL.Path, tt.path) {
					return false
				}
				w.WriteHeader(tt.code)
				_, _ = w.Write(tt.body)
				return true
			}
			o := Options{}
			if strings.HasPrefix(tt.path, "/orgs/") {
				o.Organization = githubtest.Owner
			}
			q, said := queue(t, g, o)
			works, err := q.Waiting(t.Context())
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if requests > 30 {
				t.Errorf("%d requests", requests)
			}
			for _, w := range works {
				if err := w.Presentable().Check(); err != nil {
					t.Error(err)
				}
			}
			if len(works) > 1 || strings.Contains(said.String(), "\x1b") {
				t.Errorf("%v; %s", works, said)
			}
		})
	}
}

// A repository that fails holds no other of its organization.
func TestWaiting_ARepositoryThatFailsHoldsNoOther(t *testing.T) {
	g := githubtest.New(t)
	bad := githubtest.Owner + "/bad"
	ids := g.Queue(web, "self-hosted")
	g.Queue(bad, "self-hosted")
	g.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/repos/"+bad) {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	}
	q, _ := queue(t, g, Options{Organization: githubtest.Owner})
	if _, err := q.Waiting(t.Context()); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("%v", err)
	}
	works, err := q.Waiting(t.Context())
	if err != nil || len(works) != 1 || works[0].ID != texts(ids...)[0] {
		t.Errorf("%v, %v", works, err)
	}
}

// Of an organization's repositories some may have no Actions, or not be the key's; all of them mean that
// the key is wrong.
func TestWaiting_OfAnOrganizationWhatTheKeySees(t *testing.T) {
	for _, tt := range []struct {
		name  string
		code  int
		hides func(path string) bool
		want  string
	}{
		{"one is not there", 404, func(path string) bool { return strings.HasPrefix(path, "/repos/acme/bad/") }, ""},
		{"one is not seen", 403, func(path string) bool { return strings.HasPrefix(path, "/repos/acme/bad/") }, ""},
		{"none is seen", 403, func(path string) bool { return strings.HasPrefix(path, "/repos/") }, "right to read Actions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := githubtest.New(t)
			ids := g.Queue(web, "self-hosted")
			g.Queue(githubtest.Owner+"/bad", "self-hosted")
			g.Intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if !tt.hides(r.URL.Path) {
					return false
				}
				w.WriteHeader(tt.code)
				return true
			}
			q, said := queue(t, g, Options{Organization: githubtest.Owner})
			works, err := q.Waiting(t.Context())
			_, fatal := errors.AsType[*dispatch.Fatal](err)
			if tt.want != "" && (!fatal || !strings.Contains(err.Error(), tt.want)) || tt.want == "" && (err != nil || len(works) != 1 || works[0].ID != texts(ids...)[0]) {
				t.Errorf("%v, %v", works, err)
			}
			q.looked = time.Now().Add(-time.Hour)
			_, _ = q.Waiting(t.Context()) // what it says counts
			if n := strings.Count(said.String(), "are not looked at"); n != 1 {
				t.Errorf("said %d times: %s", n, said)
			}
		})
	}
}

func FuzzPages(f *testing.F) {
	f.Add([]byte(`{"workflow_runs":[{"id":5,"repository":{"full_name":"acme/web"},"head_repository":{"full_name":"acme/web"}}]}`), []byte(`{"jobs":[{"id":3,"status":"queued","labels":["self-hosted"],"created_at":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`null`), []byte(`{"jobs":null}`))
	f.Fuzz(func(t *testing.T, runs, jobs []byte) {
		q := &Queue{
			Options: Options{Repositories: []string{web}, Key: Key{Token: "t"}, Log: slog.New(slog.DiscardHandler)},
			api: &api{url: "http://x", before: map[string]page{}, now: map[string]page{}, http: &http.Client{Transport: answers(func(r *http.Request) (int, http.Header, []byte) {
				if strings.HasSuffix(r.URL.Path, "/jobs") {
					return 200, nil, jobs
				}
				return 200, nil, runs
			})}},
			waiting: map[int64]waiting{}, said: map[string]bool{}, robbed: map[string]bool{}, checked: true,
		}
		works, _ := q.Waiting(t.Context())
		for _, w := range works {
			if w.Of != web || !json.Valid(jobs) {
				t.Errorf("%+v", w)
			}
		}
	})
}

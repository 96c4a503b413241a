package daemon

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/providertest"
	"linus/internal/view"
)

// While PostgreSQL is away, calls and callbacks are told to try again, the check of the host
// says why, and a task that ends meanwhile has ended as it did.
func TestEngine_WhileItsDatabaseIsAway(t *testing.T) {
	server := pgtest.Start(t)
	t.Setenv("LINUS_STATE_DIR", t.TempDir())
	t.Setenv("LINUS_DATABASE_URL", server.Database(t))
	t.Setenv("CALLBACK_PORT", "0")
	t.Setenv("CALLBACK_HOST", "127.0.0.1")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	fake, ends, started := providertest.NewFake(), make(chan struct{}), make(chan job.Payload, 1)
	fake.Set(providertest.Behaviour{
		Task:    func(job.Payload) providertest.Task { return providertest.Task{Until: ends, Stdout: []byte("whole\n")} },
		OnStart: func(_ job.Job, p job.Payload) { started <- p },
	})
	backend := func(config.Config, Installation, *slog.Logger) Backend {
		return Backend{Provider: fake, Guest: fake, Close: func() {}}
	}
	e, err := openEngine(t.Context(), Options{Config: c, Log: slog.New(slog.DiscardHandler), Backend: backend, Patience: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close(context.WithoutCancel(t.Context())) })
	if err := e.start(t.Context(), func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	api := control.API(e.guarded, control.APIOptions{Version: "v1"})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.ServeHTTP(w, r.WithContext(job.WithPrincipal(r.Context(), job.Operator())))
	}))
	t.Cleanup(s.Close)
	send := func(method, url, bearer, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+bearer)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // read
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	expect := func(what string, code int, text string, want int, says ...string) {
		t.Helper()
		for _, part := range says {
			if code != want || !strings.Contains(text, part) {
				t.Errorf("%s: %d %s, want %d with %q", what, code, text, want, part)
			}
		}
	}

	const manifest = `{"manifest":{"task":"true","agent_type":"script"}}`
	code, text := send("POST", s.URL+"/api/v1/jobs", "", manifest)
	var j job.Job
	if err := view.Unmarshal([]byte(text), &j); err != nil || code != http.StatusCreated {
		t.Fatal(code, text, err)
	}
	task := <-started
	heartbeat := "http://" + e.callbacks.Addr() + "/callback/" + j.ID + "/heartbeat"
	code, text = send("POST", heartbeat, task.Token, `{}`)
	expect("heartbeat", code, text, http.StatusOK, "received")

	server.Stop()
	const again = "the engine cannot do this at the moment, try again: "
	code, text = send("GET", s.URL+"/api/v1/jobs/"+j.ID, "", "")
	expect("job", code, text, http.StatusServiceUnavailable, again, "LINUS_DATABASE_URL")
	code, text = send("POST", s.URL+"/api/v1/jobs", "", manifest)
	expect("submit", code, text, http.StatusServiceUnavailable, again, "LINUS_DATABASE_URL")
	code, text = send("POST", heartbeat, task.Token, `{}`)
	expect("heartbeat", code, text, http.StatusServiceUnavailable, "try again")
	code, text = send("GET", s.URL+"/api/v1/host", "", "")
	expect("check of the host", code, text, http.StatusOK, `"ok":false`, `"name":"database"`, "see that the database runs")
	if strings.Contains(text, pgtest.Password) {
		t.Errorf("it tells the password: %s", text)
	}
	close(ends)
	complete := strings.Replace(heartbeat, "heartbeat", "complete", 1)
	report := `{"job_id":"` + j.ID + `","status":"success","exit_code":0,"duration_seconds":1}`
	code, text = send("POST", complete, task.Token, report)
	expect("report", code, text, http.StatusServiceUnavailable, "try again")

	server.Launch(t)
	code, text = send("POST", complete, task.Token, report) // as the job runner does until it is taken
	expect("report", code, text, http.StatusOK, "received")
	for deadline := time.After(time.Minute); !j.Status.Terminal(); {
		if code, text = send("GET", s.URL+"/api/v1/jobs/"+j.ID, "", ""); code == http.StatusOK {
			if err := view.Unmarshal([]byte(text), &j); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("a minute after the database is back: %d %s", code, text)
		}
	}
	if j.Status != job.Success || j.Stdout.Total != 6 || j.Stdout.Incomplete {
		t.Errorf("%s", text)
	}
	code, text = send("POST", s.URL+"/api/v1/jobs", "", manifest)
	expect("submit", code, text, http.StatusCreated, "id")
}

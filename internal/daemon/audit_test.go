package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/telemetry"
)

// The VMs that a job's phases create and destroy are on record as made with the token that
// submitted the job, and as destroyed with the one that ended it.
func TestAudit_NamesTheTokensOfAJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := config.Load(config.Sources{Flags: []config.Flag{
		{Flag: "--set", Name: "LINUS_STATE_DIR", Value: dir}, {Flag: "--set", Name: "CALLBACK_PORT", Value: "0"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	fake := providertest.NewFake()
	fake.Set(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		if p.Manifest.Task == "sleep" {
			return providertest.Task{Until: t.Context().Done()}
		}
		return providertest.Task{}
	}})
	e, err := openEngine(t.Context(), Options{Config: c, Log: slog.New(slog.DiscardHandler), Backend: func(config.Config, Installation, *slog.Logger) Backend {
		return Backend{Provider: fake, Guest: fake, Close: func() {}}
	}})
	if err == nil {
		err = e.start(t.Context(), func(error) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer e.close(t.Context()) //nolint:errcheck // the test is over

	ids := map[string]string{}
	as := func(name string, role job.Role) context.Context {
		made, err := e.CreateToken(t.Context(), job.TokenSpec{Name: name, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		ids[made.ID] = name + "'s token"
		p, err := e.Authenticate(t.Context(), made.Secret)
		if err != nil {
			t.Fatal(err)
		}
		return job.WithClient(job.WithPrincipal(t.Context(), p), "api")
	}
	alice, boss := as("alice", job.RoleRun), as("boss", job.RoleAdmin)
	begin := func(task string, is func(job.Job) bool) string {
		j, err := e.guarded.Submit(alice, job.Submission{Client: "api", Manifest: job.Manifest{Task: task, AgentType: job.AgentScript}})
		if err != nil {
			t.Fatal(err)
		}
		awaitJob(t, e, j.ID, is)
		return j.ID
	}
	begin("true", job.Job.Done)
	sleeping := begin("sleep", job.Job.Begun)
	if err := e.guarded.Cancel(boss, sleeping); err != nil {
		t.Fatal(err)
	}
	awaitJob(t, e, sleeping, job.Job.Done)

	data, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var r telemetry.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Result == telemetry.ResultOK && r.Job != "" {
			got = append(got, fmt.Sprintf("%s for %s: %s, %s, %s", r.Action, r.For, r.Who, r.Principal, ids[r.Token]))
		}
	}
	want := []string{
		"create_vm for api of alice: engine, alice, alice's token",
		"destroy_vm for api of alice: engine, alice, alice's token",
		"create_vm for api of alice: engine, alice, alice's token",
		"destroy_vm for api of alice: api, boss, boss's token",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// awaitJob waits until a job is as is says.
func awaitJob(t *testing.T, e *engine, id string, is func(job.Job) bool) {
	t.Helper()
	operator := job.WithPrincipal(t.Context(), job.Operator())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		j, err := e.guarded.Job(operator, id)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", j, err)
		}
		if is(j) {
			return
		}
	}
}

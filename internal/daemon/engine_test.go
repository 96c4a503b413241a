package daemon

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// Stored jobs that are unfinished, and VMs that will expire, are work, whether the
// executor has seen them yet or not.
func TestFree_CountsWhatIsStored(t *testing.T) {
	const id = "01a200c7-9a69-7646-bc13-40e55ff07307"
	v := func(expires time.Time) *vm.VM {
		return &vm.VM{ID: 100, Name: "dev", Job: id, State: vm.Created, Kept: true, ExpiresAt: expires}
	}
	unwanted := v(time.Time{})
	unwanted.Unwanted = true
	for _, tt := range []struct {
		name string
		job  *job.Job
		want bool
	}{
		{"nothing", nil, true},
		{"an unfinished job", &job.Job{ID: id, Kind: job.KindTask, Status: job.Running}, false},
		{"a persistent VM", &job.Job{ID: id, Kind: job.KindTask, Status: job.Success, Manifest: job.Manifest{Lifecycle: vm.Persistent}, VM: v(time.Time{})}, true},
		{"a persistent VM that nobody wants", &job.Job{ID: id, Kind: job.KindTask, Status: job.Success, Manifest: job.Manifest{Lifecycle: vm.Persistent}, VM: unwanted}, false},
		{"a persistent VM that will expire", &job.Job{ID: id, Kind: job.KindTask, Status: job.Success, Manifest: job.Manifest{Lifecycle: vm.Persistent}, VM: v(time.Now().Add(time.Hour))}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine(t)
			t.Cleanup(func() { _ = e.close(t.Context()) })
			if tt.job != nil {
				if _, _, err := e.store.Insert(t.Context(), *tt.job, "", job.Limits{}); err != nil {
					t.Fatal(err)
				}
			}
			looked, end := context.WithCancel(t.Context())
			end()
			e.hostTests.Tend(looked)
			if got := e.free(t.Context()); got != tt.want {
				t.Errorf("free() = %v", got)
			}
		})
	}
}

// newEngine opens an engine, not started yet, whose VMs are a fake's.
func newEngine(t *testing.T) *engine {
	t.Helper()
	t.Setenv("LINUS_STATE_DIR", t.TempDir())
	t.Setenv("CALLBACK_PORT", "0")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	fake := providertest.NewFake()
	backend := func(config.Config, Installation, *slog.Logger) Backend {
		return Backend{Provider: fake, Guest: fake, Close: func() {}}
	}
	e, err := openEngine(t.Context(), Options{Config: c, Log: slog.New(slog.DiscardHandler), Backend: backend})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/sshtest"
	"linus/internal/store"
	"linus/internal/storetest"
	"linus/internal/vm"
	"linus/internal/wiretest"
)

// oneVM is a provider all of whose VMs are the rig's.
type oneVM struct {
	*providertest.Fake
	r *rig
}

func (p oneVM) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	v, err := p.Fake.Create(ctx, spec, progress)
	v.IP, v.User, v.HostKey = p.r.vm.IP, p.r.vm.User, p.r.vm.HostKey
	return v, err
}

// countedFromWarm counts round trips from when the VM is warm.
type countedFromWarm struct {
	*guest.Guest
	wire *wiretest.Wire
}

func (g countedFromWarm) Warm(ctx context.Context, j job.Job) error {
	err := g.Guest.Warm(ctx, j)
	g.wire.RoundTrips()
	return err
}

// engine is an executor whose jobs run in the rig's VM.
func (r *rig) engine(w *wiretest.Wire) *executor.Executor {
	r.t.Helper()
	s, err := storetest.Open(r.t.Context(), store.Options{Dir: r.t.TempDir(), MaxOutput: 1 << 20})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	host := oneVM{providertest.NewFake(), r}
	guest, owner, changes := countedFromWarm{r.Guest, w}, uuid.NewString(), &job.Changes{}
	s.Changes = changes
	defaults := job.Defaults{VMTemplate: providertest.FakeTemplate, Timeout: 60, CPU: 1, Memory: "1G", Disk: "10G"}
	vms := fleet.New(fleet.Options{
		Store: s, Jobs: s, Provider: host, Guest: guest, Owner: owner, Defaults: defaults, Changes: changes,
	})
	e := executor.New(executor.Options{
		Stores: executor.StoresOf(s), Provider: host, Fleet: vms, Runner: guest,
		CallbackURL: func(context.Context) (string, error) { return nowhere, nil },
		Defaults:    defaults, Changes: changes,
		MaxOutput: 1 << 20, Log: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err := e.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
		endRunner(r.t, r.root)
	})
	return e
}

// done returns the job when nothing is left to do for it.
func done(t *testing.T, e *executor.Executor, s job.Submission) job.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var j job.Job
	var v job.VMInfo
	var err error
	if s.Manifest.VMName == "" {
		j, err = e.Submit(ctx, s)
	} else {
		v, err = e.CreateVM(ctx, s)
		j.ID = v.Job
	}
	for after := int64(0); err == nil && !j.Done(); {
		var events []job.Event
		events, j, err = e.Watch(ctx, j.ID, after)
		if len(events) > 0 {
			after = events[len(events)-1].Seq
		}
		if ctx.Err() != nil {
			t.Fatalf("the job does not end: %+v", j)
		}
	}
	if err != nil || j.Outcome == nil {
		t.Fatalf("%+v, %v", j, err)
	}
	return j
}

// A whole small job takes few round trips in its VM, once that is warm, and one command; in a
// persistent VM it connects first, and another command cleans up.
func TestJob_TakesFewRoundTrips(t *testing.T) {
	for name, shared := range map[string]bool{"in a VM of its own": false, "in a persistent VM": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 5 { // a task that takes seconds is looked at by further commands
				began := time.Now()
				if takesFewRoundTrips(t, shared) {
					return
				}
				if time.Since(began) < 2*time.Second {
					t.FailNow()
				}
			}
			t.Skip("this machine is too slow to tell")
		})
	}
}

// takesFewRoundTrips runs a small job, and reports whether it took few.
func takesFewRoundTrips(t *testing.T, shared bool) bool {
	t.Helper()
	r := newVM(t, sshtest.Options{})
	w := r.wired(0)
	e := r.engine(w)
	m := job.Manifest{Task: "echo out; echo err >&2; exit 3", AgentType: job.AgentScript}
	commands, most := 1, 8
	if shared {
		vm := done(t, e, job.Submission{Manifest: job.Manifest{VMName: "dev"}})
		if vm.Outcome.Status != job.Success {
			t.Fatalf("%+v", vm.Outcome)
		}
		m.VM, commands, most = "dev", 2, 16
		w.RoundTrips()
	}
	j := done(t, e, job.Submission{Manifest: m})
	got, err := e.Result(t.Context(), j.ID)
	if err != nil || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" || got.ExitCode == nil || *got.ExitCode != 3 || got.StdoutInfo.Incomplete {
		t.Fatalf("%+v, %v", got, err)
	}
	trips, execs := w.RoundTrips(), r.inside.Stats().Execs
	t.Logf("%d round trips, want at most %d; %d commands, want %d", trips, most, execs, commands)
	return trips <= most && execs == commands
}

// BenchmarkLaunch is the time from a job at hand to its first output, its VM being warm,
// at round trips of that many milliseconds.
func BenchmarkLaunch(b *testing.B) {
	for _, trip := range []time.Duration{0, 1, 50, 200} {
		b.Run(fmt.Sprintf("rtt-%dms", trip), func(b *testing.B) {
			r := newVM(b, sshtest.Options{})
			w := r.wired(trip * time.Millisecond)
			trips := 0
			for b.Loop() {
				b.StopTimer()
				j := job.Job{ID: uuid.NewString(), VM: &r.vm}
				if err := r.Warm(b.Context(), j); err != nil {
					b.Fatal(err)
				}
				p := payload()
				p.Manifest.Task = "echo out"
				w.RoundTrips()
				b.StartTimer()
				err := r.Push(b.Context(), j, p)
				if err == nil {
					_, err = r.Start(b.Context(), j)
				}
				if err == nil {
					err = r.Follow(b.Context(), j, func(job.Piece) error { return io.EOF })
				}
				if !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				b.StopTimer()
				trips += w.RoundTrips()
				if err := r.Stop(b.Context(), j, "KILL"); err != nil {
					b.Fatal(err)
				}
				r.Forget(j)
				endRunner(b, r.root)
				b.StartTimer()
			}
			b.ReportMetric(float64(trips)/float64(b.N), "trips/op")
		})
	}
}

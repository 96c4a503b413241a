package providertest

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
)

func TestFake_IsAProvider(t *testing.T) {
	f := NewFake()
	owner := uuid.NewString()
	Run(t, Config{
		New:  func(*testing.T) job.Provider { return f },
		Spec: func() job.VMSpec { return NewSpec(owner, FakeTemplate) },
		Foreign: func(*testing.T) (int, string, func(*testing.T)) {
			id := f.Plant("database")
			return id, "database", func(t *testing.T) {
				if !f.Has(id) {
					t.Error("the foreign VM is gone")
				}
			}
		},
	})
	if leaks := f.Leaks(); len(leaks) != 0 {
		t.Errorf("leaks: %v", leaks)
	}
}

func TestFake_RunsATask(t *testing.T) {
	f := NewFake()
	hold := make(chan struct{})
	f.Set(Behaviour{Task: func(p job.Payload) Task {
		return Task{Stdout: []byte("did " + p.Manifest.Task), Stderr: []byte("!"), ExitCode: 3, Until: hold}
	}})
	vm, err := f.Create(t.Context(), NewSpec("o", FakeTemplate), func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	j := job.Job{ID: vm.Job, VM: &vm}
	if s, err := f.Probe(t.Context(), j); err != nil || s.Started {
		t.Errorf("before the push: %+v, %v", s, err)
	}
	if _, err := f.Start(t.Context(), j); err == nil {
		t.Error("started what was never pushed")
	}
	if err := f.Push(t.Context(), j, job.Payload{Manifest: job.Manifest{Task: "it", Timeout: 60}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := f.Start(t.Context(), j); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := f.Probe(t.Context(), j); err != nil || !s.Started || s.Exited || s.StdoutBytes != 6 {
		t.Errorf("running: %+v, %v", s, err)
	}
	close(hold)
	if s, err := f.Probe(t.Context(), j); err != nil || !s.Exited || s.ExitCode != 3 || s.Reason != "exit" {
		t.Errorf("ended: %+v, %v", s, err)
	}
	if out, err := f.ReadOutput(t.Context(), j, job.Stdout, 4, 100); err != nil || !bytes.Equal(out, []byte("it")) {
		t.Errorf("output: %q, %v", out, err)
	}
	if len(f.Leaks()) != 2 {
		t.Errorf("leaks = %v, want the VM and the connections", f.Leaks())
	}
}

func TestFake_StopsAndTimesOut(t *testing.T) {
	synctest.Test(t, stopsAndTimesOut)
}

func stopsAndTimesOut(t *testing.T) {
	f := NewFake()
	f.Set(Behaviour{Task: func(job.Payload) Task { return Task{For: time.Hour} }})
	start := func(timeout int) job.Job {
		vm, err := f.Create(t.Context(), NewSpec("o", FakeTemplate), func(job.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Push(t.Context(), job.Job{ID: vm.Job, VM: &vm}, job.Payload{Manifest: job.Manifest{Timeout: timeout}}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Start(t.Context(), job.Job{ID: vm.Job, VM: &vm}); err != nil {
			t.Fatal(err)
		}
		return job.Job{ID: vm.Job, VM: &vm}
	}
	stopped, late := start(60), start(1)
	if err := f.Stop(t.Context(), stopped, "TERM"); err != nil {
		t.Fatal(err)
	}
	if s, err := f.Probe(t.Context(), stopped); err != nil || s.Reason != "stopped" {
		t.Errorf("stopped: %+v, %v", s, err)
	}
	time.Sleep(2 * time.Second)
	if s, err := f.Probe(t.Context(), late); err != nil || s.Reason != "timeout" {
		t.Errorf("late: %+v, %v", s, err)
	}
}

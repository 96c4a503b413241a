package executor_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// written writes a file in a VM, reads it again, and returns the first error.
func (r *rig) written(ctx context.Context, ref string) error {
	r.t.Helper()
	e := executor.Guarded(r.Executor)
	if _, err := e.WriteFile(ctx, job.FileWrite{VM: ref, Path: "/d/f", Data: []byte("of " + ref)}); err != nil {
		return err
	}
	chunk, err := e.ReadFile(ctx, job.FileRange{VM: ref, Path: "/d/f"})
	if err == nil && string(chunk.Data) != "of "+ref {
		r.t.Errorf("%s has %q", ref, chunk.Data)
	}
	return err
}

func TestFiles_OfAPersistentVM(t *testing.T) {
	r := newRig(t, 2)
	admin := job.WithPrincipal(t.Context(), job.Operator())
	m := r.makeVM("dev")
	for _, ref := range []string{"dev", "100", m.ID} {
		if err := r.written(admin, ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := r.written(as(t, "bob", job.RoleRun), "dev"); err == nil {
		t.Error("somebody else's VM was written to")
	}
	page, err := r.ListFiles(t.Context(), job.FileList{VM: "dev", Path: "/d"})
	if err != nil || page.Total != 1 {
		t.Errorf("%+v, %v", page, err)
	}
	for says, call := range map[string]func() error{
		`vm: "none" is not a VM`: func() error { return r.written(admin, "none") },
		"path: is required":      func() error { _, err := r.ReadFile(admin, job.FileRange{VM: "dev"}); return err },
		"limit: 5000000 is out": func() error {
			_, err := r.ReadFile(admin, job.FileRange{VM: "dev", Path: "/f", Limit: 5e6})
			return err
		},
		"offset: -1 is out": func() error {
			_, err := r.ReadFile(admin, job.FileRange{VM: "dev", Path: "/f", Offset: -1})
			return err
		},
		"limit: 1001 is out": func() error { _, err := r.ListFiles(admin, job.FileList{VM: "dev", Limit: 1001}); return err },
		"data: 10485761 is out": func() error {
			_, err := r.WriteFile(admin, job.FileWrite{VM: "dev", Path: "/f", Data: make([]byte, job.MaxFileWrite+1)})
			return err
		},
		`mode: "7777" is not`: func() error {
			_, err := r.WriteFile(admin, job.FileWrite{VM: "dev", Path: "/f", Mode: "7777"})
			return err
		},
		"old: is required": func() error { _, err := r.EditFile(admin, job.FileEdit{VM: "dev", Path: "/f", New: "x"}); return err },
		"new: is the same": func() error {
			_, err := r.EditFile(admin, job.FileEdit{VM: "dev", Path: "/f", Old: "x", New: "x"})
			return err
		},
		`path: "/none" does`: func() error { _, err := r.ReadTree(admin, job.FileRef{VM: "dev", Path: "/none"}); return err },
		`path: "/d/f" is not a directory`: func() error {
			return r.WriteTree(admin, job.FileRef{VM: "dev", Path: "/d/f"}, io.Reader(strings.NewReader("")))
		},
	} {
		refusal(t, call(), says)
	}
	if _, err := r.StopVM(admin, "dev"); err != nil {
		t.Fatal(err)
	}
	refusal(t, r.written(admin, "dev"), `"dev" (VM 100) is stopped; start it first`)
	if _, err := r.DestroyVM(admin, "dev"); err != nil {
		t.Fatal(err)
	}
	r.until(m.ID, func(j job.Job) bool { return j.VM.State == vm.Destroyed })
	refusal(t, r.written(admin, m.ID), "is gone")
}

// The VM of a job takes files while its task runs, by the job's ID and by the VM's name.
func TestFiles_OfARunningJob(t *testing.T) {
	r := newRig(t, 3)
	r.makeVM("dev")
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	alice := as(t, "alice", job.RoleRun)
	running := func(j job.Job) bool { return j.Status == job.Running }
	own, shared := r.submitAs(alice), r.submit(sharing("dev"))
	name := r.until(own, running).VM.Name
	r.until(shared, running)
	for _, ref := range []string{own, name} {
		if err := r.written(alice, ref); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := r.written(job.WithPrincipal(t.Context(), job.Operator()), shared); err != nil {
		t.Error(err)
	}
	for _, ref := range []string{shared, "dev"} {
		refusal(t, r.written(alice, ref), `"`+ref+`" is not a VM of ours`)
	}
	close(hold)
	r.wait(own)
	r.wait(shared)
	refusal(t, r.written(alice, own), "is gone")
	refusal(t, r.written(job.WithPrincipal(t.Context(), job.Operator()), shared), "is a job that has ended")
}

// A pool's VM takes files only of the job that has it.
func TestFiles_OfAPoolsVM(t *testing.T) {
	r := newRig(t, 2)
	r.newPool(1)
	admin := job.WithPrincipal(t.Context(), job.Operator())
	member := r.untilPool("member", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 1 }).Members[0]
	refusal(t, r.written(admin, member.VM.Name), "is a VM of pool p that no job has")
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	alice := as(t, "alice", job.RoleRun)
	id := r.submitAs(alice)
	if j := r.until(id, func(j job.Job) bool { return j.Status == job.Running }); !j.Claims() {
		t.Fatalf("the job has no VM of the pool: %+v", j.VM)
	}
	if err := r.written(alice, id); err != nil {
		t.Error(err)
	}
	if err := r.written(as(t, "bob", job.RoleRun), id); err == nil {
		t.Error("somebody else's job was written to")
	}
	close(hold)
	r.wait(id)
	if err := r.written(alice, id); err == nil {
		t.Error("a job that has ended was written to")
	}
}

func TestFiles_OfAVMThatIsWorkedOn(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	began := make(chan struct{}, 1)
	until := r.slow(func() { began <- struct{}{} })
	ended := make(chan error, 1)
	go func() { ended <- r.works()["stopped"]() }()
	<-began
	refusal(t, r.written(job.WithPrincipal(t.Context(), job.Operator()), "dev"), `"dev" is being stopped; try again when it is done`)
	close(until)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What the policy refuses is not written, whichever verb would.
func TestFiles_AsThePolicySays(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	r.stop()
	r.vms.AllowFile = func(path string, tree bool) error {
		if path == "/tmp/f" && !tree {
			return nil
		}
		return &job.FieldError{Field: "path", Problem: "is nothing to write", Remedy: "r"}
	}
	r.restart()
	ctx := t.Context()
	if _, err := r.WriteFile(ctx, job.FileWrite{VM: "dev", Path: "/tmp/f", Data: []byte("x")}); err != nil {
		t.Error(err)
	}
	_, err := r.WriteFile(ctx, job.FileWrite{VM: "dev", Path: "/bin/f", Data: []byte("x")})
	refusal(t, err, "is nothing to write")
	_, err = r.EditFile(ctx, job.FileEdit{VM: "dev", Path: "/bin/f", Old: "x", New: "y"})
	refusal(t, err, "is nothing to write")
	refusal(t, r.WriteTree(ctx, job.FileRef{VM: "dev", Path: "/tmp"}, strings.NewReader("")), "is nothing to write")
	if _, err := r.ReadFile(ctx, job.FileRange{VM: "dev", Path: "/tmp/f"}); err != nil {
		t.Error(err)
	}
	_, err = r.LoginVM(ctx, "dev", "a key")
	refusal(t, err, "allows no logins, because ALLOWED_COMMANDS is set and a login's shell runs any command")
}

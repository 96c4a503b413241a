package job_test

import (
	"context"
	"strings"
	"testing"

	"linus/internal/job"
)

func TestWords_TakeThePlaceOfTheirCodes(t *testing.T) {
	w := job.Words{job.ListVMs: "list_vms", job.BuildTemplate: "build", job.TemplateName: "--name"}
	text := string(job.ListVMs) + " and " + string(job.BuildTemplate) + " with " + string(job.TemplateName) + ", not {this}"
	if got, want := w.In(text), "list_vms and build with --name, not {this}"; got != want {
		t.Errorf("In(%q) = %q, want %q", text, got, want)
	}
	for i, a := range job.Actions {
		for _, b := range job.Actions[i+1:] {
			if strings.Contains(string(a), string(b)) || strings.Contains(string(b), string(a)) {
				t.Errorf("%s is in %s, or the other way round", a, b)
			}
		}
	}
}

// telling is an engine whose texts all name an action.
type telling struct{ job.Engine }

var told = "see " + string(job.ListVMs)

var (
	outcome = job.Outcome{Error: told}
	itsVM   = job.VM{Reason: told, Remedy: told}
	itsJob  = job.Job{Outcome: &outcome, VM: &itsVM, Manifest: job.Manifest{Task: told}}
	checks  = []job.Check{{Text: told, Remedy: told}}
	events  = []job.Event{{Text: told}}
	vms     = []job.VMInfo{{VM: itsVM}}
	pools   = []job.PoolInfo{{State: told, Pool: job.Pool{Failure: &job.PoolFailure{Error: told}}, Members: []job.MemberInfo{{Why: told}}}}
)

func (telling) Submit(context.Context, job.Submission) (job.Job, error) { return itsJob, nil }
func (telling) Job(context.Context, string) (job.Job, error)            { return itsJob, nil }
func (telling) Result(context.Context, string) (job.Result, error) {
	return job.Result{Error: told, Stdout: []byte(told)}, nil
}
func (telling) Watch(context.Context, string, int64) ([]job.Event, job.Job, error) {
	return events, itsJob, nil
}
func (telling) VMs(context.Context) ([]job.VMInfo, error)             { return vms, nil }
func (telling) VM(context.Context, string) (job.VMInfo, error)        { return vms[0], nil }
func (telling) StartVM(context.Context, string) (job.VMInfo, error)   { return vms[0], nil }
func (telling) StopVM(context.Context, string) (job.VMInfo, error)    { return vms[0], nil }
func (telling) DestroyVM(context.Context, string) (job.VMInfo, error) { return vms[0], nil }
func (telling) ForgetVM(context.Context, string) (job.VMInfo, error)  { return vms[0], nil }
func (telling) Pools(context.Context) ([]job.PoolInfo, error)         { return pools, nil }
func (telling) Pool(context.Context, string) (job.PoolInfo, error)    { return pools[0], nil }
func (telling) CreatePool(context.Context, job.Pool) (job.PoolInfo, error) {
	return pools[0], nil
}
func (telling) ResizePool(context.Context, string, job.PoolSize) (job.PoolInfo, error) {
	return pools[0], nil
}
func (telling) RemovePool(context.Context, string) (job.PoolInfo, error) { return pools[0], nil }
func (telling) CheckHost(context.Context) (job.HostReport, error) {
	return job.HostReport{Checks: checks}, nil
}
func (telling) RevertVM(_ context.Context, _, _ string) (job.VMInfo, error) { return vms[0], nil }
func (telling) SuspendVM(context.Context, string) (job.VMInfo, error)       { return vms[0], nil }
func (telling) ResumeVM(context.Context, string) (job.VMInfo, error)        { return vms[0], nil }
func (telling) SnapshotVM(_ context.Context, _, _ string, _ bool) (job.VMInfo, error) {
	return vms[0], nil
}

func TestWorded_ChangesTextsForPeopleOnly(t *testing.T) {
	e, ctx := job.Phrased(telling{}, job.Words{job.ListVMs: "list_vms"}), t.Context()
	var got []string
	add := func(j job.Job) {
		got = append(got, j.Outcome.Error, j.VM.Reason, j.VM.Remedy)
		if j.Manifest.Task != told {
			t.Errorf("the task has become %q", j.Manifest.Task)
		}
	}
	submitted, _ := e.Submit(ctx, job.Submission{})
	add(submitted)
	j, _ := e.Job(ctx, "")
	add(j)
	r, _ := e.Result(ctx, "")
	if got = append(got, r.Error); string(r.Stdout) != told {
		t.Errorf("the output has become %q", r.Stdout)
	}
	all, watched, _ := e.Watch(ctx, "", 0)
	add(watched)
	got = append(got, all[0].Text)
	list, _ := e.VMs(ctx)
	for _, call := range []func(context.Context, string) (job.VMInfo, error){
		e.VM, e.StartVM, e.StopVM, e.DestroyVM, e.ForgetVM, e.SuspendVM, e.ResumeVM,
		func(ctx context.Context, ref string) (job.VMInfo, error) { return e.SnapshotVM(ctx, ref, "", false) },
		func(ctx context.Context, ref string) (job.VMInfo, error) { return e.RevertVM(ctx, ref, "") },
	} {
		v, _ := call(ctx, "")
		list = append(list, v)
	}
	for _, v := range list {
		got = append(got, v.Reason, v.Remedy)
	}
	shown, _ := e.Pools(ctx)
	for _, call := range []func() (job.PoolInfo, error){
		func() (job.PoolInfo, error) { return e.Pool(ctx, "") },
		func() (job.PoolInfo, error) { return e.CreatePool(ctx, job.Pool{}) },
		func() (job.PoolInfo, error) { return e.ResizePool(ctx, "", job.PoolSize{}) },
		func() (job.PoolInfo, error) { return e.RemovePool(ctx, "") },
	} {
		p, _ := call()
		shown = append(shown, p)
	}
	for _, p := range shown {
		got = append(got, p.State, p.Failure.Error, p.Members[0].Why)
	}
	report, _ := e.CheckHost(ctx)
	got = append(got, report.Checks[0].Text, report.Checks[0].Remedy)
	for i, text := range got {
		if text != "see list_vms" {
			t.Errorf("text %d is %q", i, text)
		}
	}
	if outcome.Error != told || itsVM.Reason != told || checks[0].Text != told || events[0].Text != told || vms[0].Remedy != told ||
		pools[0].State != told || pools[0].Failure.Error != told || pools[0].Members[0].Why != told {
		t.Error("what the engine holds was changed")
	}
}

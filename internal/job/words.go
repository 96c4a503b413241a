package job

import (
	"context"
	"slices"
	"strings"
)

// Action is something a text for people asks them to do, for which each face
// has another name: a tool, a command, a page. The text contains the code; a
// face replaces it with its own name.
type Action string

// The actions.
const (
	ListVMs       Action = "{vm list}"
	ListPools     Action = "{pool list}"
	ShowJob       Action = "{job status}"
	DestroyVM     Action = "{vm destroy}" // followed by the VM's name
	ForgetVM      Action = "{vm forget}"  // followed by the VM's name
	BuildTemplate Action = "{template build}"
	ListTemplates Action = "{template list}"
	TrustHost     Action = "{host trust}"

	// What BuildTemplate is given.
	TemplateName   Action = "{template build name}"
	TemplateOS     Action = "{template build os}"
	TemplateImage  Action = "{template build image}"
	TemplateSHA256 Action = "{template build sha256}"
	TemplateParts  Action = "{template build bootstrap}"
)

// Actions are all of them.
var Actions = []Action{
	ListVMs, ListPools, ShowJob, DestroyVM, ForgetVM, BuildTemplate, ListTemplates, TrustHost,
	TemplateName, TemplateOS, TemplateImage, TemplateSHA256, TemplateParts,
}

// Words are a face's names for all the actions.
type Words map[Action]string

// In returns a text with the actions in it replaced by the face's words.
func (w Words) In(text string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	for action, name := range w {
		text = strings.ReplaceAll(text, string(action), name)
	}
	return text
}

// Phrased returns e with the texts of jobs, VMs, events and reports in a face's
// words. Errors stay as they are: a face phrases them when it prints them.
func Phrased(e Engine, w Words) Engine { return phrased{e, w} }

type phrased struct {
	Engine
	words Words
}

func (e phrased) Submit(ctx context.Context, s Submission) (Job, error) {
	return e.job(e.Engine.Submit(ctx, s))
}

func (e phrased) Job(ctx context.Context, id string) (Job, error) { return e.job(e.Engine.Job(ctx, id)) }

func (e phrased) Result(ctx context.Context, id string) (Result, error) {
	r, err := e.Engine.Result(ctx, id)
	r.Error = e.words.In(r.Error)
	return r, err
}

func (e phrased) Watch(ctx context.Context, id string, after int64) ([]Event, Job, error) {
	events, j, err := e.Engine.Watch(ctx, id, after)
	events = slices.Clone(events)
	for i := range events {
		events[i].Text = e.words.In(events[i].Text)
	}
	j, err = e.job(j, err)
	return events, j, err
}

func (e phrased) VMs(ctx context.Context) ([]VMInfo, error) {
	all, err := e.Engine.VMs(ctx)
	all = slices.Clone(all)
	for i, v := range all {
		all[i], _ = e.vm(v, nil)
	}
	return all, err
}

func (e phrased) VM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.VM(ctx, ref))
}

func (e phrased) StartVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.StartVM(ctx, ref))
}

func (e phrased) StopVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.StopVM(ctx, ref))
}

func (e phrased) DestroyVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.DestroyVM(ctx, ref))
}

func (e phrased) ForgetVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.ForgetVM(ctx, ref))
}

func (e phrased) SuspendVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.SuspendVM(ctx, ref))
}

func (e phrased) ResumeVM(ctx context.Context, ref string) (VMInfo, error) {
	return e.vm(e.Engine.ResumeVM(ctx, ref))
}

func (e phrased) SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error) {
	return e.vm(e.Engine.SnapshotVM(ctx, ref, snapshot, memory))
}

func (e phrased) RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error) {
	return e.vm(e.Engine.RevertVM(ctx, ref, snapshot))
}

func (e phrased) Pools(ctx context.Context) ([]PoolInfo, error) {
	all, err := e.Engine.Pools(ctx)
	all = slices.Clone(all)
	for i, p := range all {
		all[i], _ = e.pool(p, nil)
	}
	return all, err
}

func (e phrased) Pool(ctx context.Context, name string) (PoolInfo, error) {
	return e.pool(e.Engine.Pool(ctx, name))
}

func (e phrased) CreatePool(ctx context.Context, p Pool) (PoolInfo, error) {
	return e.pool(e.Engine.CreatePool(ctx, p))
}

func (e phrased) ResizePool(ctx context.Context, name string, size PoolSize) (PoolInfo, error) {
	return e.pool(e.Engine.ResizePool(ctx, name, size))
}

func (e phrased) RemovePool(ctx context.Context, name string) (PoolInfo, error) {
	return e.pool(e.Engine.RemovePool(ctx, name))
}

func (e phrased) Engines(ctx context.Context) ([]EngineInfo, error) {
	engines, err := e.Engine.Engines(ctx)
	engines = slices.Clone(engines)
	for i, other := range engines {
		engines[i].Problem = e.words.In(other.Problem)
	}
	return engines, err
}

func (e phrased) CheckHost(ctx context.Context) (HostReport, error) {
	r, err := e.Engine.CheckHost(ctx)
	r.Checks = slices.Clone(r.Checks)
	for i, c := range r.Checks {
		r.Checks[i].Text, r.Checks[i].Remedy = e.words.In(c.Text), e.words.In(c.Remedy)
	}
	return r, err
}

func (e phrased) job(j Job, err error) (Job, error) {
	if j.Outcome != nil {
		outcome := *j.Outcome
		outcome.Error = e.words.In(outcome.Error)
		j.Outcome = &outcome
	}
	if j.VM != nil {
		vm := *j.VM
		vm.Reason, vm.Remedy = e.words.In(vm.Reason), e.words.In(vm.Remedy)
		j.VM = &vm
	}
	return j, err
}

func (e phrased) pool(p PoolInfo, err error) (PoolInfo, error) {
	p.State = e.words.In(p.State)
	if p.Failure != nil {
		failure := *p.Failure
		failure.Error = e.words.In(failure.Error)
		p.Failure = &failure
	}
	p.Members = slices.Clone(p.Members)
	for i, m := range p.Members {
		p.Members[i].Why = e.words.In(m.Why)
	}
	return p, err
}

func (e phrased) vm(v VMInfo, err error) (VMInfo, error) {
	v.Reason, v.Remedy = e.words.In(v.Reason), e.words.In(v.Remedy)
	return v, err
}

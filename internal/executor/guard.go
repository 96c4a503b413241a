package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"linus/internal/job"
)

// guard is the engine as faces have it: it decides, for every verb, whether the
// principal in the context may call it, and on what. It embeds nothing: a new verb of
// job.Engine needs a method here.
type guard struct {
	e     *Executor
	rules map[string]job.Access
	turns *turns
}

var _ job.Engine = (*guard)(nil)

// Guarded returns the engine for callers that have a principal; it refuses others.
func Guarded(e *Executor) job.Engine {
	g := &guard{e: e, rules: map[string]job.Access{}, turns: &turns{of: map[string]*turn{}}}
	for _, a := range job.Accesses() {
		g.rules[a.Verb] = a
	}
	return g
}

// may returns an error if the principal in ctx may not call the verb, or if the verb is
// about one job or one VM and that does not exist for the principal.
func (g *guard) may(ctx context.Context, verb, ref string) error {
	p, ok := job.PrincipalFrom(ctx)
	if !ok {
		return job.ErrNoPrincipal
	}
	rule, ok := g.rules[verb]
	if !ok {
		return fmt.Errorf("not allowed: nobody has decided who may call %s", verb)
	}
	if err := p.Refusal(verb); err != nil {
		return err
	}
	if p.Admin() {
		return nil
	}
	switch rule.Of {
	case job.OfJob:
		j, err := g.e.o.Store.Job(ctx, ref)
		if err == nil && !p.Sees(j.Principal) {
			err = job.ErrNotFound
		}
		return err
	case job.OfVM:
		_, err := g.e.creator(ctx, ref)
		return err
	case job.OfFile: // fileVM finds the VM
	case job.OfJobs, job.OfVMs, job.OfNew, job.OfAll:
	}
	return nil
}

// guarded calls a verb if may allows it.
func guarded[Out any](ctx context.Context, g *guard, verb, ref string, call func() (Out, error)) (out Out, err error) {
	if err := g.may(ctx, verb, ref); err != nil {
		return out, err
	}
	if readsHost(verb) {
		leave, err := g.turns.take(ctx)
		if err != nil {
			return out, err
		}
		defer leave()
	}
	return call()
}

// ownerOfVM returns the owner of the VM that m created, as of job.Job: a pool's VM to
// the job that has claimed it.
func ownerOfVM(m job.Job) string {
	if m.Member != nil && m.Member.Claimer != "" {
		return m.Member.Principal
	}
	return m.Principal
}

// visible reports whether the caller may see what belongs to owner. What the engine does
// for itself has no principal, and sees all.
func visible(ctx context.Context, owner string) bool {
	p, ok := job.PrincipalFrom(ctx)
	return !ok || p.Sees(owner)
}

// scopedKey returns an idempotency key as it is stored: each owner has its own.
func scopedKey(owner, key string) string {
	if key == "" || owner == "" {
		return key
	}
	return owner + "\x1f" + key // no name contains that character
}

// Submit implements job.Jobs.
func (g *guard) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	return guarded(ctx, g, "Submit", "", func() (job.Job, error) {
		if err := narrowed(ctx, s); err != nil {
			return job.Job{}, err
		}
		return g.e.Submit(ctx, s)
	})
}

// narrowed returns an error if the caller's token has no toolset with a tool that submits
// this kind of job.
func narrowed(ctx context.Context, s job.Submission) error {
	p, _ := job.PrincipalFrom(ctx)
	if s.Kind == job.KindVM {
		return p.Narrowed("creating a VM", "vm")
	}
	return p.Narrowed("submitting a job", "jobs", "exec")
}

// Plan implements job.Jobs.
func (g *guard) Plan(ctx context.Context, s job.Submission) ([]string, error) {
	return guarded(ctx, g, "Plan", "", func() ([]string, error) {
		if err := narrowed(ctx, s); err != nil {
			return nil, err
		}
		return g.e.Plan(ctx, s)
	})
}

// Job implements job.Jobs.
func (g *guard) Job(ctx context.Context, id string) (job.Job, error) {
	return guarded(ctx, g, "Job", id, func() (job.Job, error) { return g.e.Job(ctx, id) })
}

// Manifest implements job.Jobs.
func (g *guard) Manifest(ctx context.Context, id string) (job.Manifest, error) {
	return guarded(ctx, g, "Manifest", id, func() (job.Manifest, error) { return g.e.Manifest(ctx, id) })
}

// Result implements job.Jobs.
func (g *guard) Result(ctx context.Context, id string) (job.Result, error) {
	return guarded(ctx, g, "Result", id, func() (job.Result, error) { return g.e.Result(ctx, id) })
}

// Cancel implements job.Jobs.
func (g *guard) Cancel(ctx context.Context, id string) error {
	if err := g.may(ctx, "Cancel", id); err != nil {
		return err
	}
	return g.e.Cancel(ctx, id)
}

// Kill implements job.Jobs.
func (g *guard) Kill(ctx context.Context, id, signal string) (job.Killed, error) {
	err := g.may(ctx, "Kill", id)
	if err != nil && !errors.Is(err, job.ErrNotFound) { // as for a job that does not exist: the executor says so
		return "", err
	}
	if err != nil {
		id = ""
	}
	return g.e.Kill(ctx, id, signal)
}

// List implements job.Jobs.
func (g *guard) List(ctx context.Context, f job.Filter) (job.Page, error) {
	if err := g.may(ctx, "List", ""); err != nil {
		return job.Page{}, err
	}
	f.Principal = whose(ctx, f.Principal)
	return g.e.List(ctx, f)
}

// Activity implements job.Jobs.
func (g *guard) Activity(ctx context.Context, principal string) (job.Activity, error) {
	if err := g.may(ctx, "Activity", ""); err != nil {
		return job.Activity{}, err
	}
	return g.e.Activity(ctx, whose(ctx, principal))
}

// whose returns whose jobs a caller sees who asks for those of a principal, or for all that
// it may see: what belongs to another does not exist for it.
func whose(ctx context.Context, asked string) string {
	p, _ := job.PrincipalFrom(ctx)
	switch {
	case p.Admin():
		return asked
	case asked == "" || asked == p.Name:
		return p.Name
	}
	return "somebody else" // no principal's name has a space
}

// Cleanup implements job.Jobs.
func (g *guard) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return guarded(ctx, g, "Cleanup", "", func() (int, error) { return g.e.Cleanup(ctx, olderThan) })
}

// Watch implements job.Streams.
func (g *guard) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	if err := g.may(ctx, "Watch", id); err != nil {
		return nil, job.Job{}, err
	}
	return g.e.Watch(ctx, id, after)
}

// Output implements job.Streams.
func (g *guard) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	return guarded(ctx, g, "Output", id, func() (job.Chunk, error) { return g.e.Output(ctx, id, stream, offset, limit) })
}

// Input implements job.Streams.
func (g *guard) Input(ctx context.Context, id string, data []byte, closed bool) error {
	if err := g.may(ctx, "Input", id); err != nil {
		return err
	}
	return g.e.Input(ctx, id, data, closed)
}

// Resize implements job.Streams.
func (g *guard) Resize(ctx context.Context, id string, rows, columns int) error {
	if err := g.may(ctx, "Resize", id); err != nil {
		return err
	}
	return g.e.Resize(ctx, id, rows, columns)
}

// OpenArtifact implements job.Streams.
func (g *guard) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	if err := g.may(ctx, "OpenArtifact", id); err != nil {
		return nil, job.Artifact{}, err
	}
	return g.e.OpenArtifact(ctx, id, path)
}

// VMs implements job.VMs.
func (g *guard) VMs(ctx context.Context) ([]job.VMInfo, error) {
	return guarded(ctx, g, "VMs", "", func() ([]job.VMInfo, error) { return g.e.VMs(ctx) })
}

// VM implements job.VMs.
func (g *guard) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "VM", ref, func() (job.VMInfo, error) { return g.e.VM(ctx, ref) })
}

// StartVM implements job.VMs.
func (g *guard) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "StartVM", ref, func() (job.VMInfo, error) { return g.e.StartVM(ctx, ref) })
}

// StopVM implements job.VMs.
func (g *guard) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "StopVM", ref, func() (job.VMInfo, error) { return g.e.StopVM(ctx, ref) })
}

// DestroyVM implements job.VMs.
func (g *guard) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "DestroyVM", ref, func() (job.VMInfo, error) { return g.e.DestroyVM(ctx, ref) })
}

// ForgetVM implements job.VMs.
func (g *guard) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "ForgetVM", ref, func() (job.VMInfo, error) { return g.e.ForgetVM(ctx, ref) })
}

// SuspendVM implements job.VMs.
func (g *guard) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "SuspendVM", ref, func() (job.VMInfo, error) { return g.e.SuspendVM(ctx, ref) })
}

// ResumeVM implements job.VMs.
func (g *guard) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return guarded(ctx, g, "ResumeVM", ref, func() (job.VMInfo, error) { return g.e.ResumeVM(ctx, ref) })
}

// SnapshotVM implements job.VMs.
func (g *guard) SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (job.VMInfo, error) {
	return guarded(ctx, g, "SnapshotVM", ref, func() (job.VMInfo, error) { return g.e.SnapshotVM(ctx, ref, snapshot, memory) })
}

// Network implements job.VMs.
func (g *guard) Network(ctx context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	return guarded(ctx, g, "Network", q.VM, func() (job.NetworkReport, error) { return g.e.Network(ctx, q) })
}

// DialVM implements job.VMs.
func (g *guard) DialVM(ctx context.Context, ref string, port int) (job.Tunnel, error) {
	return guarded(ctx, g, "DialVM", ref, func() (job.Tunnel, error) { return g.e.DialVM(ctx, ref, port) })
}

// RevertVM implements job.VMs.
func (g *guard) RevertVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return guarded(ctx, g, "RevertVM", ref, func() (job.VMInfo, error) { return g.e.RevertVM(ctx, ref, snapshot) })
}

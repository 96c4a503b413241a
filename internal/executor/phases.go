package executor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
)

// phase is one stage of a job's life. Each can be repeated after it was interrupted at
// any instant, by this process or another.
type phase struct {
	name   string
	run    func(*Executor, context.Context, *run) error
	reason job.Reason // the job's reason if this phase fails
}

// The life of a job. The working phases stop at the first failure, at a cancel or when
// the outcome is decided; the ending phases always follow. A job that creates a
// persistent VM and runs no task has only the phases in making.
var (
	making = []phase{
		{job.PhaseProvision, (*Executor).provision, job.ReasonProvisionFailed}, // a VM that answers SSH
		{job.PhaseReady, (*Executor).ready, job.ReasonInternal},                // which is the job's success
	}
	working = []phase{
		{job.PhaseProvision, (*Executor).provision, job.ReasonProvisionFailed}, // a VM that answers SSH
		{job.PhasePush, (*Executor).push, job.ReasonStartFailed},               // runner, task and files into it
		{job.PhaseStart, (*Executor).start, job.ReasonStartFailed},             // starts the task, detached
		{job.PhaseRun, (*Executor).follow, job.ReasonLost},                     // until the outcome is decided
	}
	ending = []phase{
		{job.PhaseCollect, (*Executor).collect, job.ReasonInternal}, // all the output; then the status is terminal
		{job.PhaseDestroy, (*Executor).destroy, job.ReasonInternal}, // the VM or, in a shared one, what the job left there
	}
)

// runJob runs a job from its current phase to its end and reports whether it got
// there. ctx ends with the engine; jobCtx also when the job is cancelled.
func (e *Executor) runJob(ctx, jobCtx context.Context, r *run) (done bool) {
	log := e.o.Log.With("job_id", r.id)
	j, err := e.o.Store.Job(ctx, r.id)
	if err == nil && j.Done() {
		return true // it was not when it was adopted: its last run was just ending
	}
	if err == nil && j.Outcome == nil {
		phases := working
		if j.Kind == job.KindVM {
			phases = making
		}
		err = e.workTask(jobCtx, r, phases)
	}
	if ctx.Err() != nil || errors.Is(err, job.ErrDetach) {
		return false // the engine stops; the next one continues here
	}
	if err != nil {
		log.Warn("job ends early", "err", err)
	}
	for _, p := range ending {
		if err := e.runPhase(ctx, r, p); err != nil {
			if ctx.Err() == nil {
				log.Error("phase failed", "phase", p.name, "err", err)
			}
			return false
		}
	}
	log.Info("job done")
	return true
}

// workTask runs the working phases. A failure decides the job, unless it was decided
// before.
func (e *Executor) workTask(ctx context.Context, r *run, phases []phase) error {
	for _, p := range phases {
		err := e.runPhase(ctx, r, p)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // a cancel has been decided already, and a stopping engine decides nothing
		}
		if e.goesCold(ctx, r, err) {
			return e.workTask(ctx, r, phases)
		}
		reason := p.reason
		if down := new(downError); errors.As(err, &down) {
			reason = job.ReasonLost
		}
		if e.o.Placer != nil && job.IsClass(err, job.HostOffline) {
			reason = job.ReasonLost // with its node
		}
		return errors.Join(err, e.decide(ctx, r, job.Outcome{Status: job.Failed, Reason: reason, Error: err.Error(), At: now()}))
	}
	return nil
}

// decide sets the job's outcome unless it was decided before.
func (e *Executor) decide(ctx context.Context, r *run, o job.Outcome) error {
	_, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		if !j.Decide(o) {
			return nil, nil
		}
		j.Silence = job.Silence{} // a new one begins if its VM does not respond in collect
		return []job.Event{decided(o)}, nil
	})
	return err
}

// runPhase runs one phase and records its start and end. The end of one that another
// follows is recorded with the other's start: one commit fewer. A phase interrupted by a
// stopping engine has no end: the next engine continues it.
func (e *Executor) runPhase(ctx context.Context, r *run, p phase) error {
	j, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Phase, j.Progress = p.name, ""
		return append(slices.Clone(r.before), job.Event{Kind: job.EventPhaseStarted, Phase: p.name}), nil
	})
	if err != nil {
		return err
	}
	r.before = nil
	e.o.Log.Info("phase started", "job_id", r.id, "phase", p.name)
	began := time.Now()
	err = r.capture.ShownError(p.run(e, ctx, r))
	ended := job.Event{At: now(), Kind: job.EventPhaseEnded, Phase: p.name}
	var noteErr error
	switch {
	case err == nil && p.name != job.PhaseDestroy:
		r.before = []job.Event{ended}
	case err == nil:
		j, noteErr = e.update(context.WithoutCancel(ctx), r.id, telling(ended))
	case !errors.Is(context.Cause(ctx), job.ErrDetach):
		ended.Text = err.Error()
		j, noteErr = e.update(context.WithoutCancel(ctx), r.id, telling(ended))
	}
	e.o.Observer.PhaseEnded(j, p.name, began, phaseResult(ctx, err), err)
	e.o.Log.Info("phase ended", "job_id", r.id, "phase", p.name, "duration_ms", time.Since(began).Milliseconds(), "err", err)
	return errors.Join(err, noteErr)
}

// push copies runner, task and files into the VM, with a new callback token.
func (e *Executor) push(ctx context.Context, r *run) error {
	j, err := e.o.Store.Job(ctx, r.id)
	if err != nil || !j.StartedAt.IsZero() {
		return err
	}
	if r.adopted {
		if state, err := e.o.Guest.Probe(ctx, j); err == nil && state.Started {
			return nil // its runner has its token already
		}
	}
	manifest, err := e.o.Store.Manifest(ctx, r.id)
	if err != nil {
		return err
	}
	ctx, end := e.placing(ctx, manifest)
	defer end()
	var url string
	err = patience.Reach(ctx, e.o.HeartbeatThreshold, func(context.Context) (err error) {
		url, err = e.o.CallbackURL(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the address for callbacks: %w", err)
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return fmt.Errorf("create a callback token: %w", err)
	}
	token := hex.EncodeToString(secret)
	if err := e.o.Store.SetTokenHash(ctx, r.id, tokenHash(token)); err != nil {
		return err
	}
	secrets, err := e.secrets(manifest)
	if err == nil && len(secrets) > 0 {
		err = pinned(*j.VM)
	}
	if err != nil {
		return err
	}
	r.capture.Hide(secrets)
	payload := job.Payload{
		Secrets:  map[string]string{},
		Manifest: manifest, CallbackURL: cmp.Or(url, e.unreachableURL()), Token: token,
		HeartbeatInterval: int(e.o.HeartbeatInterval / time.Second), MaxOutput: e.o.MaxOutput,
	}
	for _, s := range secrets {
		payload.Secrets[s.Name] = string(s.Reveal())
	}
	return patience.Reach(ctx, e.o.HeartbeatThreshold, func(context.Context) error {
		return e.whileUp(ctx, j, func(ctx context.Context) error { return e.o.Guest.Push(ctx, j, payload) })
	})
}

// placing bounds how long copying a job into a VM, or starting it, may take, with all
// retries.
func (e *Executor) placing(ctx context.Context, m job.Manifest) (context.Context, context.CancelFunc) {
	size := int64(len(m.Task))
	for _, f := range m.Files {
		size += int64(len(f.Content))
	}
	wait := (e.o.PlacePatience + patience.OnSlowLine(size)).Round(time.Second)
	return context.WithTimeoutCause(ctx, wait, fmt.Errorf("the VM responds, but did not finish within %s", wait))
}

// start starts the task. StartedAt is stored before: from then on there may be output
// to collect. A job that was cancelled meanwhile never becomes running; its ending
// phases stop what may have started.
func (e *Executor) start(ctx context.Context, r *run) error {
	j, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		if j.StartedAt.IsZero() {
			j.StartedAt = now()
		}
		return nil, nil
	})
	if err != nil || j.Status == job.Running {
		return err
	}
	timed, end := e.placing(ctx, job.Manifest{})
	defer end()
	var bootID string
	err = patience.Reach(timed, e.o.HeartbeatThreshold, func(context.Context) error {
		return e.whileUp(timed, j, func(ctx context.Context) (err error) {
			bootID, err = e.o.Guest.Start(ctx, j)
			return err
		})
	})
	if err != nil {
		return err
	}
	_, err = e.update(context.WithoutCancel(ctx), r.id, func(j *job.Job) ([]job.Event, error) {
		j.BootID = bootID
		if j.Outcome != nil {
			return nil, nil
		}
		return become(j, job.Running), nil
	})
	if j.Borrows() {
		signal(e.pools.wake) // its pool makes another, now that the host is not needed for this one
	}
	return err
}

// destroy destroys the job's VM, unless it is to outlive the job.
func (e *Executor) destroy(ctx context.Context, r *run) error {
	j, err := e.o.Store.Job(ctx, r.id)
	if err != nil || j.VM == nil || j.VM.State.Settled() {
		return err
	}
	if j.Shares() {
		return e.release(ctx, r, j)
	}
	if j.Member != nil && j.KeepsVM() {
		return nil // what is open to it serves the job that claims it
	}
	e.o.Guest.Forget(j)
	if j.KeepsVM() {
		return nil
	}
	if j.Borrows() {
		return e.destroyBorrowed(ctx, j)
	}
	err = e.removeVM(job.WithClient(ctx, j.EndedBy), j) // attributed to whoever ended the job
	if err == nil || job.IsClass(err, job.HostOffline) {
		if retryErr := e.retry(ctx, j, err == nil); retryErr != nil {
			return errors.Join(err, retryErr)
		}
	}
	if err != nil && !job.IsClass(err, job.HostLeftAlone) {
		_, noteErr := e.update(ctx, r.id, telling(job.Event{Kind: job.EventWarning, Text: "VM not destroyed, will be tried again: " + err.Error()}))
		return errors.Join(err, noteErr)
	}
	err = e.settleVM(ctx, r.id, err)
	e.dropKeys(ctx)
	if job.IsClass(err, job.HostLeftAlone) {
		return nil // the job is done; its VM remains listed
	}
	return err
}

// removeVM destroys the job's VM; nil: it is gone. If its ID was never learned, or
// belongs to another VM by now, the VM is searched for by its marker.
func (e *Executor) removeVM(ctx context.Context, j job.Job) error {
	err := e.o.Provider.Destroy(ctx, *j.VM)
	if !job.IsClass(err, job.HostForeign) && (err != nil || j.VM.ID != 0) {
		return err
	}
	vms, err := e.o.Provider.List(ctx)
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if vm.Job != j.ID {
			continue
		}
		if err := e.found(ctx, j.ID, vm); err != nil {
			return err
		}
		if err := e.o.Provider.Destroy(ctx, vm); err != nil && !job.IsClass(err, job.HostForeign) {
			return err
		}
	}
	return nil
}

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
	"linus/internal/vm"
)

// phase is one stage of a job's life. It can be repeated after an interruption at any instant, by
// this process or another.
type phase struct {
	name   string
	run    func(*Executor, context.Context, *run, job.Job) (change, error) // gets the job as of the phase's start
	reason job.Reason                                                      // the job's reason if the phase fails
	begin  func(*run, *job.Job) job.Record                                 // changes the job at the phase's start; nil: no change
}

// The life of a job. The working phases stop at the first failure, at a cancel, or when the outcome
// is decided; the ending phases always follow.
var (
	working = []phase{
		{name: job.PhaseProvision, run: (*Executor).acquire, reason: job.ReasonProvisionFailed},         // a VM reachable over SSH
		{name: job.PhasePush, run: (*Executor).push, reason: job.ReasonStartFailed, begin: newToken},    // runner, task and files
		{name: job.PhaseStart, run: (*Executor).start, reason: job.ReasonStartFailed, begin: setStarts}, // starts the task, detached
		{name: job.PhaseRun, run: (*Executor).follow, reason: job.ReasonLost},                           // until the outcome is decided
	}
	ending = []phase{
		{name: job.PhaseCollect, run: (*Executor).collect, reason: job.ReasonInternal}, // all the output; then the status is terminal
		{name: job.PhaseDestroy, run: (*Executor).release, reason: job.ReasonInternal}, // keeps or destroys the VM
	}
	life = slices.Concat(working, ending)
)

// result is what a phase did, and what remains of the job's life.
type result struct {
	change change  // of the job; nil: none
	next   []phase // remaining phases; change is stored with the start of the first
}

// working reports whether a cancel ends the next phase.
func (d result) working() bool { return len(d.next) > len(ending) }

// runJob runs a job from its current phase to its end and reports whether it got there. ctx ends
// with the engine; jobCtx also ends when the job is cancelled.
func (e *Executor) runJob(ctx, jobCtx context.Context, r *run) bool {
	log := e.o.Log.With("job_id", r.id)
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err == nil && j.Finished() {
		return true // its last run was just ending when it was adopted
	}
	did := result{next: life}
	if err == nil && j.Manifest.FansOut() {
		did.next = parentsLife
	}
	if j.Outcome != nil {
		did.next = ending
	}
	for err == nil && len(did.next) > 0 {
		if did.working() && jobCtx.Err() != nil && ctx.Err() == nil {
			did.next = ending
		}
		if j, err = e.store(ctx, r, did); err != nil {
			break
		}
		at := ctx
		if did.working() {
			at = jobCtx
		} else {
			r.closeProxy()
		}
		did, err = e.runPhase(at, r, j, did.next)
	}
	if did.change != nil && len(did.next) == 0 { // the last phase has ended, perhaps with an error
		var failed error
		j, failed = e.store(ctx, r, did)
		err = errors.Join(err, failed)
	}
	if err != nil {
		if ctx.Err() == nil {
			log.Error("job is not finished, will be tried again", "phase", j.Phase, "err", err)
		}
		return false // the next engine continues here if this one stops
	}
	if j.VM != nil && j.VM.State == vm.Destroyed {
		e.o.Fleet.Freed(ctx, r.id)
	}
	if j.Manifest.Repository.Given() && e.o.Repositories != nil {
		e.o.Repositories.Forget(r.id)
	}
	log.Info("job done")
	return true
}

// store stores a phase's change and the start of the next phase in one commit.
func (e *Executor) store(ctx context.Context, r *run, did result) (j job.Job, err error) {
	err = e.retryEngineFaults(ctx, r, func() (err error) {
		j, err = e.updateWith(context.WithoutCancel(ctx), r.id, func(j *job.Job) (with job.Record, err error) {
			var events []job.Event
			if did.change != nil {
				if events, err = did.change(j); err != nil {
					return with, err
				}
			}
			events = append(events, e.heldUp(r)...)
			if len(did.next) > 0 {
				p := did.next[0]
				if j.Phase, j.Progress = p.name, ""; p.name == job.PhaseDestroy {
					j.Phase = j.LastPhase()
				}
				if p.begin != nil {
					with = p.begin(r, j)
				}
				events = append(events, job.Event{Kind: job.EventPhaseStarted, Phase: j.Phase})
			}
			with.Events = events
			return with, nil
		})
		return err
	})
	if err == nil {
		e.passed(r)
	}
	return j, err
}

// runPhase runs the first of the remaining phases. A failed working phase decides the job. An error
// ends the run; the result then holds what must still be stored of an ending phase. A phase that a
// stopping engine interrupts has no end: the next engine continues it.
func (e *Executor) runPhase(ctx context.Context, r *run, j job.Job, left []phase) (did result, err error) {
	p, name := left[0], j.Phase
	log := e.o.Log.With("job_id", r.id, "phase", name)
	log.Info("phase started")
	ctx = e.telling(ctx, r)
	began := time.Now()
	again := false
	var done change
	err = r.capture.ShownError(e.retryEngineFaults(ctx, r, func() (err error) {
		if again {
			if err = e.reread(ctx, r.id, &j); err != nil {
				return err
			}
		}
		again = true
		done, err = p.run(e, ctx, r, j)
		return err
	}))
	ended := job.Event{At: now(), Kind: job.EventPhaseEnded, Phase: name}
	e.o.Changes.Add(job.PhaseEnd{Job: j, Phase: name, Began: began, Result: phaseResult(ctx, err), Err: err})
	log.Info("phase ended", "duration_ms", time.Since(began).Milliseconds(), "err", err)
	switch {
	case err == nil:
		return result{all(done, recordEvents(ended)), left[1:]}, nil
	case errors.Is(context.Cause(ctx), job.ErrDetach) || errors.Is(err, job.ErrDetach):
		if ctx.Err() == nil {
			signal(e.leaseDoubted)
		}
		return result{}, err
	}
	ended.Text = err.Error()
	if len(left) <= len(ending) {
		return result{change: all(done, recordEvents(ended))}, err
	}
	done, left = e.failed(ctx, r, p, err)
	return result{all(recordEvents(ended), done), left}, nil
}

// reread has its copies of the job in a frame of its own: they are not on the stack while a phase,
// such as following the task, lasts.
//
//go:noinline
func (e *Executor) reread(ctx context.Context, id string, j *job.Job) (err error) {
	*j, err = e.o.Jobs.Job(ctx, id)
	return err
}

// failed returns what follows the failure of a working phase, unless the job is already decided: a
// pool's VM is given back for a new one, or the failure decides the job.
func (e *Executor) failed(ctx context.Context, r *run, p phase, err error) (change, []phase) {
	if ctx.Err() != nil {
		return nil, ending // a cancel has decided the job
	}
	e.o.Log.Warn("job ends early", "job_id", r.id, "err", err)
	var j job.Job // stays zero if it cannot be read: then there is no VM to look at
	var back change
	own := e.retryEngineFaults(ctx, r, func() (own error) {
		if j, own = e.o.Jobs.Job(ctx, r.id); own == nil && !job.IsEngineFault(err) {
			back, own = e.o.Fleet.GiveBack(ctx, j, err)
		}
		return own
	})
	switch {
	case ctx.Err() != nil:
		return nil, ending
	case own != nil:
		e.o.Log.Error("giving back a pool's VM failed", "job_id", r.id, "err", own)
		err = errors.Join(err, own)
	case back != nil:
		return back, life
	}
	reason := p.reason
	switch down := new(downError); {
	case errors.As(err, &down) || e.wentDown(ctx, j, err): // or the VM's node went down
		reason = job.ReasonLost
	case job.IsEngineFault(err):
		reason = job.ReasonInternal
	}
	return deciding(job.Outcome{Status: job.Failed, Reason: reason, Error: err.Error(), At: now()}), ending
}

// wentDown reports whether a phase failed because the VM's node is or was down, which may look like
// an unreachable VM. For some seconds the other nodes do not know yet that a node is down, so
// wentDown asks again until that is known or the node answers.
func (e *Executor) wentDown(ctx context.Context, j job.Job, err error) bool {
	switch {
	case !e.o.Fleet.Spread():
		return false
	case !job.IsClass(err, job.HostUnreachable):
		return job.HasClass(err, job.HostOffline) // perhaps beside the first thing that failed as the node went down
	case j.VM == nil || j.VM.ID == 0:
		return false
	}
	var status vm.Status
	err = patience.RetryUnreachable(ctx, e.o.HeartbeatThreshold, func(ctx context.Context) (err error) {
		status, err = e.o.Provider.Status(ctx, *j.VM)
		return err
	})
	return job.IsClass(err, job.HostOffline) || err == nil && status.Down() && !j.Shares()
}

// deciding returns the change that decides a job, unless it is already decided.
func deciding(o job.Outcome) change {
	return func(j *job.Job) ([]job.Event, error) {
		if !j.Decide(o) {
			return nil, nil
		}
		j.Silence = job.Silence{} // a new one begins if the VM does not respond in collect
		return []job.Event{decided(o)}, nil
	}
}

// telling returns the context of a phase in which steps and waits are shown at once and recorded soon.
func (e *Executor) telling(ctx context.Context, r *run) context.Context {
	return job.WithListener(ctx, func(p job.Progress) {
		at := now()
		e.step(context.WithoutCancel(ctx), r, func(j *job.Job) ([]job.Event, error) {
			event := p.Event()
			event.At = at
			if p.Text != "" {
				j.Progress = p.Line()
			}
			if p.Text != "" && p.Warning != "" { // a wait, in whatever phase
				event.Phase = ""
			}
			return []job.Event{event}, nil
		})
	})
}

// warmPatience bounds how long a new VM is prepared in advance. Push continues from there.
const warmPatience = 10 * time.Second

// acquire gets the job a VM and prepares it for the task.
func (e *Executor) acquire(ctx context.Context, r *run, j job.Job) (_ change, err error) {
	if j.StartedAt.IsZero() {
		if j, err = e.fetchRepository(ctx, r, j); err != nil {
			return nil, err
		}
	}
	j, err = e.o.Fleet.Acquire(ctx, j)
	if err != nil && j.VM != nil && j.VM.State == vm.Created { // made, but without its volume
		err = e.whileUp(ctx, j, func(context.Context) error { return err })
	}
	if err != nil || !j.StartedAt.IsZero() {
		return nil, err
	}
	if job.Pinned(*j.VM) != nil || j.Shares() {
		return nil, nil // push says whether the job may use the VM at all, and whether the VM runs
	}
	if j.VM.Source == vm.Cold {
		job.Tell(ctx, job.Progress{Step: "connect", Text: "connecting to the VM"})
	}
	timed, end := context.WithTimeout(ctx, warmPatience)
	defer end()
	if err := e.o.Runner.Warm(timed, j); err != nil {
		e.o.Log.Debug("the VM is not prepared in advance", "job_id", r.id, "err", err)
	}
	return nil, nil
}

// push copies runner, task and files into the VM, with a new callback token.
func (e *Executor) push(ctx context.Context, r *run, j job.Job) (change, error) {
	if !j.StartedAt.IsZero() {
		return nil, nil
	}
	if r.adopted {
		if state, err := e.o.Runner.Probe(ctx, j); err == nil && state.Started {
			return nil, nil // its runner already has a token
		}
		if _, err := e.updateWith(ctx, r.id, func(*job.Job) (job.Record, error) { return r.giveToken(), nil }); err != nil {
			return nil, err
		}
	}
	manifest, err := e.o.Jobs.Manifest(ctx, r.id)
	if err != nil {
		return nil, err
	}
	caller := ctx
	ctx, end := e.placing(ctx, manifest, 0)
	defer end()
	var url string
	err = patience.RetryUnreachable(ctx, e.o.HeartbeatThreshold, func(context.Context) (err error) {
		url, err = e.o.CallbackURL(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the address for callbacks: %w", err)
	}
	secrets, err := e.secrets(ctx, j.Principal, manifest)
	if err == nil && len(secrets)+len(manifest.Credentials) > 0 {
		err = job.Pinned(*j.VM)
	}
	hidden := secrets
	if err == nil {
		hidden, err = e.hidden(manifest)
	}
	if err != nil {
		return nil, err
	}
	r.capture.Hide(hidden)
	if needs, only := needsProxy(j); needs {
		manifest = proxied(manifest, j.ID, networkOf(j), only)
	}
	if manifest, err = e.withPlaceholders(ctx, manifest); err != nil {
		return nil, err
	}
	payload := job.Payload{
		Secrets:  map[string]string{},
		Manifest: manifest, CallbackURL: cmp.Or(url, e.unreachableURL()), Token: r.token,
		Trusts:            len(manifest.Credentials) > 0,
		HeartbeatInterval: int(e.o.HeartbeatInterval / time.Second), MaxOutput: e.o.MaxOutput,
	}
	for _, s := range secrets {
		payload.Secrets[s.Name] = string(s.Reveal())
	}
	done, err := e.withRepository(caller, r, j, &payload)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, end = e.placing(caller, manifest, payload.RepositorySize)
	defer end()
	return nil, patience.RetryUnreachable(ctx, e.o.HeartbeatThreshold, func(context.Context) error {
		return e.whileUp(ctx, j, func(ctx context.Context) error { return e.o.Runner.Push(ctx, j, payload) })
	})
}

// newToken gives the job a callback token, unless a runner may already have one; push checks that.
func newToken(r *run, j *job.Job) job.Record {
	if r.adopted || !j.StartedAt.IsZero() {
		return job.Record{}
	}
	return r.giveToken()
}

func (r *run) giveToken() job.Record {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	r.token = hex.EncodeToString(secret)
	return job.Record{TokenHash: tokenHash(r.token)}
}

// placing bounds how long copying a job into a VM, or starting it, may take, including all retries.
func (e *Executor) placing(ctx context.Context, m job.Manifest, more int64) (context.Context, context.CancelFunc) {
	size := int64(len(m.Task)) + more
	for _, f := range m.Files {
		size += int64(len(f.Content))
	}
	wait := (e.o.PushTimeout + patience.OnSlowLine(size)).Round(time.Second)
	return context.WithTimeoutCause(ctx, wait, fmt.Errorf("the VM responds, but did not finish within %s", wait))
}

// setStarts is stored before the task is started: from then on there may be output to collect.
func setStarts(_ *run, j *job.Job) job.Record {
	if j.StartedAt.IsZero() {
		j.StartedAt = now()
	}
	return job.Record{}
}

// start starts the task. A job that was cancelled meanwhile never becomes running; its ending
// phases stop whatever may have started.
func (e *Executor) start(ctx context.Context, r *run, j job.Job) (change, error) {
	if j.Status == job.Running {
		return nil, nil
	}
	timed, end := e.placing(ctx, job.Manifest{}, 0)
	defer end()
	way := e.openProxy(ctx, r, j)
	if err := way.wait(timed); err != nil {
		return nil, err
	}
	var bootID string
	err := patience.RetryUnreachable(timed, e.o.HeartbeatThreshold, func(context.Context) error {
		return e.whileUp(timed, j, func(ctx context.Context) (err error) {
			bootID, err = e.o.Runner.Start(ctx, j)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if j.Claims() {
		e.o.Fleet.TendSoon() // the pool makes another VM, now that this job no longer needs the host for its own
	}
	return func(j *job.Job) ([]job.Event, error) {
		j.BootID = bootID
		if j.Outcome != nil {
			return nil, nil
		}
		return j.Reach(job.Running), nil
	}, nil
}

// release cleans up after the job in a shared VM and gives the VM back. A VM that is gone or does
// not respond delays nothing. A lost job is run again before its row says that the VM is gone.
func (e *Executor) release(ctx context.Context, r *run, j job.Job) (change, error) {
	if j.VM == nil || j.VM.State.Settled() {
		return nil, nil
	}
	r.answerInput(ctx)
	if j.Shares() && j.Outcome.Reason != job.ReasonLost {
		if err := e.clean(ctx, j); err != nil {
			return nil, err
		}
	}
	done, gone, err := e.o.Fleet.Release(ctx, j)
	if gone || job.IsClass(err, job.HostOffline) {
		if failed := e.retry(ctx, j, gone); failed != nil {
			return nil, errors.Join(err, failed)
		}
	}
	return done, err
}

func (e *Executor) clean(ctx context.Context, j job.Job) error {
	v, err := e.o.Jobs.VM(ctx, j.VM.Job)
	if err != nil || v.State != vm.Created {
		return nil //nolint:nilerr // then there is nothing to be cleaned
	}
	timed, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = e.whileUp(timed, j, func(ctx context.Context) error { return e.o.Runner.Clean(ctx, j) })
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		e.o.Log.Warn("could not clean up after a job in its VM", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
	}
	return nil
}

package executor

import (
	"cmp"
	"context"
	"time"

	"linus/internal/job"
)

// ways is how a running task's reports can arrive while its callbacks are silent.
type ways struct {
	way  job.CallbackWay // last one found; empty: not searched yet
	next time.Time       // when to search again
}

// whileSilent replaces the silent callbacks of a running task by SSH: it restarts a missing job runner,
// finds another way for the callbacks, and fetches the output that they would have delivered. Failures are
// retried if the callbacks are still silent later. A time limit keeps a VM from delaying the next check.
func (e *Executor) whileSilent(ctx context.Context, r *run, j job.Job, state job.RunState, w *ways) {
	ctx, end := context.WithTimeout(ctx, e.o.HeartbeatThreshold)
	defer end()
	log := e.o.Log.With("job_id", j.ID)
	if state.Unattended {
		log.Warn("the job runner is gone, starting it again")
		if _, err := e.o.Runner.Start(ctx, j); err != nil {
			log.Warn("the job runner did not start again", "err", err)
		}
		return // the next check shows the result
	}
	if time.Now().After(w.next) {
		w.next = time.Now().Add(2 * e.o.HeartbeatInterval)
		if err := e.findWay(ctx, j, w); err != nil {
			log.Warn("no way for callbacks found", "err", err)
		}
	}
	if j.Manifest.StatusMode == job.StatusSimple {
		return // its output is collected at the end
	}
	r.capture.CatchUp(ctx, j, state)
}

// unreachableURL is the callback URL for a VM that needs a tunnel, until it has one: a name that
// RFC 2606 reserves, for the runner to try. Empty: no callbacks.
func (e *Executor) unreachableURL() string {
	if e.o.CallbackAddr == nil {
		return ""
	}
	return "http://tunnel.invalid"
}

// findWay makes the VM try how its callbacks can arrive, and records a change of the way.
func (e *Executor) findWay(ctx context.Context, j job.Job, w *ways) error {
	url, err := e.o.CallbackURL(ctx)
	if err != nil {
		return err
	}
	local := ""
	if e.o.CallbackAddr != nil {
		local = e.o.CallbackAddr()
	}
	if url == "" && local == "" {
		return nil
	}
	before := w.way
	if w.way, err = e.o.Runner.Callbacks(ctx, j, url, local); err != nil {
		w.way = before
		return err
	}
	if w.way == job.CallbacksNone { // a firewall's rules rarely change
		w.next = time.Now().Add(12 * e.o.HeartbeatInterval)
	}
	fail := "callbacks do not reach " + cmp.Or(url, local) + " from the VM"
	event := map[job.CallbackWay]job.Event{
		job.CallbacksDirect: {Kind: job.EventProgress, Text: "callbacks arrive directly"},
		job.CallbacksTunnel: {Kind: job.EventProgress, Text: fail + ": they come through the SSH connection"},
		job.CallbacksNone:   {Kind: job.EventWarning, Text: fail + ", and its SSH server does not forward: the VM is asked over SSH"},
	}[w.way]
	event.Phase = job.PhaseRun
	if w.way == before || before == "" && w.way == job.CallbacksDirect {
		return nil
	}
	_, err = e.update(ctx, j.ID, recordEvents(event))
	return err
}

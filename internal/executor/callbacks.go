package executor

import (
	"cmp"
	"context"
	"time"

	"linus/internal/job"
)

// ways looks after how news of one running task reach us while its callbacks
// are silent.
type ways struct {
	way  job.CallbackWay // found last; empty: none looked for yet
	next time.Time       // when to look again
}

// whileSilent does what SSH can for a task that runs while its callbacks are
// silent: it brings back a runner that is gone, finds the callbacks another way
// and fetches the output they would have brought. Whatever fails is tried again
// when they are still silent later. A VM does not keep the next look waiting.
func (e *Executor) whileSilent(ctx context.Context, r *run, j job.Job, state job.RunState, w *ways) {
	ctx, end := context.WithTimeout(ctx, e.o.HeartbeatThreshold)
	defer end()
	log := e.o.Log.With("job_id", j.ID)
	if state.Unattended {
		log.Warn("the job runner is gone, starting it again")
		if _, err := e.o.Guest.Start(ctx, j); err != nil {
			log.Warn("the job runner did not start again", "err", err)
		}
		return // the next look tells what it found
	}
	if time.Now().After(w.next) {
		w.next = time.Now().Add(2 * e.o.HeartbeatInterval)
		if err := e.findWay(ctx, j, w); err != nil {
			log.Warn("no way for callbacks found", "err", err)
		}
	}
	if j.Manifest.StatusMode == job.StatusSimple {
		return // its output comes at the end
	}
	r.capture.CatchUp(ctx, j, state)
}

// unreachableURL is what a VM is told that cannot call us until it has a tunnel: a
// name that by RFC 2606 nobody has, for the runner to try. Empty: no callbacks.
func (e *Executor) unreachableURL() string {
	if e.o.CallbackAddr == nil {
		return ""
	}
	return "http://tunnel.invalid"
}

// findWay has the VM try how its callbacks can arrive, and notes when that is
// another way than before.
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
	if w.way, err = e.o.Guest.Callbacks(ctx, j, url, local); err != nil {
		w.way = before
		return err
	}
	if w.way == job.CallbacksNone { // a firewall rarely changes its mind
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
	_, err = e.update(ctx, j.ID, telling(event))
	return err
}

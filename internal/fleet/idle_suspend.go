package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// A VM that naps is suspended when nobody has used it for its idle time, and resumed by its next
// use. A use is a job in it, or a file or port of it that somebody works on through an engine. A
// use begins in a decision, and so does a suspension, which checks for uses once more. The row says
// that the VM is suspended before the host is asked to suspend it. If the engine dies in between,
// the next one asks again, and a use resumes a running VM, which is no error.

// What is being done to the VM meanwhile, in words: a use waits for the end of either.
const (
	napping = "suspended, as it is idle"
	waking  = "resumed, as it is used"
)

const (
	markEvery = 10 * time.Second       // between two recordings of a use
	waitAgain = 200 * time.Millisecond // between two looks at whether a VM is suspended or resumed
	inUseTime = 30 * time.Second       // for a VM to report whether somebody is logged in
	maxNapOff = time.Hour              // between two attempts to suspend a VM that cannot be
)

// idleSuspender is what this engine knows of VMs that nap, by the ID in their marker.
type idleSuspender struct {
	mu     sync.Mutex
	awake  int                  // VMs to be suspended some time, as of the last look
	uses   map[string]int       // in progress here
	trying map[string]bool      // being suspended here
	down   map[string]time.Time // when VMs were suspended, as confirmed by the host
	again  map[string]time.Time // when to try again
	failed map[string]int       // failures in a row
}

func newIdleSuspender() idleSuspender {
	return idleSuspender{uses: map[string]int{}, trying: map[string]bool{}, down: map[string]time.Time{}, again: map[string]time.Time{}, failed: map[string]int{}}
}

// using adds more to the number of uses, and returns the new number.
func (s *idleSuspender) using(id string, more int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses[id] += more; s.uses[id] == 0 {
		delete(s.uses, id)
	}
	return s.uses[id]
}

// later leaves a VM as it is for a while.
func (s *idleSuspender) later(id string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again[id] = time.Now().Add(d)
}

// use begins a use of a VM, until done is called. A VM that was suspended because it was idle is
// resumed first, which is reported to tell.
func (f *Fleet) use(ctx context.Context, v vm.VM, tell func(job.Progress)) (_ vm.VM, done func(), err error) {
	if !v.NotesUse() && v.SuspendedAt.IsZero() { // it counts all the same: the VM may be set to nap meanwhile
		f.idleSuspender.using(v.Job, 1)
		return v, sync.OnceFunc(func() { f.idleSuspender.using(v.Job, -1) }), nil
	}
	for {
		row, finished, begun, err := f.tryUse(ctx, v)
		switch {
		case err != nil:
			return v, nil, err
		case begun:
			return row, sync.OnceFunc(func() {
				f.idleSuspender.using(row.Job, -1)
				timed, end := context.WithTimeout(context.WithoutCancel(ctx), markEvery)
				defer end()
				f.touch(timed, row.Job)
			}), nil
		case finished != nil:
			tell(job.Progress{Step: "resume", Text: fmt.Sprintf("resuming VM %s (%d), suspended since %s because it was idle", row.Name, row.ID, row.SuspendedAt.UTC().Format("2006-01-02 15:04:05 UTC"))})
			if err := f.wake(ctx, row, finished); err != nil {
				return v, nil, err
			}
			continue
		}
		if err := sleep.For(ctx, waitAgain); err != nil {
			return v, nil, err
		}
	}
}

// tryUse decides about a use: it has begun, or the caller is to resume the VM until finished is
// called, or neither, because others suspend or resume it.
func (f *Fleet) tryUse(ctx context.Context, v vm.VM) (row vm.VM, finished func(), begun bool, err error) {
	d, err := f.access.decide(ctx)
	if err != nil {
		return v, nil, false, err
	}
	defer d.end()
	if row, err = f.o.Store.VM(ctx, v.Job); err != nil {
		return row, nil, false, err
	}
	if !row.Stays() {
		return row, nil, false, noVM(row.Name, "is being destroyed")
	}
	if row.SuspendedAt.IsZero() {
		f.idleSuspender.using(row.Job, 1)
		if err = f.mark(ctx, row); err != nil {
			f.idleSuspender.using(row.Job, -1)
		}
		return row, nil, err == nil, err
	}
	if work, err := f.access.workOn(ctx, row.Job); err != nil || work != "" {
		return row, nil, false, err
	}
	finished, err = d.begin(ctx, row.Job, waking)
	return row, finished, false, err
}

// wake resumes a VM that was suspended because it was idle. It continues if its caller leaves.
func (f *Fleet) wake(ctx context.Context, v vm.VM, finished func()) error {
	ended := make(chan error, 1)
	err := f.Spawn(func(running context.Context) {
		defer finished()
		f.o.Guest.Forget(asJob(v))
		err := f.up(f.o.Provider.ResumeVM)(running, v)
		if err == nil {
			err = f.awoken(running, v, fmt.Sprintf("VM %d is resumed: it is used again", v.ID))
		}
		ended <- err
	})
	if err != nil {
		finished()
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awoken records that a VM is no longer suspended because it was idle, and is used now.
func (f *Fleet) awoken(ctx context.Context, v vm.VM, text string) error {
	_, err := f.update(ctx, v.Job, func(v *vm.VM) (events []job.Event, _ error) {
		if text != "" && !v.SuspendedAt.IsZero() {
			events = append(events, job.Event{Kind: job.EventProgress, Text: text})
		}
		v.SuspendedAt, v.UsedAt = time.Time{}, now()
		return events, nil
	})
	return err
}

// mark records that a VM is used now; v is its row.
func (f *Fleet) mark(ctx context.Context, v vm.VM) error {
	if now().Sub(v.UsedAt) < markEvery {
		return nil
	}
	return f.set(ctx, v.Job, func(v *vm.VM) { v.UsedAt = now() })
}

// touch records that a VM was used until now, if its uses are recorded. The next use makes up for a failure.
func (f *Fleet) touch(ctx context.Context, id string) {
	v, err := f.o.Store.VM(ctx, id)
	if err == nil && v.NotesUse() && v.State == vm.Created {
		err = f.mark(ctx, v)
	}
	if err != nil {
		f.o.Log.Debug("recording the use of a VM failed", "job_id", id, "err", err)
	}
}

// tendIdle records the uses in progress here and, if this engine leads, begins to suspend the VMs
// that were not used for their idle time.
func (f *Fleet) tendIdle(ctx context.Context) error {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	leads, awake := job.Leads(ctx, f.o.Engines, f.o.Log), 0
	for _, v := range vms {
		if !v.NotesUse() || !v.Stays() || !v.Kept || v.BeingMade() {
			continue
		}
		jobs, err := f.inside(ctx, v)
		if err != nil {
			return err
		}
		if f.idleSuspender.using(v.Job, 0) > 0 || len(jobs) > 0 || v.Forking.Active() || v.UsedAt.IsZero() {
			awake++
			if err := f.mark(ctx, v); err != nil {
				return err
			}
			continue
		}
		if !leads || !v.Naps() {
			continue
		}
		due, is := f.idleSuspender.due(v)
		if !is {
			awake++
		}
		if due {
			f.background.Go(func() { f.nap(ctx, v) })
		}
	}
	f.idleSuspender.looked(vms, leads, awake)
	return nil
}

// looked records how many VMs are to be suspended some time, and forgets those that no longer exist or nap.
// If another engine leads, it forgets all: its knowledge would be outdated once this engine leads again.
func (s *idleSuspender) looked(vms []vm.VM, leads bool, awake int) {
	there := map[string]bool{}
	for _, v := range vms {
		there[v.Job] = leads && (v.Naps() || !v.SuspendedAt.IsZero())
	}
	gone := func(id string) bool { return !there[id] }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awake = awake
	maps.DeleteFunc(s.again, func(id string, _ time.Time) bool { return gone(id) })
	maps.DeleteFunc(s.failed, func(id string, _ int) bool { return gone(id) })
	maps.DeleteFunc(s.down, func(id string, _ time.Time) bool { return gone(id) })
}

// seen reports whether a VM is suspended because it was idle, as confirmed by the host.
func (s *idleSuspender) seen(v vm.VM) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !v.SuspendedAt.IsZero() && s.down[v.Job].Equal(v.SuspendedAt)
}

// due reports whether a VM is to be suspended now, and whether it already is. A VM that is due
// counts as being suspended.
func (s *idleSuspender) due(v vm.VM) (due, is bool) {
	if s.seen(v) {
		return false, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trying[v.Job] || time.Now().Before(s.again[v.Job]) || v.SuspendedAt.IsZero() && time.Since(v.UsedAt) < v.IdleTime() {
		return false, false
	}
	s.trying[v.Job] = true
	return true, false
}

// nap suspends a VM that was not used for its idle time. After a failure, the VM is left alone for
// a while, longer each time.
func (f *Fleet) nap(ctx context.Context, v vm.VM) {
	since, err := f.tryNap(ctx, v)
	f.idleSuspender.mu.Lock()
	defer f.idleSuspender.mu.Unlock()
	delete(f.idleSuspender.trying, v.Job)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		f.idleSuspender.again[v.Job] = time.Now().Add(min(time.Minute<<min(f.idleSuspender.failed[v.Job], 10), maxNapOff))
		f.idleSuspender.failed[v.Job]++
		f.o.Log.Warn("suspending an idle VM failed", "job_id", v.Job, "vm_id", v.ID, "err", err)
	case !since.IsZero():
		f.idleSuspender.down[v.Job] = since
		delete(f.idleSuspender.failed, v.Job)
		delete(f.idleSuspender.again, v.Job)
	}
}

// tryNap returns since when the VM is suspended because it is idle; zero: it is not.
func (f *Fleet) tryNap(ctx context.Context, v vm.VM) (since time.Time, err error) {
	switch status, err := f.o.Provider.Status(ctx, v); {
	case err != nil:
		return since, err
	case status == vm.Suspended && !v.SuspendedAt.IsZero():
		return v.SuspendedAt, nil
	case status != vm.Running && !status.Down():
		return since, fmt.Errorf("its status on the host is %s", status)
	case status != vm.Running: // somebody turned it off, and may want that
		f.idleSuspender.later(v.Job, v.IdleTime())
		if v.SuspendedAt.IsZero() {
			return since, nil
		}
		return since, f.awoken(ctx, v, "")
	}
	timed, end := context.WithTimeout(ctx, inUseTime)
	defer end()
	var used bool
	err = f.enter(timed, v, func(ctx context.Context) (err error) {
		used, err = f.o.Guest.InUse(ctx, v)
		return err
	})
	if err == nil && used {
		return since, f.awoken(ctx, v, "")
	}
	if err == nil {
		var finished func()
		if since, finished, err = f.beginNap(ctx, v); err == nil && finished == nil {
			return since, nil
		}
		if err == nil {
			defer finished()
			f.o.Guest.Forget(asJob(v))
			err = f.o.Provider.SuspendVM(ctx, v)
		}
	}
	if err == nil || ctx.Err() != nil {
		return since, err
	}
	status, unseen := f.o.Provider.Status(ctx, v) // the host may have completed it all the same
	if unseen == nil && status == vm.Suspended && !since.IsZero() {
		return since, nil
	}
	_, noteErr := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		if unseen == nil && status != vm.Unknown { // else a use resumes it, and the next attempt sees its status
			v.SuspendedAt = time.Time{}
		}
		return []job.Event{{Kind: job.EventWarning, Text: "VM is idle and not suspended, will be tried again: " + err.Error()}}, nil
	})
	return time.Time{}, errors.Join(err, noteErr)
}

// beginNap decides that a VM is suspended now, until finished is called; nil: it is in use.
func (f *Fleet) beginNap(ctx context.Context, v vm.VM) (since time.Time, finished func(), err error) {
	d, err := f.access.decide(ctx)
	if err != nil {
		return since, nil, err
	}
	defer d.end()
	row, err := f.o.Store.VM(ctx, v.Job)
	if err != nil {
		return since, nil, err
	}
	jobs, err := f.inside(ctx, row)
	if err != nil || len(jobs) > 0 || f.idleSuspender.using(row.Job, 0) > 0 || !row.Stays() || row.Forking.Active() || !row.UsedAt.Equal(v.UsedAt) || !row.SuspendedAt.Equal(v.SuspendedAt) {
		return since, nil, err
	}
	if work, err := f.access.workOn(ctx, row.Job); err != nil || work != "" {
		return since, nil, err
	}
	if finished, err = d.begin(ctx, row.Job, napping); err != nil {
		return since, nil, err
	}
	row, err = f.update(ctx, row.Job, func(v *vm.VM) ([]job.Event, error) {
		if !v.SuspendedAt.IsZero() {
			return nil, nil
		}
		v.SuspendedAt = now()
		return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("VM %d is suspended: not used for %s; its next use resumes it", v.ID, v.IdleTime())}}, nil
	})
	if err != nil {
		finished()
		return since, nil, err
	}
	return row.SuspendedAt, finished, nil
}

// usedTunnel and usedTree count as uses of a VM until they are closed.
type usedTunnel struct {
	job.Tunnel
	done func()
}

func (t usedTunnel) Close() error {
	defer t.done()
	return t.Tunnel.Close()
}

type usedTree struct {
	io.ReadCloser
	done func()
}

func (t usedTree) Close() error {
	defer t.done()
	return t.ReadCloser.Close()
}

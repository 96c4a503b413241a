package executor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
)

// checkedFor is how long a check of the host is believed, but for the operator: who has just
// mended something wants to see it.
const checkedFor = 5 * time.Second

// hostCheck is one check of the host, for all who ask while it runs.
type hostCheck struct {
	done   chan struct{}
	at     time.Time // when it ended
	report job.HostReport
	err    error
}

// CheckHost checks whether the host can run jobs, and whether its pools fit. It is one
// check at a time, whoever asks: each runs many programs there, as root.
func (e *Executor) CheckHost(ctx context.Context) (job.HostReport, error) {
	c, err := e.checking(ctx)
	if err != nil {
		return job.HostReport{}, err
	}
	select {
	case <-c.done:
		report := c.report
		report.Checks = slices.Clone(report.Checks)
		return report, c.err
	case <-ctx.Done():
		return job.HostReport{}, context.Cause(ctx)
	}
}

// checking returns the check that runs, one that has just ended, or a new one. That goes on
// if its caller leaves, since others may wait for it.
func (e *Executor) checking(ctx context.Context) (*hostCheck, error) {
	p, _ := job.PrincipalFrom(ctx)
	e.checkMu.Lock()
	defer e.checkMu.Unlock()
	if c := e.hostCheck; c != nil {
		select {
		case <-c.done:
			if p.Owner() != "" && c.err == nil && time.Since(c.at) < checkedFor {
				return c, nil
			}
		default:
			return c, nil
		}
	}
	c := &hostCheck{done: make(chan struct{})}
	err := e.spawn(func(running context.Context) {
		defer close(c.done)
		c.report, c.err = e.o.Provider.Check(running)
		if c.err == nil && c.report.OK {
			c.report.Checks = append(c.report.Checks, e.o.Fleet.CheckPools(running)...)
		}
		if own := e.checkSelf(running); c.err == nil && len(own) > 0 {
			c.report.OK, c.report.Checks = false, append(c.report.Checks, own...)
		}
		c.at = time.Now()
	})
	if err != nil {
		return nil, err
	}
	e.hostCheck = c
	return c, nil
}

// checkSelf returns what is wrong with what the engine itself stands on.
func (e *Executor) checkSelf(ctx context.Context) (wrong []job.Check) {
	fail := func(name, text, remedy string) {
		wrong = append(wrong, job.Check{Name: name, Level: "fail", Text: text, Remedy: remedy})
	}
	if e.o.Spare != nil {
		if err := e.o.Spare(); err != nil {
			fail("state", err.Error(), "jobs that run go on; no job is accepted until there is more")
		}
	}
	if _, err := e.o.Cordons.Cordons(ctx); err != nil && ctx.Err() == nil {
		fail("database", err.Error(), "see that the database runs, has disk left and can be reached")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	n, text := 0, ""
	for _, r := range e.runs {
		if r.fault != nil {
			n, text = n+1, r.fault.text
		}
	}
	if n > 0 {
		fail("engine", fmt.Sprintf("this engine cannot go on with %d of its jobs, such as: %s", n, text), "the jobs wait for that, and their VMs work on; see the engine's log")
	}
	return wrong
}

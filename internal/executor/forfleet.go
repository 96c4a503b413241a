package executor

import (
	"context"
	"fmt"

	"linus/internal/job"
)

// Spawn runs work that outlives its caller, and ends with the engine.
func (e *Executor) Spawn(work func(running context.Context)) error { return e.o.Fleet.Spawn(work) }

// CheckHost checks whether the host can run jobs, and whether this engine can.
func (e *Executor) CheckHost(ctx context.Context) (job.HostReport, error) {
	report, err := e.o.Fleet.CheckHost(ctx)
	if own := e.checkSelf(ctx); err == nil && len(own) > 0 {
		report.OK, report.Checks = false, append(report.Checks, own...)
	}
	return report, err
}

// checkSelf returns what is wrong with the engine's own resources: state, database and jobs.
func (e *Executor) checkSelf(ctx context.Context) (wrong []job.Check) {
	fail := func(name, text, remedy string) {
		wrong = append(wrong, job.Check{Name: name, Level: "fail", Text: text, Remedy: remedy})
	}
	if e.o.Spare != nil {
		if err := e.o.Spare(); err != nil {
			fail("state", err.Error(), "running jobs continue; no job is accepted until there is more")
		}
	}
	if _, err := e.o.Queue.WaitingOf(ctx); err != nil && ctx.Err() == nil {
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
		fail("engine", fmt.Sprintf("this engine cannot continue %d of its jobs, such as: %s", n, text), "the jobs wait until it can, and their VMs keep working; see the engine's log")
	}
	return wrong
}

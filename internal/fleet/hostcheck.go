package fleet

import (
	"context"
	"slices"
	"time"

	"linus/internal/job"
)

// checkedFor is how long a check of the host stays valid. This does not apply to the operator, who
// may just have fixed something and wants to see that.
const checkedFor = 5 * time.Second

// hostCheck is one check of the host, shared by all who ask while it runs.
type hostCheck struct {
	done   chan struct{}
	at     time.Time // when it ended
	report job.HostReport
	err    error
}

// CheckHost checks whether the host can run jobs and whether its pools fit. Only one check runs at
// a time: each runs many programs on the host as root.
func (f *Fleet) CheckHost(ctx context.Context) (job.HostReport, error) {
	c, err := f.checking(ctx)
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

// checking returns the running check, one that has just ended, or a new one. The check continues if
// its caller leaves, since others may wait for it.
func (f *Fleet) checking(ctx context.Context) (*hostCheck, error) {
	p, _ := job.PrincipalFrom(ctx)
	f.checkMu.Lock()
	defer f.checkMu.Unlock()
	if c := f.hostCheck; c != nil {
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
	err := f.Spawn(func(running context.Context) {
		defer close(c.done)
		c.report, c.err = f.o.Provider.Check(running)
		if c.err == nil && c.report.OK {
			c.report.Checks = append(c.report.Checks, f.checkPools(running)...)
		}
		if c.err == nil && f.o.Tests != nil {
			c.report.Checks = append(c.report.Checks, f.o.Tests.Checked(running, c.report.Facts)...)
		}
		c.at = time.Now()
	})
	if err != nil {
		return nil, err
	}
	f.hostCheck = c
	return c, nil
}

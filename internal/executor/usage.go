package executor

import (
	"cmp"
	"context"
	"slices"
	"time"

	"linus/internal/job"
)

// Usage returns what jobs and VMs used, the most VM hours first.
func (e *Executor) Usage(ctx context.Context, q job.UsageQuery) ([]job.Usage, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	at := now()
	if q.Since.IsZero() {
		q.Since = at.Add(-job.UsageDays * 24 * time.Hour)
	}
	groups, err := e.o.Jobs.Usage(ctx, q, at)
	all := make([]job.Usage, 0, len(groups))
	for of, used := range groups {
		all = append(all, used.Told(of))
	}
	slices.SortFunc(all, func(a, b job.Usage) int {
		return cmp.Or(cmp.Compare(b.VMHours, a.VMHours), cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Of, b.Of))
	})
	return all, err
}

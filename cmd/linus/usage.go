package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) usageCommand() *cobra.Command {
	var q job.UsageQuery
	var since string
	var asCSV bool
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what jobs and VMs have used: VM hours, processors, memory, waits",
		Long: "A job's VM counts from when the job left the queue to its end, with the size that was asked for. Jobs in existing VMs have none.\n" +
			"A VM that stays counts by itself while it runs, from when it is made, or from the end of the job that made it, until it is gone:\n" +
			"one that is turned off or on from inside, or on the host, from when the engine sees that, within ten minutes. A pool's VM counts\n" +
			"once somebody has it. The hours of VMs that stay are those since --since, those of jobs are of jobs that were submitted since then.\n" +
			"WAIT is the median and the 95th percentile of the time jobs waited in the queue. Jobs that were deleted count, too, except by a label.\n" +
			"A token sees its own jobs, an admin all.",
		Example: "  linus usage --by repository --since 7d\n  linus usage --by label=team --csv >usage.csv",
		Args:    noArgs,
		RunE: a.reading(func(ctx context.Context, e job.Engine, _ []string) (err error) {
			if q.Since, err = job.ParseTime("since", since); err != nil {
				return err
			}
			all, err := e.Usage(ctx, q)
			if err != nil {
				return err
			}
			if asCSV {
				w := csv.NewWriter(a.stdout)
				_ = w.WriteAll(job.UsageTable(q, all)) // its error is kept
				return w.Error()
			}
			return printAll(a, all, "no jobs, and no VMs that stay", strings.ToUpper(usageOf(q))+"\tJOBS\tFAILED\tVM HOURS\tCPU HOURS\tGIB HOURS\tWAIT 50%\tWAIT 95%\tWHY", func(u job.Usage) string {
				failed := 0
				var why []string
				for _, reason := range slices.Sorted(maps.Keys(u.Failed)) {
					failed += u.Failed[reason]
					why = append(why, fmt.Sprintf("%s %d", reason, u.Failed[reason]))
				}
				return fmt.Sprintf("%s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f s\t%.1f s\t%s", oneLine(u.Of, 100), u.Jobs, failed, u.VMHours, u.CPUHours, u.GiBHours, u.QueueP50, u.QueueP95, strings.Join(why, ", "))
			})
		}),
	}
	cmd.Flags().StringVar(&q.By, "by", "", "a line for each principal, queue, repository, template or label=KEY")
	cmd.Flags().StringVar(&since, "since", "", "of jobs submitted since then, and VMs that stay: a time such as 2026-01-02T15:04:05Z, or how long ago, as in 7d (default 30d)")
	cmd.Flags().StringVar(&q.Principal, "owner", "", "only jobs of this principal; "+job.OperatorName+" is whoever runs the engine")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "as comma-separated values")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(append(slices.Clone(job.UsageKinds), job.UsageLabel), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func usageOf(q job.UsageQuery) string {
	if q.By == "" {
		return "of"
	}
	return strings.TrimPrefix(q.By, job.UsageLabel)
}

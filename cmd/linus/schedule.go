package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
)

func (a *app) scheduleCommands() []*cobra.Command {
	about := func(use, short string, run func(ctx context.Context, s *session, name string) error) *cobra.Command {
		return a.completeSchedules(&cobra.Command{
			Use: use + " NAME", Short: short, Args: oneArg("the schedule's name"),
			RunE: a.attached(func(ctx context.Context, s *session, args []string) error { return run(ctx, s, args[0]) }),
		})
	}
	pause := func(use, short string, paused bool) *cobra.Command {
		return about(use, short, func(ctx context.Context, s *session, name string) error {
			return saying(a, scheduleLine)(s.PauseSchedule(ctx, job.ScheduleEdit{Schedule: name, Paused: paused}))
		})
	}
	return []*cobra.Command{
		a.scheduleAddCommand(), a.scheduleListCommand(), a.scheduleShowCommand(),
		pause("pause", "Have a schedule submit no jobs until it is resumed", true), pause("resume", "Have a paused schedule submit jobs again, from its next time on", false),
		about("run", "Submit the job of a schedule now, in addition to its regular times", func(ctx context.Context, s *session, name string) error {
			return saying(a, func(j job.Job) string { return j.ID })(s.RunSchedule(ctx, name))
		}),
		about("remove", "Remove a schedule; its jobs stay, and keep running", func(ctx context.Context, s *session, name string) error {
			return saying(a, func(one job.Schedule) string { return "schedule " + one.Name + " removed" })(s.RemoveSchedule(ctx, name))
		}),
	}
}

func (a *app) scheduleAddCommand() *cobra.Command {
	var f submitFlags
	var spec job.ScheduleSpec
	cmd := &cobra.Command{
		Use:   "add NAME --cron TIMES [-f MANIFEST | -- COMMAND [ARG...]]",
		Short: "Submit a job at given times",
		Long: "Submits the job, with all options of linus job submit, each time that --cron says: minute, hour, day of the month, month, day of\n" +
			"the week, as in crontabs; or @hourly, @daily, @weekly, @monthly. Jobs are submitted as whoever added the schedule, with the limits\n" +
			"and rights of its token at that time; a schedule whose token was revoked is stopped.\n\n" +
			"When clocks change, a time that they skip is the moment to which they skip, and one that they show twice is the first of the two; every\n" +
			"hour stays every hour. An engine has to run at these times: one that was started by a command stays while there are schedules.",
		Example: "  linus schedule add nightly --cron '0 3 * * *' --timezone Europe/Berlin --repo https://github.com/acme/app -- make test\n" +
			"  linus schedule add sync --cron '*/15 * * * *' --overlap queue --missed skip -- ./sync.sh",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash == 0 || dash > 1 || dash < 0 && len(args) > 1 {
				return usage("give the schedule's name, and the command after --, as in: %s nightly --cron '0 3 * * *' -- make test", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if spec.Manifest, err = f.manifestOf(cmd, args[1:], a); err != nil {
				return err
			}
			spec.Name = args[0]
			s, err := a.attach(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer s.Close()
			return saying(a, scheduleLine)(s.CreateSchedule(cmd.Context(), spec))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.Cron, "cron", "", "when: minute, hour, day of the month, month, day of the week, as in '0 3 * * *'; or @daily and the like")
	flags.StringVar(&spec.Timezone, "timezone", "", "time zone of these times, as in Europe/Berlin (default UTC)")
	flags.StringVar((*string)(&spec.Overlap), "overlap", "", "while the job before has not ended: skip (default), queue: begin when it has, or replace: cancel it")
	flags.StringVar((*string)(&spec.Missed), "missed", "", "of times at which no engine ran: run-once (default): one job stands for all; or skip")
	flags.StringVarP(&f.file, "manifest", "f", "", "manifest, JSON; - is stdin")
	_ = cmd.MarkFlagFilename("manifest", "json")
	_ = cmd.RegisterFlagCompletionFunc("overlap", cobra.FixedCompletions(field.Words(job.Overlaps), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("missed", cobra.FixedCompletions(field.Words(job.MissedKinds), cobra.ShellCompDirectiveNoFileComp))
	f.register(a, cmd, field.Submit)
	flags.SetInterspersed(true) // the command is after --, and the name may be before the options
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	_ = cmd.MarkFlagRequired("cron")
	return cmd
}

func scheduleLine(s job.Schedule) string { return "schedule " + s.Name + ": " + nextRun(s) }

// nextRun says when a schedule's next job starts, or why there is none.
func nextRun(s job.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.Problem != "":
		return "stopped: " + s.Problem
	}
	return "next at " + local(s.NextAt)
}

func (a *app) scheduleListCommand() *cobra.Command {
	cmd := &cobra.Command{Short: "List schedules, with their next and their last run"}
	return listing(a, cmd, "schedules", job.Engine.Schedules, "no schedules", "SCHEDULE\tTIMES\tZONE\tNEXT\tLAST\tJOB\tOF\tTASK", func(s job.Schedule) string {
		var last job.Run
		if len(s.Runs) > 0 {
			last = s.Runs[0]
		}
		return strings.Join([]string{s.Name, s.Cron, s.Timezone, oneLine(strings.TrimPrefix(nextRun(s), "next at "), 200), local(last.At), oneLine(cmp.Or(last.Job, last.Why), 100), cmp.Or(s.Principal, job.OperatorName), oneLine(job.Title(s.Manifest.Task), 60)}, "\t")
	})
}

// mostRuns limits how many runs of a schedule are shown.
const mostRuns = 20

func (a *app) scheduleShowCommand() *cobra.Command {
	return a.completeSchedules(&cobra.Command{
		Use: "show NAME", Short: "Show a schedule and its last runs", Args: oneArg("the schedule's name"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			s, err := e.Schedule(ctx, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			return a.print(s, details(func(w io.Writer, row func(name, value string)) {
				row("schedule", s.Name)
				row("times", s.Cron+" "+s.Timezone)
				row("next", nextRun(s))
				row("overlap", string(s.Overlap))
				row("missed", string(s.Missed))
				row("belongs to", s.Principal)
				row("task", oneLine(job.Title(s.Manifest.Task), 100))
				for _, r := range s.Runs[:min(len(s.Runs), mostRuns)] {
					text := oneLine(r.Why, 300)
					if r.Job != "" {
						if j, err := e.Job(ctx, r.Job); err != nil {
							text = "job " + r.Job + ", deleted"
						} else {
							text = fmt.Sprintf("job %s, %s", r.Job, j.Status)
						}
					}
					row(local(r.At), text)
				}
			}))
		}),
	})
}

func (a *app) completeSchedules(cmd *cobra.Command) *cobra.Command {
	return completeFirst(cmd, each(a, job.Engine.Schedules, func(s job.Schedule) string { return s.Name + "\t" + s.Cron }))
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) waitCommand() *cobra.Command {
	return a.completeJobs(&cobra.Command{
		Use:   "wait ID...",
		Short: "Wait for jobs to finish",
		Long: "Waits until all the jobs have finished and prints each one's outcome, one line each. Exits with 0 if all succeeded, else with\n" +
			"the exit code of the first one given that did not (124: timed out; 125: no exit code).",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s takes the IDs of jobs", cmd.CommandPath())
			}
			return nil
		},
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			for _, id := range args { // a wrong ID is reported before waiting
				if _, err := e.Job(ctx, id); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
			var ends []job.Job
			var lines []string
			var code error
			for _, id := range args {
				j, err := a.follow(ctx, e, id, following{quiet: true, until: func(j job.Job) bool { return j.Status.Terminal() }})
				switch {
				case ctx.Err() != nil:
					return exitError(exitDetached)
				case err != nil:
					return err
				}
				o := *j.Outcome
				ends = append(ends, j)
				text := fmt.Sprintf("%s  %s", id, o.Status)
				switch {
				case o.ExitCode != nil:
					text += fmt.Sprintf(", exit code %d", *o.ExitCode)
				case string(o.Reason) != string(o.Status):
					text += fmt.Sprintf(" (%s)", o.Reason)
				}
				lines = append(lines, text)
				if code == nil {
					code = codeOf(job.Result{Status: o.Status, Reason: o.Reason, ExitCode: o.ExitCode})
				}
			}
			if err := a.print(ends, strings.Join(lines, "\n")); err != nil {
				return err
			}
			return code
		}),
	})
}

func (a *app) killCommand() *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use:   "kill ID",
		Short: "Kill a job's task with its whole process tree; a shared VM stays",
		Long: "Sends the signal to the task and everything it has started, and KILL to what is left 5 seconds later. The job's status is then\n" +
			"failed, reason killed, with the task's exit code if it has one. A job that is not running yet is ended as well.",
		Args: oneArg("the job's ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			result, err := s.Kill(ctx, args[0], signal)
			switch {
			case err != nil:
				return err
			case result == job.KillNotFound:
				return job.ErrNotFound
			case result == job.AlreadyTerminated:
				return job.ErrCompleted
			}
			return a.print(map[string]any{"id": args[0], "result": result}, "job "+args[0]+" killed")
		}),
	}
	cmd.Flags().StringVar(&signal, "signal", job.Signals[0], strings.Join(job.Signals, ", "))
	_ = cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions(job.Signals, cobra.ShellCompDirectiveNoFileComp))
	return a.completeJobs(cmd)
}

func (a *app) cleanupCommand() *cobra.Command {
	var age time.Duration
	cmd := &cobra.Command{
		Use:   "cleanup [JOB...]",
		Short: "Delete the records of finished jobs, with their output and artifacts",
		Long:  "Deletes the jobs that are named or, without names, those that finished longer ago than --older-than. A job is kept as long as its VM exists.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.Flags().Changed("older-than") {
				return usage("--older-than is for all jobs: leave it out, or the names")
			}
			if age < 0 {
				return usage("--older-than %s: give 0 or more, as in 24h", age)
			}
			return nil
		},
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			n, err := 0, error(nil)
			for _, id := range args {
				if err = s.DeleteJob(ctx, id); err != nil {
					return err
				}
				n++
			}
			if len(args) == 0 {
				n, err = s.Cleanup(ctx, age)
			}
			if err != nil {
				return err
			}
			return a.print(map[string]int{"forgotten": n}, fmt.Sprintf("%d jobs deleted", n))
		}),
	}
	cmd.Flags().DurationVar(&age, "older-than", 24*time.Hour, "time since the job finished; 0s: all finished jobs")
	return a.completeJobs(cmd)
}

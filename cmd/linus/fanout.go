package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/junit"
	"linus/internal/worktree"
)

// waitForChildren follows a parent to its end, and shows a line for each child that ends.
func (a *app) waitForChildren(ctx context.Context, e waiter, j job.Job) error {
	p := &progress{out: a.stderr, live: isTerminal(a.stderr)}
	defer p.clear()
	colours, wide, after, shown := a.colours(a.stdout), len("JOB OF"), int64(0), map[string]bool{}
	for _, c := range j.Children {
		wide = max(wide, len(c.Name))
	}
	row := func(name, status, exit, took, id, tests string) {
		p.clear()
		if !a.json {
			_, _ = fmt.Fprintln(a.stdout, strings.TrimRight(fmt.Sprintf("%-*s  %s%*s  %-16s  %8s  %-36s  %s", wide, name, colours.paint(status), 8-len(status), "", exit, took, id, tests), " "))
		}
	}
	row("JOB OF", "STATUS", "EXIT", "TIME", "JOB", "TESTS")
	var all junit.Totals
	for {
		ended := slices.DeleteFunc(slices.Clone(j.Children), func(c job.Child) bool { return !c.Status.Terminal() || shown[c.Name] })
		slices.SortStableFunc(ended, func(a, b job.Child) int { return a.EndedAt.Compare(b.EndedAt) })
		for _, c := range ended {
			shown[c.Name] = true
			report, err := a.testsOf(ctx, e, c.ID)
			if err != nil {
				return err
			}
			all = sum(all, report.Totals)
			exit := string(c.Reason)
			if c.ExitCode != nil {
				exit = fmt.Sprint(*c.ExitCode)
			}
			row(c.Name, string(c.Status), exit, seconds(c.Duration), c.ID, report.String())
		}
		if j.Done() {
			break
		}
		p.waiting = j.Progress
		events, now, err := p.whileLive(ctx, func(ctx context.Context) ([]job.Event, job.Job, error) { return e.Watch(ctx, j.ID, after) })
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			a.note("\ndetached; the jobs keep running\n  follow: linus job status %s --wait\n  end:    linus job cancel %s", j.ID, j.ID)
			return exitError(exitDetached)
		}
		if j = now; len(events) > 0 {
			after = events[len(events)-1].Seq
		}
	}
	p.clear()
	r, err := e.Result(ctx, j.ID)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(j); err != nil {
			return err
		}
	}
	text := summary(r)
	if all.Tests > 0 {
		text += "\n" + all.String() + "; linus job junit " + j.ID
	}
	if len(j.Artifacts) > 0 {
		text += fmt.Sprintf("\nartifacts: %d; linus job artifacts get %s", len(j.Artifacts), j.ID)
	}
	a.note("%s", text)
	return codeOf(r)
}

func sum(a, b junit.Totals) junit.Totals {
	return junit.Totals{Tests: a.Tests + b.Tests, Failures: a.Failures + b.Failures, Errors: a.Errors + b.Errors, Skipped: a.Skipped + b.Skipped}
}

func (a *app) testsOf(ctx context.Context, e keeper, id string) (junit.Report, error) {
	j, err := e.Job(ctx, id)
	if err != nil {
		return junit.Report{}, err
	}
	report, left := junit.Collect(j.ArtifactPaths(), len(j.Children) > 0, func(path string) (io.ReadCloser, error) {
		file, _, err := e.OpenArtifact(ctx, id, path)
		return file, err
	})
	for _, line := range left[:min(len(left), mostLeftOut)] {
		a.note("not read: %s", oneLine(line, 400))
	}
	return report, nil
}

func (a *app) junitCommand() *cobra.Command {
	return a.completeJobs(&cobra.Command{
		Use:   "junit ID",
		Short: "Show the tests of a job, or of all jobs of a matrix, as one JUnit report",
		Long: "Merges the JUnit reports among the job's artifacts (files called .xml) into one, and writes it to stdout; the totals go to stderr.\n" +
			"Of a job with a matrix or shards it is one report of all its jobs, with their names before the suites'.",
		Example: "  linus job junit ID > report.xml",
		Args:    oneArg("the job's ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			if _, err := ended(ctx, e, args[0]); err != nil {
				return err
			}
			report, err := a.testsOf(ctx, e, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(report)
			}
			a.note("%s", cmp.Or(report.String(), "no tests: no artifact is a JUnit report"))
			to, done := a.output(a.stdout)
			return errors.Join(report.Write(to), done())
		}),
	})
}

func (a *app) writeReport(ctx context.Context, e keeper, id, file string) error {
	report, err := a.testsOf(ctx, e, id)
	if err != nil {
		return err
	}
	to, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("--junit: %w", err)
	}
	err = errors.Join(report.Write(to), to.Close())
	if err == nil {
		a.note("%s: %s", file, cmp.Or(report.String(), "no tests: nothing that --pull brings is a JUnit report"))
	}
	return err
}

// pullChildren fetches files of a run's jobs, those of each job into a directory with its name.
func (a *app) pullChildren(ctx context.Context, s *session, j job.Job, t worktree.Tree, r treeRun, f takeFlags) (failed error) {
	to := f.to
	for _, c := range j.Children {
		child, err := s.Job(ctx, c.ID)
		if err == nil {
			f.below, f.to = c.Name, filepath.Join(to, c.Name)
			if err = os.MkdirAll(f.to, 0o755); err == nil { //nolint:gosec // a user's ordinary directory
				err = a.pullRun(ctx, s, child, t, r, f)
			}
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return failed
}

// childrensLogs writes the output of each child below a heading with its name.
func (a *app) childrensLogs(ctx context.Context, j job.Job, copy func(id string) error) error {
	for i, c := range j.Children {
		head := fmt.Sprintf("==> %s, job %s <==\n", c.Name, c.ID)
		if i > 0 {
			head = "\n" + head
		}
		if _, err := io.WriteString(a.stdout, head); err != nil {
			return err
		}
		if err := copy(c.ID); err != nil || ctx.Err() != nil {
			return err
		}
	}
	return nil
}

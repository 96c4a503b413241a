package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/term"
	"linus/internal/vm"
)

func (a *app) statusCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "status ID",
		Short: "Show a job's status",
		Args:  oneArg("the job's ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			if wait {
				return a.waitFor(ctx, e, args[0])
			}
			return saying(a, statusText)(e.Job(ctx, args[0]))
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "follow the job to its end, show its result and exit with its exit code, as submit --wait does")
	a.rawFlag(cmd)
	return a.completeJobs(cmd)
}

// statusText returns a job's status, with one line for each detail.
func statusText(j job.Job) string {
	return details(func(_ io.Writer, line func(name, value string)) {
		row := func(name, value string) { line(name, strings.ReplaceAll(term.Text(value), "\n", "\n\t")) }
		row("job", j.ID)
		row("status", string(j.Status))
		if j.Outcome != nil {
			row("reason", string(j.Outcome.Reason))
			if j.Outcome.ExitCode != nil {
				row("exit code", fmt.Sprint(*j.Outcome.ExitCode))
			}
			row("error", words.In(j.ErrorText()))
		}
		row("run again as", j.RetriedAs)
		row("again for", j.RetryOf)
		row("part of", strings.TrimSuffix(j.Parent+", as "+j.Variant, ", as "))
		for _, c := range j.Children {
			row(c.Name, c.How()+", job "+c.ID)
		}
		if s := j.Session; s != nil {
			row("serves", oneLine(strings.TrimSuffix(fmt.Sprintf("%s %s of %s", job.QueueID(s.Kind, s.Queue), cmp.Or(s.Work.Title, s.Work.ID), s.Work.Of), " of "), 300))
			row("work's URL", oneLine(s.Work.URL, 300))
		}
		row("labels", strings.Join(job.LabelTexts(j.Manifest.Labels), ", "))
		row("phase", j.Phase)
		row("progress", j.Progress)
		row("task", oneLine(job.Title(j.Manifest.Task), 100))
		if vm := j.VM; vm != nil {
			row("vm", strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s", vmID(vm), vm.Name, vm.Node, vm.IP)), " ")+" ("+vmOrigin(vm)+")")
			row("network", networkText(j.Manifest.Network))
			row("vm's reason", oneLine(vm.Reason, 600))
			row("vm's remedy", oneLine(vm.Remedy, 600))
		}
		if j.Repository != nil {
			row("repository", repositoryText(*j.Repository))
		}
		if n := len(j.Artifacts); n > 0 {
			row("artifacts", fmt.Sprint(n))
		}
		row("left out", strings.Join(leftOut(j.SkippedArtifacts), "\n\t"))
		row("belongs to", j.Principal)
		for _, d := range j.Webhooks {
			row("webhook", deliveryText(d))
		}
		row("created", local(j.CreatedAt))
		row("started", local(j.StartedAt))
		row("completed", local(j.CompletedAt))
		row("heartbeat", local(j.LastHeartbeat))
	})
}

func deliveryText(d job.Delivery) string {
	text := strings.ReplaceAll(string(d.State), "_", " ") + ", to " + cmp.Or(d.To, "WEBHOOK_URL")
	if d.Attempts > 0 {
		text += fmt.Sprintf(", attempt %d at %s", d.Attempts, local(d.At))
	}
	if !d.NextAt.IsZero() {
		text += ", the next at " + local(d.NextAt)
	}
	if d.Error != "" {
		text += ": " + d.Error
	}
	return oneLine(text, 600)
}

func vmID(v *vm.VM) string {
	if v.ID == 0 {
		return ""
	}
	return fmt.Sprint(v.ID)
}

// vmOrigin returns the state of a job's VM and, unless the VM was created for the job, where it
// came from.
func vmOrigin(v *vm.VM) string {
	switch v.Source {
	case vm.FromPool:
		return string(v.State) + ", from a pool"
	case vm.FromHibernated:
		return string(v.State) + ", hibernated in a pool"
	case vm.Forked:
		return string(v.State) + ", a copy of the VM of " + v.From
	}
	return string(v.State)
}

func (a *app) resultCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "result ID",
		Short: "Show a finished job's result",
		Long: "Writes the task's stdout to stdout and its stderr to stderr, byte for byte, then a one-line summary to stderr. A terminal\n" +
			"gets only text and colours, unless --raw.",
		Args: oneArg("the job's ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			r, err := e.Result(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printResult(r)
		}),
	}
	a.rawFlag(cmd)
	return a.completeJobs(cmd)
}

func (a *app) printResult(r job.Result) error {
	if a.json {
		return a.printJSON(r)
	}
	for _, stream := range []struct {
		name string
		to   io.Writer
		data []byte
	}{{job.Stdout, a.stdout, r.Stdout}, {job.Stderr, a.stderr, r.Stderr}} {
		to, done := a.output(stream.to)
		_, err := to.Write(stream.data)
		if err = errors.Join(err, done()); err != nil {
			return fmt.Errorf("write the job's %s: %w", stream.name, err)
		}
	}
	a.note("%s", summary(r))
	return nil
}

// onlyExited reports whether a job's exit code is all there is to say about its end.
func onlyExited(r job.Result) bool {
	return r.Reason == job.ReasonExitStatus && r.ExitCode != nil && (r.Error == "" || r.Error == fmt.Sprintf("exit status %d", *r.ExitCode))
}

// summary describes a finished job in one line, with its error and what was left out below.
func summary(r job.Result) string {
	s := fmt.Sprintf("job %s: %s", r.JobID, r.Status)
	if r.ExitCode != nil {
		s += fmt.Sprintf(", exit code %d", *r.ExitCode)
	} else if string(r.Reason) != string(r.Status) {
		s += fmt.Sprintf(" (%s)", r.Reason)
	}
	if r.Duration > 0 {
		s += ", ran " + seconds(r.Duration)
	}
	for _, stream := range []struct {
		name string
		info job.OutputInfo
	}{{job.Stdout, r.StdoutInfo}, {job.Stderr, r.StderrInfo}} {
		if stream.info.Dropped > 0 {
			s += fmt.Sprintf(", %d of %d bytes of %s dropped", stream.info.Dropped, stream.info.Total, stream.name)
		}
		if stream.info.Incomplete {
			s += ", " + stream.name + " incomplete"
			if stream.info.Why != "" {
				s += ": " + oneLine(stream.info.Why, 300)
			}
		}
	}
	if r.Error != "" && !onlyExited(r) {
		s += "\n" + r.Error
	}
	if r.Repository != nil {
		s += "\nrepository: " + repositoryText(*r.Repository)
	}
	for _, line := range leftOut(r.SkippedArtifacts) {
		s += "\nno artifact: " + line
	}
	return s
}

func repositoryText(c job.Checkout) string {
	text := oneLine(c.Text(), 400)
	if c.Problem != "" {
		text += "\n" + oneLine(c.Problem, 600)
	}
	return text
}

// mostLeftOut limits how many of the items that were left out are listed.
const mostLeftOut = 10

// leftOut returns a line for each artifact that was not kept, with the reason.
func leftOut(s job.SkippedArtifacts) (lines []string) {
	for _, f := range s.ArtifactsSkipped[:min(len(s.ArtifactsSkipped), mostLeftOut)] {
		lines = append(lines, oneLine(f.Path, 200)+": "+oneLine(f.Reason, 300))
	}
	if more := s.ArtifactsSkippedCount - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("%d more", more))
	}
	return lines
}

func (a *app) listCommand() *cobra.Command {
	var f job.Filter
	var q *job.Query
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List jobs, newest first",
		Long: "Lists the newest jobs first, or with --sort created_at the oldest. A search (--text, --label, --client, --queue, --reason, --owner)\n" +
			"examines up to 20000 jobs for a page; if it stops before the oldest, the next page continues there.",
		Example: "  linus job list --status failed --since 24h\n" +
			"  linus job list --reason lost\n" +
			"  linus job list --text 'make test' --client mcp:claude-code",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("limit") && f.Limit < 1 {
				return usage("--limit %d is out of range; give 1 to 200", f.Limit)
			}
			f.Label = q.Label
			f.Status, f.Text, f.Principal, f.Since, f.Before, f.Sort = job.Status(q.Status), q.Text, q.Principal, q.Since, q.Before, q.Sort
			e, done, err := a.reader(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			page, err := e.List(cmd.Context(), f)
			if err != nil {
				return err
			}
			if a.json {
				if page.Jobs == nil {
					page.Jobs = []job.Summary{}
				}
				return a.printJSON(page)
			}
			return a.printList(page)
		},
	}
	q = queryFlags(cmd, job.ListingOfJobs(), "jobs", "their ID, or in the first 100 characters of their task")
	cmd.Flags().StringVar((*string)(&f.Reason), "reason", "", "only jobs that ended for this reason: "+strings.Join(field.Words(job.Reasons), ", "))
	cmd.Flags().StringVar(&f.Parent, "parent", "", "only the jobs that this one made from its matrix or shards")
	_ = cmd.RegisterFlagCompletionFunc("parent", a.jobIDs())
	cmd.Flags().StringVar(&f.Client, "client", "", "only jobs that this client submitted, as in cli, web or mcp:claude-code")
	cmd.Flags().StringVar(&f.Queue, "queue", "", "only jobs that serve work of this queue, as KIND or KIND:NAME (linus dispatch list)")
	cmd.Flags().StringVar(&f.Dispatcher, "dispatcher", "", "only jobs that this dispatcher submitted")
	cmd.Flags().IntVar(&f.Limit, "limit", 50, "jobs to show, 1 to 200")
	cmd.Flags().StringVar(&f.Cursor, "cursor", "", "where to continue, as printed after the previous page")
	_ = cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(field.Words(job.Reasons), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printList(page job.Page) error {
	if len(page.Jobs) == 0 && page.Next != "" {
		a.note("no matching jobs so far; for more, run the same command with --cursor %s", page.Next)
		return nil
	}
	c := a.colours(a.stdout)
	owned := slices.ContainsFunc(page.Jobs, func(j job.Summary) bool { return j.Principal != "" })
	header := fmt.Sprintf("JOB\t%s\tPHASE\tNODE\tCREATED\t%sTASK", c.paint("STATUS"), ownerCell(owned, "OF"))
	if page.Next != "" {
		defer a.note("more: linus job list --cursor %s", page.Next)
	}
	return printAll(a, page.Jobs, "no jobs", header, func(j job.Summary) string {
		var node string
		if j.VM != nil {
			node = j.VM.Node
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s%s", j.ID, c.paint(string(j.Status)), oneLine(j.Phase, 40), oneLine(node, 63), local(j.CreatedAt), ownerCell(owned, j.Principal), oneLine(strings.TrimPrefix(j.Variant+": ", ": ")+job.Title(j.Task), 60))
	})
}

// ownerCell returns the cell with an item's owner, in lists where some items do not belong to the
// operator.
func ownerCell(shown bool, principal string) string {
	if !shown {
		return ""
	}
	return cmp.Or(principal, job.OperatorName) + "\t"
}

func (a *app) cancelCommand() *cobra.Command {
	return a.completeJobs(&cobra.Command{
		Use:   "cancel ID",
		Short: "End a job: kill its task, destroy its VM",
		Long: "The output so far is kept; artifacts are not collected. A persistent VM stays, and so do other jobs in it. To end the task\n" +
			"alone and collect everything, use linus job kill.",
		Args: oneArg("the job's ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			if err := s.Cancel(ctx, args[0]); err != nil {
				return err
			}
			return a.print(map[string]any{"id": args[0], "cancelled": true}, "job "+args[0]+" cancelled")
		}),
	})
}

// waitFor follows a job to its end, shows its result and returns its exit code as
// an exitError.
func (a *app) waitFor(ctx context.Context, e waiter, id string) error {
	j, err := a.follow(ctx, e, id, following{until: func(j job.Job) bool { return len(j.Children) > 0 }})
	if err == nil && len(j.Children) > 0 {
		return a.waitForChildren(ctx, e, j)
	}
	if err != nil {
		if ctx.Err() != nil {
			a.note("\ndetached; the job keeps running\n  follow: linus job status %s --wait\n  end:    linus job cancel %s", id, id)
			return exitError(exitDetached)
		}
		return err
	}
	if j.RetriedAs != "" {
		a.note("job %s was lost; job %s runs it again", id, j.RetriedAs)
		return a.waitFor(ctx, e, j.RetriedAs)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	r, err := e.Result(ctx, id)
	if err != nil {
		return err
	}
	if err := a.printResult(r); err != nil {
		return err
	}
	if _, run := runOf(j); len(j.Artifacts) > 0 && !run {
		a.note("artifacts: %d; linus job artifacts get %s", len(j.Artifacts), id)
	}
	return codeOf(r)
}

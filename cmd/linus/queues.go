package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) dispatchListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the dispatchers, and what waits in their queues",
		Long: "Lists the dispatchers that the engine has heard of within a day, by queue and name, on whatever machine they run. WAITING is how much waited when a\n" +
			"dispatcher last asked its queue, and OLDEST since when the oldest of that has waited. One that reports nothing for a minute is away.",
		Args: noArgs,
	}
	find := choosing[job.Dispatcher](a, cmd, "dispatchers")
	cmd.RunE = a.reading(func(ctx context.Context, e job.Engine, _ []string) error {
		all, err := find(e.Dispatchers(ctx))
		if err != nil {
			return err
		}
		owned := slices.ContainsFunc(all, func(d job.Dispatcher) bool { return d.Principal != "" })
		return printAll(a, all, "no dispatcher", fmt.Sprintf("QUEUE\tNAME\tSTATUS\tSESSIONS\tWAITING\tOLDEST\t%sPROBLEM", ownerCell(owned, "OF")), func(d job.Dispatcher) string {
			return fmt.Sprintf("%s\t%s\t%s\t%d/%d\t%d\t%s\t%s%s", oneLine(d.Queue, 100), oneLine(d.Name, 60), d.Status(), d.Sessions, d.Places, d.Waiting, orDash(local(d.Oldest)),
				ownerCell(owned, d.Principal), oneLine(d.Problem, 200))
		})
	})
	return cmd
}

func (a *app) dispatchStatusCommand() *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   "status NAME",
		Short: "Show a dispatcher: its queue, its sessions, and what has failed",
		Args:  oneArg("the dispatcher's name"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			all, err := e.Dispatchers(ctx)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(d job.Dispatcher) bool { return d.Name != args[0] })
			if len(all) == 0 {
				return usage("no dispatcher is called %.80q; linus dispatch list shows those there are", args[0])
			}
			var text string
			for _, d := range all {
				text += details(func(_ io.Writer, line func(name, value string)) {
					line("dispatcher", oneLine(d.Name, 60))
					line("queue", oneLine(d.Queue, 100))
					line("status", d.Status())
					line("problem", oneLine(d.Problem, 300))
					line("sessions", fmt.Sprintf("%d of %d", d.Sessions, d.Places))
					line("waiting", fmt.Sprint(d.Waiting))
					line("oldest", local(d.Oldest))
					line("failed", d.FailedText())
					line("belongs to", d.Principal)
					line("started", local(d.StartedAt))
					line("heard of", local(d.HeardAt))
				})
			}
			if err := a.print(all, text); err != nil {
				return err
			}
			if !a.json {
				a.note("its sessions: linus job list --dispatcher %s", args[0])
			}
			return nil
		}),
	}, a.dispatcherNames())
}

func (a *app) dispatchDrainCommand() *cobra.Command {
	return a.dispatcherCommand(&cobra.Command{
		Use:   "drain NAME",
		Short: "Tell a dispatcher to take no more work, and to end with its sessions",
		Long: "Tells the dispatchers of a name, wherever they run, to take no more work, until linus dispatch undrain. They end when their sessions have;\n" +
			"those that are started meanwhile follow the existing sessions, and wait.",
	}, job.Engine.DrainDispatcher, "will take no more work within a few seconds")
}

func (a *app) dispatchUndrainCommand() *cobra.Command {
	return a.dispatcherCommand(&cobra.Command{
		Use:   "undrain NAME",
		Short: "Let a dispatcher take work again",
		Long:  "Undoes linus dispatch drain: the dispatchers of a name take work again, if they wait, and when they are started. Those that are about to end do so.",
	}, job.Engine.UndrainDispatcher, "will take work again within a few seconds, or when it is started")
}

// dispatcherCommand makes cmd call tell for the dispatchers of a name. said ends the line it
// prints.
func (a *app) dispatcherCommand(cmd *cobra.Command, tell func(job.Engine, context.Context, string) error, said string) *cobra.Command {
	cmd.Args = oneArg("the dispatcher's name")
	cmd.RunE = a.attaching(true, func(ctx context.Context, s *session, args []string) error {
		err := tell(s, ctx, args[0])
		if err == nil {
			a.note("dispatcher %s %s", args[0], said)
		}
		return err
	})
	return completeFirst(cmd, a.dispatcherNames())
}

func (a *app) dispatcherNames() completer {
	return each(a, job.Engine.Dispatchers, func(d job.Dispatcher) string { return fmt.Sprintf("%s\t%s, %s", d.Name, d.Queue, d.Status()) })
}

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/sleep"
)

func (a *app) checkpointCommand() *cobra.Command {
	return group("checkpoint", "Save the memory of VMs that have booted, so that others need not boot",
		a.checkpointBuildCommand(), a.checkpointListCommand(), a.checkpointShowCommand(), a.checkpointRemoveCommand())
}

func (a *app) checkpointBuildCommand() *cobra.Command {
	var spec job.CheckpointSpec
	var wait bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Save the memory of a VM that has booted from a template",
		Long: "Boots a VM from a template once, saves its memory on the host when it is ready, and keeps its disk for clones. From then on a\n" +
			"VM of that template and exactly that size continues from there on that node, with its own identity, instead of booting. A\n" +
			"checkpoint takes no memory; on disk it takes what the VM had in use. It is made after waiting jobs. One that no longer fits,\n" +
			"because its template or the node's QEMU has changed, is made again.",
		Example: "  linus template checkpoint build --wait\n  linus template checkpoint build --template ci --cpu 4 --memory 8G --disk 40G",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			s, err := a.attach(ctx, true)
			if err != nil {
				return err
			}
			defer s.Close()
			c, err := s.CreateCheckpoint(ctx, spec)
			if err != nil {
				return err
			}
			for told := ""; wait && c.Status == job.CheckpointMaking; {
				if c.Text != told {
					told = c.Text
					a.note("%s", oneLine(told, 300))
				}
				if sleep.For(ctx, poolPause) != nil {
					a.note("\nthe checkpoint is not ready yet\n  look: linus template checkpoint show %s", c.Name)
					return exitError(exitDetached)
				}
				if c, err = s.Checkpoint(ctx, c.ID); err != nil {
					return err
				}
			}
			if c.Status == job.CheckpointFailed {
				return fmt.Errorf("checkpoint %s could not be made: %s", c.Name, c.Text)
			}
			return a.print(c, fmt.Sprintf("checkpoint %s of %s is %s", c.Name, c.Template, statusWord(c)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Template, "template", "", "the template's name or VM ID, as jobs ask for it (default DEFAULT_VM_TEMPLATE)")
	f.IntVar(&spec.Resources.CPU, "cpu", 0, "cores (default DEFAULT_CPU)")
	f.StringVar(&spec.Resources.Memory, "memory", "", "memory, as in 2G (default DEFAULT_MEMORY)")
	f.StringVar(&spec.Resources.Disk, "disk", "", "disk, as in 10G (default DEFAULT_DISK)")
	f.StringVar(&spec.Node, "node", "", "the node it is for, where VMs are spread over several (default: one that has room)")
	f.BoolVar(&wait, "wait", false, "return when it is ready")
	_ = cmd.RegisterFlagCompletionFunc("template", a.templateNames())
	return cmd
}

func statusWord(c job.CheckpointInfo) string {
	if c.Status == job.CheckpointMaking {
		return "being made"
	}
	return string(c.Status)
}

func (a *app) checkpointListCommand() *cobra.Command {
	const header = "NAME\tTEMPLATE\tSIZE\tNODE\tSTATUS\tMEMORY\tUSES\tLAST USED"
	cmd := &cobra.Command{Short: "List the checkpoints: their templates, sizes, and how often they were used"}
	return listing(a, cmd, "checkpoints", job.Engine.Checkpoints, "no checkpoints; linus template checkpoint build makes one", header, func(c job.CheckpointInfo) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s", c.Name, oneLine(c.Template, 63), machineText(c.Resources), orDash(c.Node), statusWord(c), memoryText(c), c.Uses, orDash(local(c.UsedAt)))
	})
}

func memoryText(c job.CheckpointInfo) string {
	if c.Bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%d MiB", c.Bytes>>20)
}

func (a *app) checkpointShowCommand() *cobra.Command {
	return a.completeCheckpoints(&cobra.Command{
		Use:   "show NAME|ID",
		Short: "Show a checkpoint: what it was made from, and its state",
		Args:  oneArg("the checkpoint's name or ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			return saying(a, checkpointText)(e.Checkpoint(ctx, args[0]))
		}),
	})
}

func checkpointText(c job.CheckpointInfo) string {
	return details(func(_ io.Writer, row func(name, value string)) {
		row("checkpoint", c.Name)
		row("id", c.ID)
		row("status", statusWord(c))
		row("now", oneLine(c.Text, 600))
		row("template", c.Template)
		row("generation", c.Generation)
		row("size", machineText(c.Resources))
		row("node", c.Node)
		if c.VMID != 0 {
			row("VM", fmt.Sprint(c.VMID))
		}
		row("continues with", c.Host)
		row("memory on disk", memoryText(c))
		row("asked for", local(c.CreatedAt))
		row("saved", local(c.SavedAt))
		row("uses", fmt.Sprint(c.Uses))
		row("last used", local(c.UsedAt))
	})
}

func (a *app) checkpointRemoveCommand() *cobra.Command {
	return a.completeCheckpoints(&cobra.Command{
		Use:     "remove NAME|ID",
		Aliases: []string{"rm"},
		Short:   "Destroy a checkpoint; VMs restored from it stay",
		Args:    oneArg("the checkpoint's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			return saying(a, func(c job.CheckpointInfo) string { return fmt.Sprintf("checkpoint %s is %s", c.Name, statusWord(c)) })(s.RemoveCheckpoint(ctx, args[0]))
		}),
	})
}

func (a *app) completeCheckpoints(cmd *cobra.Command) *cobra.Command {
	return completeFirst(cmd, each(a, job.Engine.Checkpoints, func(c job.CheckpointInfo) string {
		return fmt.Sprintf("%s\t%s, %s", c.Name, c.Template, machineText(c.Resources))
	}))
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) vmForkCommand() *cobra.Command {
	var (
		spec job.ForkSpec
		ttl  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "fork NAME|ID",
		Short: "Make copies of a running VM, which continue from its memory",
		Long: "Makes --count copies of a VM in which no job runs. Where all its disks are on LVM-thin, which can clone a snapshot with memory, they continue\n" +
			"from there, in the middle of whatever ran; elsewhere they boot from copies of its disk. The output says which, and why, and how long the VM was\n" +
			"paused. Each copy is a VM of its own, with its own name, address, keys and random numbers before it reaches the network, and expires with\n" +
			"the VM or after --ttl. All are made or none; with --partial those that could be made stay.",
		Example: "  linus vm fork dev --count 8\n  linus vm fork dev --count 3 --name try-%d --ttl 2h --partial",
		Args:    oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			if spec.Count == 0 { // elsewhere 0 stands for 1
				return &job.FieldError{Field: "count", Problem: "is 0", Remedy: fmt.Sprintf("give a number from 1 to %d", job.MostForks)}
			}
			spec.VM, spec.TTL = args[0], int(ttl/time.Second)
			return saying(a, func(out job.Forked) string { return forkText(args[0], out) })(s.ForkVM(ctx, spec))
		}),
	}
	cmd.Flags().IntVar(&spec.Count, "count", 1, fmt.Sprintf("copies, 1 to %d", job.MostForks))
	cmd.Flags().StringVar(&spec.Name, "name", "", "their names, with %d for the number of each (default: the VM's name and -%d)")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "destroy them after this time, once no job runs in them; 0: with the VM")
	cmd.Flags().BoolVar(&spec.Partial, "partial", false, "keep those that were made if others fail")
	return a.completeVMs(cmd)
}

func forkText(of string, out job.Forked) string {
	lines := []string{fmt.Sprintf("%d of %d copies of VM %s are made %s", len(out.VMs), len(out.VMs)+len(out.Failed), of, oneLine(out.Point().Text(), 600))}
	for _, v := range out.VMs {
		lines = append(lines, fmt.Sprintf("VM %s (%d) runs on node %s, %s", v.Name, v.ID, v.Node, v.IP))
	}
	for _, f := range out.Failed {
		lines = append(lines, fmt.Sprintf("VM %s was not made: %s", f.Name, oneLine(f.Error, 600)))
	}
	return strings.Join(lines, "\n")
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) nodeListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the nodes that VMs are created on, with their memory and VMs",
		Long: "Lists the nodes with their memory and our VMs on them.\n\nCOMMITTED is the memory that all VMs and containers of the node are configured with, except those that are off.\n" +
			"FREE is the memory that is left for new VMs: a tenth of the node's, and at least 1 GiB, is reserved.\n" +
			"UNUSED says of which templates VMs are not made there, and why.\n" +
			"VMs are spread over several nodes if PROXMOX_NODES is set (linus help scale).",
		Args: noArgs,
	}
	find := choosing[job.NodeInfo](a, cmd, "nodes")
	cmd.RunE = a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
		nodes, err := find(s.Nodes(ctx))
		if err != nil {
			return err
		}
		return printAll(a, nodes, "", "NODE\tSTATUS\tMEMORY\tCOMMITTED\tFREE\tVMS\tTEMPLATES\tUNUSED", nodeRow)
	})
	return cmd
}

func nodeRow(n job.NodeInfo) string {
	status := string(n.Status)
	if n.Cordoned {
		status += ", cordoned"
	}
	var unused []string
	for _, name := range slices.Sorted(maps.Keys(n.Unused)) {
		unused = append(unused, name+" "+n.Unused[name])
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s", oneLine(n.Name, 63), status, mebibytes(n.MemoryMB), mebibytes(n.CommittedMB), mebibytes(n.FreeMB),
		n.VMs, oneLine(strings.Join(n.Templates, " "), 1000), oneLine(strings.Join(unused, "; "), 1000))
}

func mebibytes(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

func (a *app) cordonCommand(name, short string, change func(job.Engine, context.Context, string) (job.NodeInfo, error)) *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   name + " NODE",
		Short: short,
		Args:  oneArg("the node's name"),
		RunE: a.attaching(true, func(ctx context.Context, s *session, args []string) error {
			return saying(a, func(n job.NodeInfo) string { return "node " + n.Name + " is " + name + "ed" })(change(s, ctx, args[0]))
		}),
	}, each(a, job.Engine.Nodes, func(n job.NodeInfo) string { return fmt.Sprintf("%s\t%s, %d VMs", n.Name, n.Status, n.VMs) }))
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) nodeCommand() *cobra.Command {
	return group("node", "List and cordon the nodes that VMs are created on",
		a.nodeListCommand(), a.cordonCommand("cordon", "Keep new VMs off a node; those that are there stay", job.Engine.CordonNode),
		a.cordonCommand("uncordon", "Let a node have new VMs again", job.Engine.UncordonNode))
}

func (a *app) nodeListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the nodes that VMs are created on, with their memory and VMs",
		Long: "Lists the nodes with their memory and our VMs on them.\n\nCOMMITTED is the memory that all VMs and containers of the node are configured with, except those that are off.\n" +
			"FREE is the memory that is left for new VMs: a tenth of the node's, and at least 1 GiB, is reserved.\n" +
			"UNUSED says of which templates VMs are not made there, and why.\n" +
			"VMs are spread over several nodes if PROXMOX_NODES is set (linus help scale).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.attach(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer s.Close()
			nodes, err := s.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(nodes, nodeTable(nodes))
		},
	}
}

func nodeTable(nodes []job.NodeInfo) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "NODE\tSTATUS\tMEMORY\tCOMMITTED\tFREE\tVMS\tTEMPLATES\tUNUSED")
	for _, n := range nodes {
		status := string(n.Status)
		if n.Cordoned {
			status += ", cordoned"
		}
		var unused []string
		for _, name := range slices.Sorted(maps.Keys(n.Unused)) {
			unused = append(unused, name+" "+n.Unused[name])
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", n.Name, status,
			mebibytes(n.MemoryMB), mebibytes(n.CommittedMB), mebibytes(n.FreeMB), n.VMs, strings.Join(n.Templates, " "), strings.Join(unused, "; "))
	}
	_ = w.Flush()
	return strings.TrimSuffix(text.String(), "\n")
}

func mebibytes(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

func (a *app) cordonCommand(name, short string, change func(job.Engine, context.Context, string) (job.NodeInfo, error)) *cobra.Command {
	return &cobra.Command{
		Use:   name + " NODE",
		Short: short,
		Args:  oneArg("the node's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.attach(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer s.Close()
			n, err := change(s, cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(n, "node "+n.Name+" is "+name+"ed")
		},
	}
}

package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"linus/internal/lab"
)

// node lists a cluster's nodes, or changes the state of one.
func node(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("node", std)
	l, words, err := open(set, dir, args)
	if err != nil {
		return err
	}
	switch {
	case len(words) == 1 && words[0] == "list":
		return listNodes(ctx, l, std)
	case len(words) == 2 && words[0] == "down":
		return l.NodeDown(ctx, lab.NodeName(words[1]))
	case len(words) == 2 && words[0] == "up":
		return l.NodeUp(ctx, lab.NodeName(words[1]))
	case len(words) == 3 && words[0] == "maintenance" && (words[2] == "on" || words[2] == "off"):
		return l.SetMaintenance(ctx, lab.NodeName(words[1]), words[2] == "on")
	}
	return errUsage
}

func listNodes(ctx context.Context, l *lab.Lab, std lab.Streams) error {
	report, err := l.Status(ctx)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(std.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tSTATE\tSSH\tVMS\tDIRECTORY")
	for _, n := range report.Nodes {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\n", n.Name, n.State, n.SSH, len(n.VMs), n.Dir)
	}
	return tw.Flush()
}

// quorum cuts one node, or each node, off from the others, or reconnects it.
func quorum(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("quorum", std)
	l, words, err := open(set, dir, args)
	if err != nil {
		return err
	}
	if len(words) < 1 || len(words) > 2 || words[0] != "lost" && words[0] != "back" {
		return errUsage
	}
	names := words[1:]
	if len(names) == 0 {
		report, err := l.Status(ctx)
		if err != nil {
			return err
		}
		for _, n := range report.Nodes {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("the lab in %s is no cluster: use pvelab fault set no_quorum 1", l.Dir)
	}
	for _, name := range names {
		if err := l.SetCutOff(ctx, lab.NodeName(name), words[0] == "lost"); err != nil {
			return err
		}
	}
	return nil
}

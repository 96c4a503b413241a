package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

// queryFlags adds the options of a list of what. textIn says where a text is looked for. The query
// that it returns is filled in once the command runs.
func queryFlags(cmd *cobra.Command, l job.Listing, what, textIn string) *job.Query {
	var q job.Query
	var since, before string
	for _, f := range []struct {
		param, flag string
		to          *string
		help        string
		words       []string
	}{
		{"status", "status", &q.Status, "only " + what + " of this status: " + strings.Join(l.Statuses, ", "), l.Statuses},
		{"text", "text", &q.Text, "only " + what + " with this in " + textIn, nil},
		{"node", "node", &q.Node, "only " + what + " on this node", nil},
		{"principal", "owner", &q.Principal, "only " + what + " of this principal; " + job.OperatorName + " is whoever runs the engine", nil},
		{"since", "since", &since, "only " + what + " made since then: a time such as 2026-01-02T15:04:05Z, or how long ago, as in 24h", nil},
		{"before", "before", &before, "only " + what + " made before then", nil},
		{"sort", "sort", &q.Sort, "sort by " + strings.Join(l.Sorts, ", ") + "; with - in front, in reverse order", l.Sorts},
	} {
		if !slices.Contains(l.Params, f.param) {
			continue
		}
		cmd.Flags().StringVar(f.to, f.flag, "", f.help)
		_ = cmd.RegisterFlagCompletionFunc(f.flag, cobra.FixedCompletions(f.words, cobra.ShellCompDirectiveNoFileComp))
	}
	if slices.Contains(l.Params, "label") {
		cmd.Flags().StringArrayVar(&q.Label, "label", nil, "only "+what+" with this label, as in team=web; may be repeated")
	}
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if q.Since, err = job.ParseTime("since", since); err != nil {
			return err
		}
		if q.Before, err = job.ParseTime("before", before); err != nil {
			return err
		}
		return l.Check(q)
	}
	return &q
}

// choosing adds the options of a list to its command, and returns a function that selects rows by
// them.
func choosing[T job.Row](a *app, cmd *cobra.Command, what string) func(all []T, err error) ([]T, error) {
	q := queryFlags(cmd, job.ListingOf[T](), what, "their name or ID")
	return func(all []T, err error) ([]T, error) {
		if err != nil {
			return all, err
		}
		rows, err := job.Select(all, *q)
		a.unasked = len(all) - len(rows)
		return rows, err
	}
}

// listing makes cmd a command that lists what an engine has: the rows that its options select, as
// printAll shows them.
func listing[T job.Row](a *app, cmd *cobra.Command, what string, all func(job.Engine, context.Context) ([]T, error), none, header string, row func(T) string) *cobra.Command {
	cmd.Use, cmd.Args = "list", noArgs
	find := choosing[T](a, cmd, what)
	cmd.RunE = a.reading(func(ctx context.Context, e job.Engine, _ []string) error {
		rows, err := find(all(e, ctx))
		if err != nil {
			return err
		}
		return printAll(a, rows, none, header, row)
	})
	return cmd
}

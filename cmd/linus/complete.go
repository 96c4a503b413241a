package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// completionTime limits how long a shell waits after Tab.
const completionTime = 3 * time.Second

type completer = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// completeJobs completes job IDs for a command's first argument or, if the command takes several
// jobs, for all arguments. The command then also accepts a part of an ID.
func (a *app) completeJobs(cmd *cobra.Command) *cobra.Command {
	cmd.ValidArgsFunction = a.jobIDs()
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args = slices.Clone(args)
		for i := range args {
			if i > 0 && !strings.Contains(cmd.Use, "...]") || !partOfID.MatchString(args[i]) {
				continue
			}
			var err error
			if args[i], err = a.wholeID(cmd.Context(), args[i]); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
	return cmd
}

// partOfID matches the beginning or the end of a job's ID.
var partOfID = lazyregexp.New(`^[0-9a-f-]{4,35}$`)

// wholeID returns the job ID that begins or ends with part, or part itself if there is none.
// Several matches are an error.
func (a *app) wholeID(ctx context.Context, part string) (string, error) {
	e, done, err := a.reader(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	var found []string
	f := job.Filter{Text: part, Limit: 200}
	for {
		page, err := e.List(ctx, f)
		if err != nil {
			return "", err
		}
		for _, j := range page.Jobs {
			if strings.HasPrefix(j.ID, part) || strings.HasSuffix(j.ID, part) {
				found = append(found, j.ID)
			}
		}
		if f.Cursor = page.Next; f.Cursor == "" || len(found) > 1 {
			break
		}
	}
	switch len(found) {
	case 0:
		return part, nil
	case 1:
		return found[0], nil
	}
	return "", usage("several jobs have an ID that begins or ends with %s: %s; give more of it", part, strings.Join(found[:2], ", "))
}

func (a *app) jobIDs() completer {
	return a.complete(func(ctx context.Context, e job.Engine) (words []string, err error) {
		page, err := e.List(ctx, job.Filter{})
		for _, j := range page.Jobs {
			words = append(words, fmt.Sprintf("%s\t%s, %s", j.ID, j.Status, oneLine(job.Title(j.Task), 40)))
		}
		return words, err
	})
}

func (a *app) completeVMs(cmd *cobra.Command) *cobra.Command { return completeFirst(cmd, a.vmNames()) }

func (a *app) completePools(cmd *cobra.Command) *cobra.Command {
	return completeFirst(cmd, each(a, job.Engine.Pools, func(p job.PoolInfo) string {
		return fmt.Sprintf("%s\t%d warm, %d hibernated", p.Name, p.Warm, p.Hibernated)
	}))
}

// each completes with one word, and its description, for each item of a list, without duplicates.
func each[T any](a *app, list func(job.Engine, context.Context) ([]T, error), word func(T) string) completer {
	return a.complete(func(ctx context.Context, e job.Engine) (words []string, err error) {
		all, err := list(e, ctx)
		for _, one := range all {
			words = append(words, word(one))
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

// templateNames completes with the nodes' templates, as the running engine knows them.
func (a *app) templateNames() completer {
	return a.complete(func(ctx context.Context, e job.Engine) (words []string, err error) {
		nodes, err := e.Nodes(ctx)
		for _, n := range nodes {
			words = append(words, n.Templates...)
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

// completeFirst completes a command's first arguments, each with its own completer.
func completeFirst(cmd *cobra.Command, names ...completer) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(names) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names[len(args)](cmd, args, typed)
	}
	return cmd
}

// completeSnapshots completes a command's first argument with VM names, and the second with that
// VM's snapshots.
func (a *app) completeSnapshots(cmd *cobra.Command) *cobra.Command {
	vms := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return vms(cmd, args, typed)
		}
		return a.complete(func(ctx context.Context, e job.Engine) (words []string, err error) {
			all, err := e.ListSnapshots(ctx, args[0])
			for _, s := range all {
				words = append(words, s.Name)
			}
			return words, err
		})(cmd, args, typed)
	}
	return cmd
}

func (a *app) vmNames() completer {
	return each(a, job.Engine.VMs, func(vm job.VMInfo) string { return fmt.Sprintf("%s\t%d, %s", vm.Name, vm.ID, vm.Status) })
}

// complete asks the running engine or, without one, reads the state directory: Tab starts no
// engine. On an error it completes nothing and prints nothing.
func (a *app) complete(ask func(context.Context, job.Engine) ([]string, error)) completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		c, err := a.settings(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		e, done, err := daemon.Peek(ctx, c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer done()
		words, err := ask(ctx, e)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

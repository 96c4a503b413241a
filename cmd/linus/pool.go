package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// poolFlags are the options for how many VMs a pool keeps, and for how long.
type poolFlags struct {
	given job.PoolSize
	wait  bool
}

func (f *poolFlags) register(cmd *cobra.Command) {
	for _, row := range field.PoolSize() {
		addFlag(cmd, row, &f.given)
	}
	cmd.Flags().BoolVar(&f.wait, "wait", false, "return when the VMs are ready")
}

func (f *poolFlags) override(cmd *cobra.Command, size *job.PoolSize) error {
	return take(cmd, field.PoolSize(), &f.given, size)
}

func (a *app) poolCreateCommand() *cobra.Command {
	var vm manifestFlags
	var f poolFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a pool of VMs that wait for jobs",
		Long: "Creates a pool of VMs that wait for jobs. A job that asks for exactly such a VM (template or operating system, size,\n" +
			"network) gets one of the pool's, which has booted, instead of a new one. Each VM serves one job and is then destroyed; the pool\n" +
			"makes another, behind waiting jobs and only while the host has memory to spare. Without --warm and --hibernated the pool is empty;\n" +
			"linus pool resize fills it.",
		Example: "  linus pool create small --warm 2\n" +
			"  linus pool create big --template ci --cpu 8 --memory 16G --warm 1 --hibernated 3 --idle-limit 2h",
		Args: oneArg("the pool's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m job.Manifest
			if err := vm.override(cmd, &m, nil); err != nil {
				return err
			}
			p := job.Pool{Name: args[0], VMTemplate: m.VMTemplate, OS: m.OS, Resources: m.Resources, Network: m.Network, Labels: m.Labels}
			if err := f.override(cmd, &p.PoolSize); err != nil {
				return err
			}
			err := a.changePool(cmd.Context(), f.wait, func(ctx context.Context, s *session) (job.PoolInfo, error) {
				return s.CreatePool(ctx, p)
			})
			if err == nil && p.Warm+p.Hibernated == 0 {
				a.note("pool %s keeps no VMs, so it speeds up nothing yet: linus pool resize %s --warm 2", p.Name, p.Name)
			}
			return err
		},
	}
	vm.register(a, cmd, field.CreatePool)
	f.register(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func (a *app) poolResizeCommand() *cobra.Command {
	var f poolFlags
	cmd := &cobra.Command{
		Use:     "resize NAME",
		Short:   "Change how many VMs a pool keeps, and for how long; one that has stopped tries again",
		Example: "  linus pool resize small --warm 4",
		Args:    oneArg("the pool's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changePool(cmd.Context(), f.wait, func(ctx context.Context, s *session) (job.PoolInfo, error) {
				p, err := s.Pool(ctx, args[0])
				was := p.ETag()
				if err == nil {
					err = f.override(cmd, &p.PoolSize)
				}
				if err != nil {
					return p, err
				}
				change := p.Change()
				change.Match = was
				return s.ResizePool(ctx, args[0], change)
			})
		},
	}
	f.register(cmd)
	return a.completePools(cmd)
}

func (a *app) poolDrainCommand() *cobra.Command {
	return a.completePools(&cobra.Command{
		Use:   "drain NAME",
		Short: "Empty a pool: destroy its waiting VMs and keep none until it is resized",
		Args:  oneArg("the pool's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changePool(cmd.Context(), false, func(ctx context.Context, s *session) (job.PoolInfo, error) {
				none := 0
				return s.ResizePool(ctx, args[0], job.PoolChange{Warm: &none, Hibernated: &none})
			})
		},
	})
}

func (a *app) poolRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a pool; its waiting VMs are destroyed, and jobs keep the ones they have",
		Args:  oneArg("the pool's name"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			p, err := s.Pool(ctx, args[0])
			if err == nil && !yes {
				waiting := p.Count(vm.MemberWarm) + p.Count(vm.MemberHibernated) + p.Count(vm.MemberMaking)
				err = a.confirm(ctx, fmt.Sprintf("Remove pool %s and its %d waiting VMs? [y/N] ", p.Name, waiting), "--yes")
			}
			if err != nil {
				return err
			}
			return saying(a, func(p job.PoolInfo) string { return fmt.Sprintf("pool %s is removed", p.Name) })(s.RemovePool(ctx, p.Name))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return a.completePools(cmd)
}

// changePool changes a pool and shows it. With wait it returns when the pool's VMs are ready, or
// cannot become ready.
func (a *app) changePool(ctx context.Context, wait bool, change func(context.Context, *session) (job.PoolInfo, error)) error {
	s, err := a.attach(ctx, true)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := change(ctx, s)
	if err != nil {
		return err
	}
	told := ""
	for wait && (p.Count(vm.MemberWarm) < p.Warm || p.Count(vm.MemberHibernated) < p.Hibernated) {
		if p.Stopped() {
			return fmt.Errorf("pool %s: %s", p.Name, p.State)
		}
		if p.State != told {
			told = p.State
			a.note("pool %s: %d of %d warm, %d of %d hibernated; %s", p.Name, p.Count(vm.MemberWarm), p.Warm, p.Count(vm.MemberHibernated), p.Hibernated, p.State)
		}
		if sleep.For(ctx, poolPause) != nil {
			a.note("\nthe pool is not full yet: %s\n  look: linus pool show %s", p.State, p.Name)
			return exitError(exitDetached)
		}
		if p, err = s.Pool(ctx, p.Name); err != nil {
			return err
		}
	}
	return a.print(p, poolText(p))
}

// poolPause is the time between two reads of a pool that is being filled.
const poolPause = 200 * time.Millisecond

func (a *app) poolListCommand() *cobra.Command {
	const header = "NAME\tFROM\tSIZE\tWARM\tHIBERNATED\tMAKING\tIN USE\tHIT RATE\tSTATE"
	cmd := &cobra.Command{Short: "List the pools: their VMs by state, and how many jobs got one"}
	return listing(a, cmd, "pools", job.Engine.Pools, "no pools; linus pool create makes one", header, func(p job.PoolInfo) string {
		return fmt.Sprintf("%s\t%s\t%s\t%d/%d\t%d/%d\t%d\t%d\t%s\t%s", p.Name, oneLine(p.VMTemplate+p.OS, 63), machineText(p.Resources),
			p.Count(vm.MemberWarm), p.Warm, p.Count(vm.MemberHibernated), p.Hibernated, p.Count(vm.MemberMaking), p.Count(vm.MemberClaimed),
			hitRate(p.Pool), oneLine(p.State, 60))
	})
}

func (a *app) poolShowCommand() *cobra.Command {
	return a.completePools(&cobra.Command{
		Use:   "show NAME",
		Short: "Show a pool: its VMs, how many jobs got one, and why it is not full",
		Args:  oneArg("the pool's name"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			return saying(a, poolText)(e.Pool(ctx, args[0]))
		}),
	})
}

func machineText(r vm.Resources) string {
	return fmt.Sprintf("%d cores, %s, %s", r.CPU, r.Memory, r.Disk)
}

func hitRate(p job.Pool) string {
	rate, any := p.HitRate()
	if !any {
		return "-"
	}
	return fmt.Sprintf("%.0f %% of %d", 100*rate, p.Hits+p.Misses)
}

func poolText(p job.PoolInfo) string {
	return details(func(w io.Writer, row func(name, value string)) {
		row("pool", p.Name)
		row("state", oneLine(p.State, 600))
		row("made from", p.VMTemplate+p.OS)
		row("size", fmt.Sprintf("%d cores, %s memory, %s disk", p.Resources.CPU, p.Resources.Memory, p.Resources.Disk))
		row("network", networkText(p.Network))
		row("labels", strings.Join(job.LabelTexts(p.Labels), ", "))
		row("warm", fmt.Sprintf("%d of %d", p.Count(vm.MemberWarm), p.Warm))
		row("hibernated", fmt.Sprintf("%d of %d", p.Count(vm.MemberHibernated), p.Hibernated))
		if p.IdleLimit > 0 {
			row("idle limit", (time.Duration(p.IdleLimit) * time.Second).String())
		}
		row("replaced after", (time.Duration(p.MaxAge) * time.Second).String())
		row("hit rate", hitRate(p.Pool))
		if p.Failure != nil {
			row("failed", fmt.Sprintf("%s, %d in a row, %d of them with the same error: %s", local(p.Failure.At), p.Failure.Row, p.Failure.Count, oneLine(p.Failure.Error, 600)))
		}
		if len(p.Members) > 0 {
			_, _ = fmt.Fprintf(w, "\nVM\tSTATE\tSINCE\tIP\tJOB\n")
			for _, m := range p.Members {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", orDash(vmID(&m.VM)), m.State, local(m.Since), orDash(m.VM.IP), cmp.Or(m.Claimer, m.Maker))
			}
		}
	})
}

func networkText(n vm.Network) string {
	var parts []string
	add := func(name, value string) {
		if value != "" && value != "0" {
			parts = append(parts, name+" "+value)
		}
	}
	add("bridge", n.Bridge)
	add("VLAN", fmt.Sprint(n.VLAN))
	add("address", n.IP)
	add("gateway", n.Gateway)
	add("egress", string(n.Egress))
	add("allow", strings.Join(n.Allow, " "))
	add("deny", strings.Join(n.Deny, " "))
	return strings.Join(parts, ", ")
}

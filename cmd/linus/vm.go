package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/vm"
)

// jsonVM is a VM as -o json shows it.
type jsonVM struct {
	job.VMInfo

	SSH  string `json:"ssh,omitempty"`  // a command that logs in
	Note string `json:"note,omitempty"` // of a forgotten VM: what stays on the host
}

func (a *app) vmCreateCommand() *cobra.Command {
	var f manifestFlags
	var dryRun, noWait bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a VM that stays until it is destroyed or its --ttl expires",
		Long: "Creates a VM from a template, or from an operating system's cloud image (--os), shows each step as it happens, and returns when\n" +
			"the VM accepts logins. Run jobs in it with linus job exec --vm NAME and linus job submit --vm NAME. After Ctrl-C\n" +
			"the engine continues to create it.",
		Example: "  linus vm create dev --cpu 4 --memory 8G --disk 50G --ttl 12h\n" +
			"  linus vm create web --os ubuntu-24.04 --ip 10.0.0.50/24 --gateway 10.0.0.1\n" +
			"  linus vm create dev --dry-run",
		Args: oneArg("the VM's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			sub := job.Submission{Client: "cli", Manifest: job.Manifest{VMName: args[0]}}
			if err := f.override(cmd, &sub.Manifest, nil); err != nil {
				return err
			}
			sub.Manifest.Lifecycle = vm.Persistent
			s, err := a.attach(ctx, true)
			if err != nil {
				return err
			}
			defer s.Close()
			if dryRun {
				plan, err := s.Plan(ctx, sub)
				if err != nil {
					return err
				}
				return a.print(map[string]any{"plan": plan}, strings.Join(plan, "\n"))
			}
			info, err := s.CreateVM(ctx, sub)
			if err != nil {
				return err
			}
			a.warnEgress(info.Network)
			if noWait {
				return a.printVM(ctx, s, info, fmt.Sprintf("VM %s is being created; linus vm show %s shows when it is ready", args[0], args[0]))
			}
			return a.awaitVM(ctx, s, info.Job, args[0])
		},
	}
	f.register(a, cmd, field.CreateVM)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the host's commands and change nothing")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return at once")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// awaitVM follows the creation of a VM and shows how to log in.
func (a *app) awaitVM(ctx context.Context, s *session, id, name string) error {
	j, err := a.follow(ctx, s, id, following{phase: job.PhaseProvision, until: func(j job.Job) bool { return j.Status.Terminal() }})
	switch {
	case ctx.Err() != nil:
		a.note("\ndetached; the VM is still being created\n  look: linus vm show %s\n  end:  linus vm destroy %s", name, name)
		return exitError(exitDetached)
	case err != nil:
		return err
	case j.Status != job.Success:
		return fmt.Errorf("VM %s was not created: %s", name, j.Outcome.Error)
	}
	info, err := s.VM(ctx, name)
	if err != nil {
		return err
	}
	return a.printVM(ctx, s, info, fmt.Sprintf("VM %s (%d) runs on node %s, %s\nlog in: linus vm ssh %s", info.Name, info.ID, info.Node, info.IP, info.Name))
}

func (a *app) printVM(ctx context.Context, s *session, info job.VMInfo, text string) error {
	out := jsonVM{VMInfo: info}
	if !a.json || info.Status != vm.Running {
		return a.print(out, text)
	}
	if login, err := s.login(ctx, info.VM); err == nil {
		if command, err := login.Command(); err == nil {
			out.SSH = shellescape.QuoteCommand(command)
		}
	}
	return a.print(out, text)
}

func (a *app) vmListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List our VMs: persistent ones, those of unfinished jobs, and those left alone",
		Example: "  linus vm list --status stopped --sort -created_at",
		Args:    noArgs,
	}
	find := choosing[job.VMInfo](a, cmd, "VMs")
	cmd.RunE = a.attached(func(ctx context.Context, s *session, _ []string) error {
		vms, err := find(s.VMs(ctx))
		if err != nil {
			return err
		}
		c := a.colours(a.stdout)
		owned := slices.ContainsFunc(vms, func(vm job.VMInfo) bool { return vm.Principal != "" })
		sandboxes := slices.ContainsFunc(vms, func(vm job.VMInfo) bool { return vm.Sandbox != nil })
		header := "ID\tNAME\t" + c.paint("STATUS") + "\tNODE\tIP\tLIFECYCLE\tEXPIRES\t" + ownerCell(owned, "OF") + kindCell(sandboxes, "KIND") + "JOBS"
		err = printAll(a, vms, "no VMs", header, func(vm job.VMInfo) string {
			kind := "-"
			if vm.Sandbox != nil {
				kind = "sandbox"
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s%d", orDash(vmID(&vm.VM)), oneLine(vm.Name, 63), c.paint(string(vm.Status)), orDash(oneLine(vm.Node, 63)), orDash(oneLine(vm.IP, 63)), vm.Lifecycle, orDash(local(vm.ExpiresAt)), ownerCell(owned, vm.Principal), kindCell(sandboxes, kind), len(vm.Jobs))
		})
		if err != nil || a.json {
			return err
		}
		said := ""
		for _, v := range vms {
			if v.KeptFor != "" {
				a.note("VM %s (%d) is kept until %s for %s", v.Name, v.ID, local(v.ExpiresAt), oneLine(v.KeptFor, 100))
			}
			if !v.SuspendedAt.IsZero() {
				a.note("VM %s (%d) has been suspended since %s because it was idle; its next use resumes it", v.Name, v.ID, local(v.SuspendedAt))
			}
			switch {
			case v.Reason == "" || v.Reason == said:
			case v.Status == vm.Unknown:
				said = v.Reason // of all unknown VMs
				a.note("of VMs whose status is unknown %s\n  -> %s", oneLine(v.Reason, 600), oneLine(v.Remedy, 600))
			default:
				a.note("VM %s (%d) is left alone: %s\n  -> %s", v.Name, v.ID, oneLine(v.Reason, 600), oneLine(v.Remedy, 600))
			}
		}
		return nil
	})
	return cmd
}

// kindCell returns the cell that marks sandboxes, in lists that have any.
func kindCell(shown bool, kind string) string {
	if !shown {
		return ""
	}
	return kind + "\t"
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func (a *app) vmShowCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "show NAME|ID",
		Short: "Show a VM: its status, how to log in, which jobs run in it",
		Args:  oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			info, err := s.VM(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printVM(ctx, s, info, vmText(info))
		}),
	})
}

func vmText(info job.VMInfo) string {
	return details(func(_ io.Writer, row func(name, value string)) {
		row("vm", strings.TrimSpace(vmID(&info.VM)+" "+info.Name))
		row("status", string(info.Status))
		row("reason", oneLine(info.Reason, 600))
		row("remedy", oneLine(info.Remedy, 600))
		row("node", info.Node)
		row("ip", info.IP)
		row("user", info.User)
		row("size", fmt.Sprintf("%d cores, %s memory, %s disk", info.Resources.CPU, info.Resources.Memory, info.Resources.Disk))
		row("network", networkText(info.Network))
		row("labels", strings.Join(job.LabelTexts(info.Labels), ", "))
		if s := info.Sandbox; s != nil {
			row("sandbox", vm.SandboxID(info.Job))
			for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
				row("metadata", oneLine(key+"="+s.Metadata[key], 300))
			}
			row("variables", oneLine(strings.Join(s.Env, " "), 300))
		}
		row("made from", info.Source)
		row("began", vmStart(info))
		row("lifecycle", string(info.Lifecycle))
		row("suspended", suspendedText(info))
		row("kept for", oneLine(info.KeptFor, 100))
		row("made by", "job "+info.Job)
		row("belongs to", info.Principal)
		row("jobs in it", strings.Join(info.Jobs, " "))
		for _, p := range info.Ports {
			row("port", fmt.Sprintf("%s (%d) at %s", p.Name, p.Port, orDash(p.URL)))
		}
		row("created", local(info.CreatedAt))
		if info.AtEnd == vm.EndSuspend && !info.ExpiresAt.IsZero() {
			row("expires", local(info.ExpiresAt)+", and is suspended then")
		} else {
			row("expires", local(info.ExpiresAt))
		}
		if info.Status == vm.Running {
			row("log in", "linus vm ssh "+info.Name)
		}
	})
}

func vmStart(info job.VMInfo) string {
	switch info.Start {
	case vm.Cold:
		return "by booting"
	case vm.Restored:
		return "from a checkpoint"
	case vm.Forked:
		return "as a copy"
	case vm.FromPool, vm.FromHibernated:
		if info.HostName != "" {
			return "in a pool, as " + oneLine(info.HostName, 63) + " on its host"
		}
		return "in a pool"
	}
	return ""
}

// suspendedText says when a VM is suspended for being idle, or "" if it never is.
func suspendedText(info job.VMInfo) string {
	switch {
	case !info.SuspendedAt.IsZero():
		return "since " + local(info.SuspendedAt) + " because it was idle; its next use resumes it"
	case info.Naps():
		return napText(info)
	}
	return ""
}

func napText(info job.VMInfo) string { return "when it was not used for " + info.IdleTime().String() }

func (a *app) vmSetCommand() *cobra.Command {
	var idle, ttl, at string
	var network vm.Network
	cmd := &cobra.Command{
		Use:   "set NAME|ID [--egress MODE] [--allow|--deny LIST] [--ttl TIME|off] [--at-end destroy|suspend] [--idle-suspend TIME|off]",
		Short: "Change what a VM that stays reaches, and when it is suspended or destroyed",
		Long: "With --ttl the VM's time begins again; with off it stays. --at-end says what happens when it is over: destroy, or suspend,\n" +
			"after which the VM stays suspended until it is resumed or destroyed. The host is told, too, and destroys the VM a day later if no engine does.\n" +
			"With --egress, --allow or --deny the VM reaches what these say from now on, as when it was created with them; no job may run in it.\n" +
			"With --idle-suspend the time without use begins again. A VM that was suspended because it was idle stays so until its next use\n" +
			"resumes it, also with off. VMs of pools have no such times: each goes with the job that has it, and pool resize --idle-limit is\n" +
			"for those that wait.",
		Example: "  linus vm set dev --egress none\n  linus vm set dev --ttl 2h\n  linus vm set dev --ttl 8h --at-end suspend\n  linus vm set dev --idle-suspend 30m\n  linus vm set dev --idle-suspend off",
		Args:    oneArg("the VM's name or ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var change job.VMChange
			var err error
			if change.IdleSuspend, err = secondsOrOff("--idle-suspend", idle); err == nil {
				change.TTL, err = secondsOrOff("--ttl", ttl)
			}
			if err != nil {
				return err
			}
			if at != "" {
				change.AtEnd = (*vm.End)(&at)
			}
			if flags := cmd.Flags(); flags.Changed("egress") || flags.Changed("allow") || flags.Changed("deny") {
				change.Network = &network
			}
			if change == (job.VMChange{}) {
				return usage("nothing is to change; give --egress, --ttl, --at-end or --idle-suspend, as in: %s %s --idle-suspend 30m", cmd.CommandPath(), args[0])
			}
			return a.attached(func(ctx context.Context, s *session, args []string) error {
				info, err := s.SetVM(ctx, args[0], change)
				if err != nil {
					return err
				}
				var how []string
				if change.Network != nil {
					how = append(how, "has egress "+string(info.Network.Mode()))
				}
				if change.TTL != nil || change.AtEnd != nil {
					how = append(how, endText(info))
				}
				if change.IdleSuspend != nil && info.Naps() {
					how = append(how, "is suspended "+napText(info))
				} else if change.IdleSuspend != nil {
					how = append(how, "is not suspended when it is idle")
				}
				return a.printVM(ctx, s, info, fmt.Sprintf("VM %s (%d) %s", info.Name, info.ID, strings.Join(how, ", and ")))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar((*string)(&network.Egress), "egress", "", "what it may reach: lan, internet, allow (what is listed) or none")
	cmd.Flags().StringSliceVar(&network.Allow, "allow", nil, "names and public addresses that it may reach, as in github.com,9.9.9.0/24; implies --egress allow")
	cmd.Flags().StringSliceVar(&network.Deny, "deny", nil, "addresses that it may not reach, as in 9.9.9.0/24; implies --egress internet")
	cmd.Flags().StringVar(&ttl, "ttl", "", "its time from now, as in 8h, once no job runs in it; off: it stays")
	cmd.Flags().StringVar(&at, "at-end", "", "what happens when its time is over: destroy, or suspend")
	cmd.Flags().StringVar(&idle, "idle-suspend", "", "suspend the VM when it was not used for this time, as in 30m; off: never")
	_ = cmd.RegisterFlagCompletionFunc("egress", cobra.FixedCompletions(field.Words(vm.Egresses), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("at-end", cobra.FixedCompletions([]cobra.Completion{string(vm.EndDestroy), string(vm.EndSuspend)}, cobra.ShellCompDirectiveNoFileComp))
	return a.completeVMs(cmd)
}

// secondsOrOff returns the seconds of an option that is a time or off, which is 0. It returns nil
// if the option is not given.
func secondsOrOff(option, text string) (*int, error) {
	var n secondsFlag
	if text == "" {
		return nil, nil //nolint:nilnil // it says which
	}
	if err := n.Set(text); err != nil && text != "off" {
		return nil, usage("%s %q: %w; or off", option, text, err)
	}
	return (*int)(&n), nil
}

func endText(info job.VMInfo) string {
	switch {
	case info.ExpiresAt.IsZero():
		return "stays"
	case info.AtEnd == vm.EndSuspend:
		return "is suspended at " + local(info.ExpiresAt) + ", once no job runs in it"
	}
	return "is destroyed at " + local(info.ExpiresAt) + ", once no job runs in it"
}

// vmVerb is a command that performs one action on a VM. said ends the line it prints.
func (a *app) vmVerb(use, short, said string, act func(*session, context.Context, string) (job.VMInfo, error)) *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   use,
		Short: short,
		Args:  oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			info, err := act(s, ctx, args[0])
			if err != nil {
				return err
			}
			return a.printVM(ctx, s, info, fmt.Sprintf("VM %s (%d) %s", info.Name, info.ID, said))
		}),
	})
}

// vmAsked is a command that does something irreversible to a VM. It asks question and calls act if
// the answer is yes; with --yes it calls act at once. question fails if the action is impossible.
func (a *app) vmAsked(cmd *cobra.Command, question func(ctx context.Context, s *session, info job.VMInfo, args []string) (string, error), act func(ctx context.Context, s *session, info job.VMInfo, args []string) error) *cobra.Command {
	var yes bool
	cmd.RunE = a.attached(func(ctx context.Context, s *session, args []string) error {
		info, err := s.VM(ctx, args[0])
		if err == nil && !yes {
			var asks string
			if asks, err = question(ctx, s, info, args); err == nil {
				err = a.confirm(ctx, asks+" [y/N] ", "--yes")
			}
		}
		if err != nil {
			return err
		}
		return act(ctx, s, info, args)
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return a.completeVMs(cmd)
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) networkShowCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "show VM|JOB",
		Short: "Show a VM's egress mode, its rules on the host and the last connections; exit code 1 if the rules are missing",
		Long: "Shows the mode of a VM, or of the VM that a job runs in, the rules that the host's kernel has for it now, and the last connections\n" +
			"through the proxy of a job with egress allow. See linus help network for what the rules mean.",
		Example: "  linus network show dev",
		Args:    oneArg("a VM's name or ID, or a job's ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			r, err := s.Network(ctx, job.NetworkQuery{VM: args[0]})
			if err != nil {
				return err
			}
			if err := a.print(r, networkReport(r)); err != nil || r.Problem == "" {
				return err
			}
			return exitError(exitFailure)
		}),
	})
}

func (a *app) networkTestCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "test VM|JOB HOST[:PORT]...",
		Short: "Try TCP connections from inside a running VM, and show which rule decides each",
		Long: "Tries to connect from inside the VM to each target (port 443 if none is given), directly and, in a job with egress allow, through its\n" +
			"proxy. RESULT is what the VM has seen: \"no answer\" may be a rule that drops packets, or a machine that is off. RULE is the rule on the\n" +
			"host that matches such a connection, or - if it is not known. Whoever is root in the VM can change what it reports. Nothing can be tried in\n" +
			"a VM that is stopped or suspended: start it (linus vm start) or resume it first; linus network show has its rules meanwhile.",
		Example: "  linus network test dev github.com 10.0.0.1:22 [2001:db8::1]:443",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || len(args) > 1+job.MaxNetworkTargets {
				return usage("%s takes a VM's name or ID, or a job's ID, and 1 to %d targets HOST[:PORT]", cmd.CommandPath(), job.MaxNetworkTargets)
			}
			return nil
		},
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			r, err := s.Network(ctx, job.NetworkQuery{VM: args[0], Targets: args[1:]})
			if err != nil {
				return err
			}
			if r.Problem != "" {
				a.note("the rules of VM %s (%d) do not limit it: %s", r.Name, r.VMID, oneLine(r.Problem, 300))
			}
			if a.json {
				return a.printJSON(r)
			}
			return printAll(a, r.Attempts, "no targets", "TARGET\tWAY\tADDRESS\tRESULT\tRULE", func(t job.NetworkAttempt) string {
				result := oneLine(string(t.Result), 20)
				if t.Detail != "" {
					result += ": " + oneLine(t.Detail, 200)
				}
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", oneLine(t.Target, 263), t.Way, orDash(oneLine(t.Address, 45)), result, orDash(oneLine(t.Rule, 300)))
			})
		}),
	})
}

func networkReport(r job.NetworkReport) string {
	return details(func(w io.Writer, row func(name, value string)) {
		row("vm", fmt.Sprintf("%d %s", r.VMID, oneLine(r.Name, 63)))
		row("mode", string(r.Mode))
		row("names", strings.Join(r.Network.Allow, " "))
		row("denied", strings.Join(r.Network.Deny, " "))
		row("problem", oneLine(r.Problem, 600))
		for i, rule := range r.Rules {
			name := ""
			if i == 0 {
				name = "rules"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, oneLine(rule, 2000))
		}
		for i, c := range r.Connections {
			name := ""
			if i == 0 {
				name = "connections"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s  %s\n", name, local(c.At), oneLine(c.Text, 600))
		}
	})
}

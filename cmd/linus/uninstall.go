package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
)

func (a *app) uninstallCommand() *cobra.Command {
	var yes, everywhere bool
	var spec job.UninstallSpec
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what linus keeps on the Proxmox host, and list it first",
		Long: "Removes the timer linus-sweep with its unit files, the network rules (nftables' table bridge linus), /var/lib/linus, /run/linus,\n" +
			"downloaded images and the fences in /etc/pve/priv/linus. Shows what there is, and asks. VMs and templates are not touched:\n" +
			"it refuses while VMs of linus are there, of any installation, unless --leave-vms keeps them.\n" +
			"End the engines that work with the host first (linus serve --stop).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.localSettings(cmd, "run it on the engine's machine, which reaches the Proxmox host")
			if err != nil {
				return err
			}
			if daemon.EngineRuns(cmd.Context(), c) {
				return errors.New("an engine runs here, which would put its scripts on the host again: end it first with linus serve --stop, or systemctl stop linus")
			}
			each := func(spec job.UninstallSpec) (found []job.Uninstalled, err error) {
				err = a.withTemplates(cmd, everywhere, func(_ job.Inventory, n job.Node, t daemon.TemplateStore) error {
					done, err := t.Uninstall(cmd.Context(), spec)
					done.Node = cmp.Or(n.Name, done.Node)
					found = append(found, done)
					return err
				})
				return found, err
			}
			plan := spec
			plan.Plan = true
			found, err := each(plan)
			if err != nil {
				return err
			}
			text := uninstalledText(found, "would be removed")
			if !slices.ContainsFunc(found, func(u job.Uninstalled) bool { return len(u.Removed) > 0 }) {
				return a.print(found, text)
			}
			if !yes {
				if err := a.confirm(cmd.Context(), text+"\nRemove it? [y/N] ", "--yes"); err != nil {
					return err
				}
			}
			done, err := each(spec)
			if printErr := a.print(done, uninstalledText(done, "is removed")); err == nil {
				err = printErr
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "from every node that VMs are spread over (PROXMOX_NODES), one after the other")
	cmd.Flags().BoolVar(&spec.LeaveVMs, "leave-vms", false, "also while VMs of linus are there: they stay, without leases and network rules")
	return cmd
}

// uninstalledText lists, node by node, what is removed and what stays.
func uninstalledText(found []job.Uninstalled, how string) string {
	var lines []string
	for _, u := range found {
		node := "the host"
		if u.Node != "" {
			node = "node " + u.Node
		}
		if len(u.Removed) == 0 {
			lines = append(lines, node+" has nothing of linus to remove")
		}
		for _, what := range u.Removed {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", node, how, oneLine(what, 300)))
		}
		for _, what := range u.Stays {
			lines = append(lines, fmt.Sprintf("%s: stays: %s", node, oneLine(what, 300)))
		}
	}
	return strings.Join(lines, "\n")
}

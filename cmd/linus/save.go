package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) vmSaveCommand() *cobra.Command {
	var name string
	var inPlace bool
	cmd := &cobra.Command{
		Use:   "save NAME|ID",
		Short: "Make a template from a VM, for future jobs, pools and VMs",
		Long: "Copies the running VM and makes a template of the copy, which boots once without network, is cleaned and shut down; the VM\n" +
			"keeps running. With --in-place the VM itself is cleaned and becomes the template: that needs no second disk. No job may be running\n" +
			"in the VM. What is cleaned is in linus help templates; what was found and left is printed. Takes minutes, and continues after\n" +
			"Ctrl-C. Only an administrator can save; everybody can have VMs of the template.",
		Example: "  linus vm save dev --as toolchain\n  linus vm save dev --as toolchain --in-place",
		Args:    oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			if name == "" {
				return usage("--as is missing: the template's name")
			}
			t, err := s.SaveVM(ctx, args[0], name, inPlace)
			if err != nil {
				return err
			}
			how := "of a copy; the VM keeps running"
			if t.InPlace {
				how = "in place; VM " + t.Saved.VM + " is no VM any more"
			}
			text := fmt.Sprintf("template %s is VM %d on node %s, saved from VM %s %s", t.Name, t.VMID, t.Node, t.Saved.VM, how)
			if len(t.Left) > 0 {
				text += "\nleft in it, for you to judge:\n  " + strings.Join(t.Left, "\n  ")
			}
			return a.print(t, text)
		}),
	}
	cmd.Flags().StringVar(&name, "as", "", "the template's name, which no VM may have")
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "the VM itself becomes the template")
	return a.completeVMs(cmd)
}

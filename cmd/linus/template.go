package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
)

func (a *app) templateCommand() *cobra.Command {
	return group("template", "Build the template that jobs' VMs are cloned from",
		a.templateBuildCommand(), a.templateListCommand(), a.templateRemoveCommand())
}

// withTemplates calls work with the templates of the configured host.
func (a *app) withTemplates(cmd *cobra.Command, work func(daemon.TemplateStore) error) error {
	c, err := a.localSettings(cmd, "run it on the engine's machine, which reaches the Proxmox host")
	if err != nil {
		return err
	}
	return daemon.WithTemplates(cmd.Context(), a.daemon(c), work)
}

// onEveryNode calls work with the templates of each node that VMs are spread over.
func (a *app) onEveryNode(cmd *cobra.Command, work func(node string, t daemon.TemplateStore) error) error {
	c, err := a.localSettings(cmd, "run it on the engine's machine, which reaches the Proxmox host")
	if err != nil {
		return err
	}
	return daemon.OnEveryNode(cmd.Context(), a.daemon(c), work)
}

func (a *app) templateBuildCommand() *cobra.Command {
	var spec job.TemplateSpec
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build a template from a cloud image on the Proxmox host",
		Long: "Downloads the image to the host, boots a VM from it once, installs what jobs need (--bootstrap), removes what\n" +
			"clones must not share, and converts the VM to a template. Takes minutes; Ctrl-C undoes it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (spec.ImageURL == "") != (spec.ImageSHA256 == "") {
				return usage("--image and --sha256 go together")
			}
			build := func(on string, t daemon.TemplateStore) error {
				vm, err := t.BuildTemplate(cmd.Context(), spec, func(p job.Progress) {
					if p.Warning != "" {
						a.note("%swarning: %s", on, oneLine(p.Warning, 300))
					} else {
						a.note("%s%d/%d %s", on, p.N, p.Of, oneLine(p.Text, 100))
					}
				})
				if err != nil {
					return err
				}
				return a.print(templateRow(vm), fmt.Sprintf("template %s is VM %d on node %s", vm.Name, vm.ID, vm.Node))
			}
			if everywhere {
				spec.Build = daemon.NewBuild()
				return a.onEveryNode(cmd, func(node string, t daemon.TemplateStore) error { return build(node+": ", t) })
			}
			return a.withTemplates(cmd, func(t daemon.TemplateStore) error { return build("", t) })
		},
	}
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "build it on every node that VMs are spread over (PROXMOX_NODES), one after the other")
	cmd.Flags().StringVar(&spec.OS, "os", job.DefaultSystem, strings.Join(job.Systems, ", "))
	_ = cmd.RegisterFlagCompletionFunc("os", cobra.FixedCompletions(job.Systems, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&spec.Name, "name", "agent-template", "its name; no VM may have it")
	cmd.Flags().StringVar(&spec.Bootstrap, "bootstrap", "base", `what to install: "base python node docker claude" or some of them, all, or none`)
	cmd.Flags().StringVar(&spec.ImageURL, "image", "", "URL of another image of that system (file:// is the host's)")
	cmd.Flags().StringVar(&spec.ImageSHA256, "sha256", "", "that image's sha256 sum")
	return cmd
}

func (a *app) templateListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the templates built by this installation",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withTemplates(cmd, func(t daemon.TemplateStore) error {
				found, err := t.Templates(cmd.Context())
				if err != nil && len(found) == 0 {
					return err
				}
				rows := make([]jsonTemplate, 0, len(found))
				var text strings.Builder
				w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(w, "ID\tNAME\tNODE")
				for _, vm := range found {
					rows = append(rows, templateRow(vm))
					_, _ = fmt.Fprintf(w, "%d\t%s\t%s\n", vm.ID, vm.Name, vm.Node)
				}
				_ = w.Flush()
				if printErr := a.print(rows, strings.TrimSuffix(text.String(), "\n")); printErr != nil {
					return printErr
				}
				return err
			})
		},
	}
}

func (a *app) templateRemoveCommand() *cobra.Command {
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "remove NAME|ID",
		Short: "Remove a template built by this installation",
		Args:  oneArg("the template's name or VM ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			remove := func(t daemon.TemplateStore) error {
				vm, err := t.RemoveTemplate(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.print(templateRow(vm), fmt.Sprintf("template %s (VM %d) is removed", vm.Name, vm.ID))
			}
			if everywhere {
				return a.onEveryNode(cmd, func(_ string, t daemon.TemplateStore) error { return remove(t) })
			}
			return a.withTemplates(cmd, remove)
		},
	}
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "remove the template of that name from every node that VMs are spread over (PROXMOX_NODES)")
	return cmd
}

// jsonTemplate is a template as -o json shows it.
type jsonTemplate struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Node string `json:"node"`
}

func templateRow(vm job.VM) jsonTemplate {
	return jsonTemplate{ID: vm.ID, Name: vm.Name, Node: vm.Node}
}

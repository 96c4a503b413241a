package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/vm"
)

// withTemplates calls work with the templates of the configured host, and an empty inventory and
// node. If everywhere is set, it calls work for each node that VMs are spread over.
func (a *app) withTemplates(cmd *cobra.Command, everywhere bool, work func(inv job.Inventory, n job.Node, t daemon.TemplateStore) error) error {
	c, err := a.localSettings(cmd, "run it on the engine's machine, which reaches the Proxmox host")
	if err != nil {
		return err
	}
	cmd.SetContext(a.telling(cmd.Context()))
	if everywhere {
		return daemon.OnEveryNode(cmd.Context(), a.daemon(c), work)
	}
	return daemon.WithTemplates(cmd.Context(), a.daemon(c), func(t daemon.TemplateStore) error { return work(job.Inventory{}, job.Node{}, t) })
}

// listTemplates returns the host's templates. It fails at once where it would have to wait for
// them.
func listTemplates(ctx context.Context, t daemon.TemplateStore) ([]vm.VM, error) {
	hurried, end := job.Hurried(ctx)
	defer end()
	return t.Templates(hurried)
}

func (a *app) templateBuildCommand() *cobra.Command {
	spec := job.TemplateSpec{Runners: map[string]job.FileSource{}}
	runners := map[string]*job.FileSource{}
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
			for part, from := range runners {
				if wants := slices.Contains(strings.FieldsFunc(spec.Bootstrap, parted), part); wants != (from.URL != "") || wants != (from.SHA256 != "") {
					return usage("--bootstrap %s, --%[1]s and --%[1]s-sha256 go together: the URL and the checksum are on its releases page", part)
				}
				if from.URL != "" {
					spec.Runners[part] = *from
				}
			}
			return a.withTemplates(cmd, everywhere, func(inv job.Inventory, n job.Node, t daemon.TemplateStore) error {
				on := ""
				if everywhere {
					on = n.Name + ": "
					if spec.Build == "" {
						spec.Build = buildFor(inv, spec.Name)
					}
					if at, _ := n.Template(spec.Name); at >= 0 {
						return a.hasTemplate(n, n.Templates[at], spec.Build)
					}
				}
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
			})
		},
	}
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "build it on every node that VMs are spread over (PROXMOX_NODES) and that has none of the name, one after the other")
	cmd.Flags().StringVar(&spec.OS, "os", job.DefaultSystem, strings.Join(vm.Systems, ", "))
	_ = cmd.RegisterFlagCompletionFunc("os", cobra.FixedCompletions(vm.Systems, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&spec.Name, "name", "agent-template", "its name; no VM may have it")
	cmd.Flags().StringVar(&spec.Bootstrap, "bootstrap", "base", `what to install: "base python node docker claude codex gemini" or some of them, all, or none; code-interpreter, github-runner, forgejo-runner and gitea-runner are not in all`)
	for part, what := range map[string]string{"github-runner": "GitHub's archive of the runner", "forgejo-runner": "Forgejo's runner, a program", "gitea-runner": "Gitea's runner, a program"} {
		runners[part] = &job.FileSource{}
		cmd.Flags().StringVar(&runners[part].URL, part, "", "URL of "+what+", for --bootstrap "+part+" (file:// is the host's)")
		cmd.Flags().StringVar(&runners[part].SHA256, part+"-sha256", "", "its sha256 sum")
	}
	cmd.Flags().StringVar(&spec.ImageURL, "image", "", "URL of another image of that system (file:// is the host's)")
	cmd.Flags().StringVar(&spec.ImageSHA256, "sha256", "", "that image's sha256 sum")
	return cmd
}

func parted(r rune) bool { return r == ' ' || r == ',' }

// buildFor returns the build for nodes that lack a template: the newest build on the nodes that
// have the template, or a new build if there is none. It is empty if every node has a template of
// that name and linus has built none of them.
func buildFor(inv job.Inventory, template string) string {
	build := inv.NewestBuild(template)
	lacks := func(n job.Node) bool { at, _ := n.Template(template); return at < 0 }
	if build == "" && slices.ContainsFunc(inv.Nodes, lacks) {
		build = daemon.NewBuild()
	}
	return build
}

// hasTemplate reports that a node has a template already. It fails if jobs do not use that template
// beside the given build on other nodes.
func (a *app) hasTemplate(n job.Node, t job.NodeTemplate, build string) error {
	why := n.Unused(t.Name, build)
	if why == "" {
		return a.print(jsonTemplate{ID: t.ID, Name: t.Name, Node: n.Name}, fmt.Sprintf("template %s is VM %d on node %s already", t.Name, t.ID, n.Name))
	}
	remedy := "remove it"
	if t.Build == "" {
		remedy = "rename or remove it by hand"
	}
	return fmt.Errorf("%s: template %s (VM %d) %s; %s, then build again", n.Name, t.Name, t.ID, why, remedy)
}

func (a *app) templateListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the templates built by this installation",
		Args:  noArgs,
	}
	find := choosing[jsonTemplate](a, cmd, "templates")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withTemplates(cmd, false, func(_ job.Inventory, _ job.Node, t daemon.TemplateStore) error {
			found, err := listTemplates(cmd.Context(), t)
			if err != nil && len(found) == 0 {
				return err
			}
			var rows []jsonTemplate
			for _, vm := range found {
				rows = append(rows, templateRow(vm))
			}
			rows, wrong := find(rows, nil)
			return errors.Join(wrong, printAll(a, rows, "", "ID\tNAME\tNODE\tSAVED FROM", func(t jsonTemplate) string {
				from := ""
				if t.Saved != nil {
					from = t.Saved.VM
				}
				return fmt.Sprintf("%d\t%s\t%s\t%s", t.ID, oneLine(t.Name, 63), oneLine(t.Node, 63), orDash(oneLine(from, 63)))
			}), err)
		})
	}
	return cmd
}

func (a *app) templateShowCommand() *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   "show NAME|ID",
		Short: "Show a template: where it is, and of which VM it was saved, by whom and when",
		Args:  oneArg("the template's name or VM ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTemplates(cmd, false, func(_ job.Inventory, _ job.Node, t daemon.TemplateStore) error {
				found, err := listTemplates(cmd.Context(), t)
				at := slices.IndexFunc(found, func(v vm.VM) bool { return v.Name == args[0] || strconv.Itoa(v.ID) == args[0] })
				switch {
				case at < 0 && err != nil:
					return err
				case at < 0:
					return &job.FieldError{Field: "template", Problem: fmt.Sprintf("this installation has made no template called %q", args[0]), Remedy: string(job.ListTemplates) + " shows those it has", Fault: job.FaultUnknown}
				}
				row := templateRow(found[at])
				return a.print(row, details(func(_ io.Writer, say func(name, value string)) {
					say("template", row.Name)
					say("VM", fmt.Sprint(row.ID))
					say("node", row.Node)
					say("build", found[at].Job)
					if row.Saved != nil {
						say("saved from", row.Saved.VM)
						say("made from", row.Saved.Template)
						say("saved by", row.Saved.By)
						say("saved", local(row.Saved.At))
					}
				}))
			})
		},
	}, a.templateNames())
}

func (a *app) templateRemoveCommand() *cobra.Command {
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "remove NAME|ID",
		Short: "Remove a template built by this installation",
		Args:  oneArg("the template's name or VM ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTemplates(cmd, everywhere, func(inv job.Inventory, n job.Node, t daemon.TemplateStore) error {
				has := func(n job.Node) bool { at, _ := n.Template(args[0]); return at >= 0 }
				if !has(n) && slices.ContainsFunc(inv.Nodes, has) {
					a.note("%s: has no template %s", n.Name, args[0])
					return nil
				}
				vm, err := t.RemoveTemplate(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.print(templateRow(vm), fmt.Sprintf("template %s (VM %d) is removed", vm.Name, vm.ID))
			})
		},
	}
	cmd.Flags().BoolVar(&everywhere, "all-nodes", false, "remove the template of that name from every node that VMs are spread over (PROXMOX_NODES)")
	return completeFirst(cmd, a.templateNames())
}

// jsonTemplate is a template as -o json shows it.
type jsonTemplate struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Node string `json:"node"`

	Saved *vm.Provenance `json:"saved,omitempty"` // of which VM; nil: it was built from an image
}

// Cells returns the cells for linus template list.
func (t jsonTemplate) Cells() job.Cells {
	return job.Cells{"id": t.ID, "name": t.Name, "node": t.Node}
}

func templateRow(v vm.VM) jsonTemplate {
	return jsonTemplate{ID: v.ID, Name: v.Name, Node: v.Node, Saved: v.Provenance}
}

package cluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// Node returns the node with that name.
func (p *Provider) Node(ctx context.Context, name string) (Node, error) { return p.node(ctx, name) }

// BuildTemplate builds a template on the node of the entry that answered last. Use Node for other
// nodes.
func (p *Provider) BuildTemplate(ctx context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error) {
	n, err := p.node(ctx, "")
	if err != nil {
		return vm.VM{}, err
	}
	return n.BuildTemplate(ctx, spec, progress)
}

// Templates returns the templates that this installation built, on all nodes. If a node could not
// be asked, it returns what it found and an error of class HostOffline.
func (p *Provider) Templates(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list templates", Node.Templates)
}

// RemoveTemplate removes a template from the node it is on. A name must be that of only one
// template.
func (p *Provider) RemoveTemplate(ctx context.Context, nameOrID string) (vm.VM, error) {
	n, id, err := p.template(ctx, "remove template "+nameOrID, nameOrID)
	if err != nil {
		return vm.VM{}, err
	}
	return n.RemoveTemplate(ctx, id)
}

// RenameTemplate renames a template, which it finds as RemoveTemplate does.
func (p *Provider) RenameTemplate(ctx context.Context, nameOrID, name string) (vm.VM, error) {
	n, id, err := p.template(ctx, "rename template "+nameOrID, nameOrID)
	if err != nil {
		return vm.VM{}, err
	}
	return n.RenameTemplate(ctx, id, name)
}

// template returns the node of a template, and its ID; if no node has it, a node that will say so.
func (p *Provider) template(ctx context.Context, op, nameOrID string) (n Node, id string, err error) {
	templates, err := p.Templates(ctx)
	if err != nil && len(templates) == 0 {
		return nil, "", err
	}
	var found []vm.VM
	var where []string
	for _, t := range templates {
		if t.Name == nameOrID || strconv.Itoa(t.ID) == nameOrID {
			found, where = append(found, t), append(where, fmt.Sprintf("%d on node %s", t.ID, t.Node))
		}
	}
	if len(found) > 1 {
		return nil, "", &job.HostError{
			Op: op, Host: p.hosts(), Class: job.HostInvalid,
			Text:   fmt.Sprintf("%q is the name of several templates: %s", nameOrID, strings.Join(where, ", ")),
			Remedy: "give an ID, or --all-nodes",
		}
	}
	node := ""
	if len(found) == 1 {
		node, nameOrID = found[0].Node, strconv.Itoa(found[0].ID)
	}
	n, err = p.node(ctx, node)
	return n, nameOrID, err
}

// Uninstall removes what linus keeps on the node of the entry that answered last. Use Node for
// other nodes.
func (p *Provider) Uninstall(ctx context.Context, spec job.UninstallSpec) (job.Uninstalled, error) {
	n, err := p.node(ctx, "")
	if err != nil {
		return job.Uninstalled{}, err
	}
	return n.Uninstall(ctx, spec)
}

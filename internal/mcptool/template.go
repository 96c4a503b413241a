package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type nodeTemplates struct {
	Node      string            `json:"node"`
	Templates []string          `json:"templates"`
	Unused    map[string]string `json:"unused,omitempty" jsonschema_description:"Why VMs are not cloned from some of them."`
}

type listTemplatesOutput struct {
	Nodes []nodeTemplates `json:"nodes"`
}

func (o Options) listTemplates() server.ServerTool {
	return define("list_templates", "List templates",
		"The templates on each node.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, _ job.None) (listTemplatesOutput, error) {
			all, err := o.Engine.Nodes(ctx)
			return listTemplatesOutput{each(all, func(n job.NodeInfo) nodeTemplates {
				return nodeTemplates{n.Name, append([]string{}, n.Templates...), n.Unused}
			})}, err
		})
}

type saveInput struct {
	vmArg

	Name string `json:"name" jsonschema_description:"Of the template."`
}

func (in saveInput) check(bad *faults) {
	in.vmArg.check(bad)
	bad.required("name", in.Name, "give a name such as with-tools")
}

type saveOutput struct {
	Template string   `json:"template"`
	VMID     int      `json:"template_id,omitempty"`
	Left     []string `json:"left,omitempty" jsonschema_description:"Seen in it and not removed."`
	Note     string   `json:"note,omitempty" jsonschema_description:"What is happening and what to do next."`
}

func (o Options) saveVM() server.ServerTool {
	return define("save_vm", "Save a VM",
		"Make a template from a copy of a persistent VM.",
		hints{openWorld: true},
		func(ctx context.Context, in saveInput) (saveOutput, error) {
			saved, ended, err := finish(ctx, o.background, func(ctx context.Context) (job.SavedTemplate, error) {
				return o.Engine.SaveVM(ctx, in.VMID, in.Name, false)
			})
			if err == nil && !ended {
				return saveOutput{Template: in.Name, Note: "It takes longer than a call may, and continues: it is done once list_templates has it."}, nil
			}
			return saveOutput{Template: saved.Name, VMID: saved.VMID, Left: saved.Left}, err
		})
}

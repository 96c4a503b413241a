package mcptool

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type forkInput struct {
	vmArg

	Count   int    `json:"count,omitempty" jsonschema:"minimum=1,maximum=32"`
	Name    string `json:"name,omitempty" jsonschema_description:"Default NAME-%d: %d is each one's number."`
	Partial bool   `json:"partial,omitempty" jsonschema_description:"Keep those made if others fail."`
}

type forkOutput struct {
	VMs    []string `json:"vms,omitempty" jsonschema_description:"Names."`
	Failed []string `json:"failed,omitempty"`
	Note   string   `json:"note"`
}

func (o Options) forkVM() server.ServerTool {
	return define("fork_vm", "Fork a VM",
		"Copy a running persistent VM: copies continue from its memory, or boot from its disk where the storage cannot.",
		hints{openWorld: true},
		func(ctx context.Context, in forkInput) (forkOutput, error) {
			out, ended, err := finish(ctx, o.background, func(ctx context.Context) (job.Forked, error) {
				return o.Engine.ForkVM(ctx, job.ForkSpec{VM: in.VMID, Count: in.Count, Name: in.Name, Partial: in.Partial})
			})
			switch {
			case err != nil:
				return forkOutput{}, err
			case !ended:
				return forkOutput{Note: "The fork takes longer than a call may, and continues. Call list_vms."}, nil
			}
			return forkOutput{
				VMs:    each(out.VMs, func(v job.VMInfo) string { return v.Name }),
				Failed: each(out.Failed, func(f job.ForkError) string { return f.Name + ": " + words.In(f.Error) }),
				Note:   fmt.Sprintf("%d copies were made %s", len(out.VMs), out.Point().Text()),
			}, nil
		})
}

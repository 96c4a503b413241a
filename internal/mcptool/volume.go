package mcptool

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/vm"
)

// volumeArg is the argument of the tools for one volume.
type volumeArg struct {
	Volume string `json:"volume"` // its name
}

func (a volumeArg) check(bad *faults) {
	bad.required("volume", a.Volume, "give a volume's name; list_volumes shows them")
}

type volumeOutput struct {
	Name   string           `json:"name,omitempty"`
	Status job.VolumeStatus `json:"status,omitempty"`
	SizeGB int              `json:"size_gb,omitempty"`
	Node   string           `json:"node,omitempty" jsonschema_description:"VMs of this node alone can have it, unless shared."`
	Shared bool             `json:"shared,omitempty"`
	VMs    []string         `json:"vms,omitempty" jsonschema_description:"Which have it: VM ID, directory and mode."`
	Note   string           `json:"note,omitempty" jsonschema_description:"What is happening and what to do next."`
}

func volumeOutputOf(v job.VolumeInfo) volumeOutput {
	return volumeOutput{Name: v.Name, Status: v.Status, SizeGB: v.SizeGB, Node: v.Node, Shared: v.Shared, VMs: each(v.Uses, func(u vm.VolumeUse) string {
		return fmt.Sprintf("%d at %s (%s)", u.VMID, u.Path, u.Mode())
	})}
}

// onVolume performs an operation on a volume. The operation may outlast the call.
func (o Options) onVolume(ctx context.Context, f func(context.Context) (job.VolumeInfo, error)) (volumeOutput, error) {
	v, ended, err := finish(ctx, o.background, f)
	if err == nil && !ended {
		return volumeOutput{Note: "It takes longer than a call may, and continues. Call list_volumes."}, nil
	}
	return volumeOutputOf(v), err
}

type listVolumesOutput struct {
	Volumes []volumeOutput `json:"volumes" jsonschema_description:"By name."`
}

func (o Options) listVolumes() server.ServerTool {
	return define("list_volumes", "List volumes",
		"Volumes (disks that outlive VMs), and which VMs have them.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, _ job.None) (listVolumesOutput, error) {
			all, err := o.Engine.Volumes(ctx)
			return listVolumesOutput{each(all, volumeOutputOf)}, err
		})
}

type createVolumeInput struct {
	Name string `json:"name"`
	Size string `json:"size" jsonschema_description:"1G to 10000G."`
}

func (o Options) createVolume() server.ServerTool {
	return define("create_volume", "Create a volume",
		"Create an empty disk that outlives VMs, for attach_volume and manifest.volumes.",
		hints{openWorld: true},
		func(ctx context.Context, in createVolumeInput) (volumeOutput, error) {
			return o.onVolume(ctx, func(ctx context.Context) (job.VolumeInfo, error) {
				return o.Engine.CreateVolume(ctx, job.VolumeSpec{Name: in.Name, Size: in.Size})
			})
		})
}

type attachVolumeInput struct {
	volumeArg
	vmArg

	Path string       `json:"path" jsonschema_description:"Absolute directory."`
	Mode vm.MountMode `json:"mode,omitempty" jsonschema:"enum=rw,enum=ro" jsonschema_description:"rw (default): this VM alone has it."`
}

func (in attachVolumeInput) check(bad *faults) {
	in.volumeArg.check(bad)
	in.vmArg.check(bad)
}

func (o Options) attachVolume() server.ServerTool {
	return define("attach_volume", "Attach a volume",
		"Mount a volume in a running persistent VM.",
		hints{idempotent: true, openWorld: true},
		func(ctx context.Context, in attachVolumeInput) (volumeOutput, error) {
			return o.onVolume(ctx, func(ctx context.Context) (job.VolumeInfo, error) {
				return o.Engine.AttachVolume(ctx, job.VolumeAttach{Volume: in.Volume, VM: in.VMID, Path: in.Path, Mode: in.Mode})
			})
		})
}

type detachVolumeInput struct {
	volumeArg
	vmArg
}

func (in detachVolumeInput) check(bad *faults) {
	in.volumeArg.check(bad)
	in.vmArg.check(bad)
}

func (o Options) detachVolume() server.ServerTool {
	return define("detach_volume", "Detach a volume",
		"Unmount a volume in a VM; its data stays.",
		hints{idempotent: true, openWorld: true},
		func(ctx context.Context, in detachVolumeInput) (volumeOutput, error) {
			return o.onVolume(ctx, func(ctx context.Context) (job.VolumeInfo, error) {
				return o.Engine.DetachVolume(ctx, in.Volume, in.VMID)
			})
		})
}

type deleteVolumeInput struct {
	volumeArg

	Confirm bool `json:"confirm,omitempty" jsonschema_description:"Else the user is asked."`
}

func (o Options) deleteVolume() server.ServerTool {
	return defineCall("delete_volume", "Delete a volume",
		"Delete a volume that no VM has, with its data.",
		hints{destructive: true, openWorld: true},
		func(ctx context.Context, in deleteVolumeInput, c call) (volumeOutput, error) {
			if err := c.confirmed(ctx, in.Confirm, fmt.Sprintf("Delete volume %s and all that is on it?", in.Volume)); err != nil {
				return volumeOutput{}, err
			}
			return o.onVolume(ctx, func(ctx context.Context) (job.VolumeInfo, error) { return o.Engine.RemoveVolume(ctx, in.Volume) })
		})
}

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"linus/internal/job"
	"linus/internal/vm"
)

// CreateVolume creates a volume, as an operation on the host: a second call for the same volume joins the first.
func (p *Provider) CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	op := "create volume " + v.Name
	env := p.machineEnvironment()
	volumeInputs(env, "create", v)
	env["VOLUME_NAME"], env["VOLUME_SIZE"] = v.Name, strconv.Itoa(v.SizeGB)
	setText(env, "PROXMOX_NODE", v.Node)
	setText(env, "PROXMOX_STORAGE", v.Storage)
	res, err := p.operateOnce(ctx, "volume-"+v.ID, call{op: op, script: "volume", env: env})
	if err != nil {
		return v, err
	}
	v.Node, v.Shared = res.Get("LINUS_VM_NODE"), res.Get("LINUS_VOLUME_SHARED") == "true"
	if v.VMID, err = readID(res.Get("LINUS_VM_ID")); err != nil || !nodeForm.MatchString(v.Node) {
		return v, p.failure(op, job.HostVM, "volume reported success without an ID or a node", "")
	}
	return v, nil
}

// RemoveVolume removes a volume that is not attached to a VM.
func (p *Provider) RemoveVolume(ctx context.Context, v vm.Volume) error {
	op := "remove volume " + v.Name
	if err := p.settle(ctx, op, "volume-"+v.ID); err != nil {
		return err
	}
	if v.VMID == 0 {
		there, err := p.ListVolumes(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(there, func(h vm.VM) bool { return h.Job == v.ID })
		if at < 0 {
			return nil
		}
		v.VMID = there[at].ID
	}
	return p.destroy(ctx, op, v.Holder(), "VM_KIND", "volume")
}

// ListVolumes returns the holders of this installation's volumes.
func (p *Provider) ListVolumes(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list volumes", "volume")
}

// AttachVolume attaches a volume to a running VM, on the VM's node, and mounts it there.
func (p *Provider) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	env := proof(to)
	volumeInputs(env, "attach", v)
	setText(env, "PROXMOX_NODE", to.Node)
	env["VOLUME_PATH"], env["VOLUME_MODE"], env["VOLUME_FORMATTED"] = use.Path, string(vm.MountRW), strconv.FormatBool(v.Formatted)
	if use.ReadOnly {
		env["VOLUME_MODE"] = string(vm.MountRO)
	}
	setText(env, "VM_SSH_USER", to.User)
	return p.volume(ctx, call{op: fmt.Sprintf("attach volume %s to VM %d (%s)", v.Name, to.ID, to.Name), env: env})
}

// DetachVolume unmounts a volume in a VM and detaches it.
func (p *Provider) DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error {
	env := proof(from)
	volumeInputs(env, "detach", v)
	setText(env, "PROXMOX_NODE", from.Node)
	return p.volume(ctx, call{op: fmt.Sprintf("take volume %s off VM %d (%s)", v.Name, from.ID, from.Name), env: env})
}

// volume runs the volume script for an action that can be repeated.
func (p *Provider) volume(ctx context.Context, c call) error {
	c.script, c.patience = "volume", p.o.Patience/10
	_, err := p.run(ctx, c)
	return err
}

func volumeInputs(env map[string]string, action string, v vm.Volume) {
	env["ACTION"], env["LINUS_OWNER"] = action, v.Owner
	env["VOLUME_UUID"], env["VOLUME_HOLDER"] = v.ID, v.Holder().Name
	setNumber(env, "VOLUME_VMID", v.VMID)
}

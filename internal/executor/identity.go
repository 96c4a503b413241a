package executor

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"linus/internal/job"
	"linus/internal/vm"
)

// recordIdentity records the current address and host key of the VM that job id created, and
// applies change to its row. It is the only place where they are accepted, for one VM
// at a time. The guest reports them, so those of another of our VMs are refused: with
// them the guest would receive what is meant for the other.
func (e *Executor) recordIdentity(ctx context.Context, id string, v vm.VM, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	release, err := e.claiming.take(context.WithoutCancel(ctx))
	if err != nil {
		return job.Job{}, err
	}
	defer release()
	if err := e.unclaimed(ctx, id, v); err != nil {
		return job.Job{}, err
	}
	return e.update(context.WithoutCancel(ctx), id, func(j *job.Job) ([]job.Event, error) {
		j.VM.IP, j.VM.User, j.VM.HostKey, j.VM.Node = v.IP, v.User, v.HostKey, v.Node
		return change(j)
	})
}

// unclaimed returns an error if another VM of ours has vm's address or host key. A
// network may assign the address of a VM that is off to another: the first VM's is then
// cleared, and it gets a new one when it is started. e.claiming is held.
func (e *Executor) unclaimed(ctx context.Context, id string, v vm.VM) error {
	ctx = context.WithoutCancel(ctx)
	others, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Job == id {
			continue
		}
		if v.HostKey != "" && other.HostKey == v.HostKey {
			return passesFor(v, other, "SSH host key", "each VM must have its own: where a template holds one, remove /etc/ssh/ssh_host_* from it, or make one by "+string(job.BuildTemplate))
		}
		if !sameAddress(v.IP, other.IP) {
			continue
		}
		if status := e.vmStatus(ctx, job.Job{ID: other.Job, VM: &other}); !status.Down() {
			return passesFor(v, other, "address "+v.IP, fmt.Sprintf("look for an address in use twice; if VM %d has another by now, stop and start it", other.ID))
		}
		_, err := e.update(ctx, other.Job, func(j *job.Job) ([]job.Event, error) {
			j.VM.IP = ""
			return nil, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// passesFor is the error of a vm that shows another VM's address or host key.
func passesFor(v, other vm.VM, what, remedy string) error {
	return &job.HostError{
		Op: "reach VM " + strconv.Itoa(v.ID) + " (" + v.Name + ")", Host: "node " + v.Node, Class: job.HostVM,
		Text:   fmt.Sprintf("it shows the %s of VM %d (%s), made by job %s; nothing was sent there", what, other.ID, other.Name, other.Job),
		Remedy: remedy,
	}
}

// pinned returns an error if a VM is identified only by its address. It gets no secrets
// then: whatever answers there would receive them.
func pinned(v vm.VM) error {
	if v.HostKey != "" {
		return nil
	}
	return &job.FieldError{
		Field:   "manifest.secrets",
		Problem: fmt.Sprintf("VM %d (%s) gets none: its SSH host key was not read through the hypervisor, and whatever answers at %s would have them", v.ID, v.Name, v.IP),
		Remedy:  "use a template whose guest agent responds (" + string(job.BuildTemplate) + " makes one), or run the job without secrets",
	}
}

// sameAddress reports whether two texts are the same address.
func sameAddress(a, b string) bool {
	if a == b {
		return a != ""
	}
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

package fleet

import (
	"context"
	"fmt"
	"strconv"

	"linus/internal/job"
	"linus/internal/vm"
)

// Accept calls record, which records the address and the host key that v shows as those of the VM
// with this ID. They are accepted nowhere else, and for one VM at a time. The guest reports them, so
// those of another VM are refused: with them, the guest would receive what is meant for the other VM.
func (f *Fleet) Accept(ctx context.Context, id string, v vm.VM, record func(context.Context) error) error {
	ctx = context.WithoutCancel(ctx)
	release, err := f.claims.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := f.unclaimed(ctx, id, v); err != nil {
		return err
	}
	return record(ctx)
}

// Identify records the address, user, host key and node that a VM shows now, if they are accepted.
func (f *Fleet) Identify(ctx context.Context, v vm.VM) error {
	return f.Accept(ctx, v.Job, v, func(ctx context.Context) error {
		return f.set(ctx, v.Job, func(row *vm.VM) { row.IP, row.User, row.HostKey, row.Node = v.IP, v.User, v.HostKey, v.Node })
	})
}

// unclaimed returns an error if another VM has v's address or host key. A network may assign the
// address of a VM that is off to another: then the first VM's address is cleared, and it gets a new
// one when it starts. f.claims must be held.
func (f *Fleet) unclaimed(ctx context.Context, id string, v vm.VM) error {
	others, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.Job == id {
			continue
		}
		if v.HostKey != "" && other.HostKey == v.HostKey {
			return identityClash(v, other, "SSH host key", "each VM must have its own: where a template holds one, remove /etc/ssh/ssh_host_* from it, or make one by "+string(job.BuildTemplate))
		}
		if !vm.SameAddress(v.IP, other.IP) {
			continue
		}
		if status, err := f.o.Provider.Status(ctx, other); err != nil || !status.Down() {
			return identityClash(v, other, "address "+v.IP, fmt.Sprintf("look for an address in use twice; if VM %d has another by now, stop and start it", other.ID))
		}
		if err := f.set(ctx, other.Job, func(v *vm.VM) { v.IP = "" }); err != nil {
			return err
		}
	}
	return nil
}

// identityClash is the error for a VM that shows another VM's address or host key.
func identityClash(v, other vm.VM, what, remedy string) error {
	return &job.HostError{
		Op: "reach VM " + strconv.Itoa(v.ID) + " (" + v.Name + ")", Host: "node " + v.Node, Class: job.HostVM,
		Text:   fmt.Sprintf("it shows the %s of VM %d (%s), made by job %s; nothing was sent there", what, other.ID, other.Name, other.Job),
		Remedy: remedy,
	}
}

package executor

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"linus/internal/job"
)

// claim records how the VM that job id has made is reached now; change does what
// else there is to its row. It is the one place where an address or a host key
// is taken for a VM's, one VM at a time: what another of our VMs has is refused,
// for the guest has told it, and with it would get what is meant for the other.
func (e *Executor) claim(ctx context.Context, id string, vm job.VM, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	e.claiming.Lock()
	defer e.claiming.Unlock()
	if err := e.unclaimed(ctx, id, vm); err != nil {
		return job.Job{}, err
	}
	return e.update(context.WithoutCancel(ctx), id, func(j *job.Job) ([]job.Event, error) {
		j.VM.IP, j.VM.User, j.VM.HostKey, j.VM.Node = vm.IP, vm.User, vm.HostKey, vm.Node
		return change(j)
	})
}

// unclaimed is the error that another VM of ours has vm's address or host key.
// A network may give the address of a VM that does not run to the next one: that
// VM gets another when it is started. e.claiming is held.
func (e *Executor) unclaimed(ctx context.Context, id string, vm job.VM) error {
	creators, err := e.o.Store.VMs(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	for _, m := range creators {
		other := *m.VM
		if m.ID == id {
			continue
		}
		if vm.HostKey != "" && other.HostKey == vm.HostKey {
			return passesFor(vm, other, "SSH host key", "each VM must have its own: where a template holds one, remove /etc/ssh/ssh_host_* from it, or make one by "+string(job.BuildTemplate))
		}
		if !sameAddress(vm.IP, other.IP) {
			continue
		}
		if status := e.vmStatus(ctx, m); status != job.VMStopped && status != job.VMGone {
			return passesFor(vm, other, "address "+vm.IP, fmt.Sprintf("look for an address in use twice; if VM %d has another by now, stop and start it", other.ID))
		}
		_, err := e.update(context.WithoutCancel(ctx), m.ID, func(j *job.Job) ([]job.Event, error) {
			j.VM.IP = ""
			return nil, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// passesFor is the error that vm shows what is another VM's.
func passesFor(vm, other job.VM, what, remedy string) error {
	return &job.HostError{
		Op: "reach VM " + strconv.Itoa(vm.ID) + " (" + vm.Name + ")", Host: "node " + vm.Node, Class: job.HostVM,
		Text:   fmt.Sprintf("it shows the %s of VM %d (%s), made by job %s; nothing was sent there", what, other.ID, other.Name, other.Job),
		Remedy: remedy,
	}
}

// pinned is the error that a VM is known by its address alone, so that it can have
// no secrets: whoever answers there would get them.
func pinned(vm job.VM) error {
	if vm.HostKey != "" {
		return nil
	}
	return &job.FieldError{
		Field:   "manifest.secrets",
		Problem: fmt.Sprintf("VM %d (%s) gets none: its SSH host key was not read through the hypervisor, and whatever answers at %s would have them", vm.ID, vm.Name, vm.IP),
		Remedy:  "use a template whose guest agent answers (" + string(job.BuildTemplate) + " makes one), or run the job without secrets",
	}
}

// sameAddress reports whether two texts are one address.
func sameAddress(a, b string) bool {
	if a == b {
		return a != ""
	}
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

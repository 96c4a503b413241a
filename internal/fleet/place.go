package fleet

import (
	"context"
	"errors"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// Placer chooses the node for each new VM.
type Placer interface {
	// Place returns the node for a VM, or *job.NoRoomError if no node can take it now.
	Place(ctx context.Context, want job.Placement) (job.Placed, error)
	// Fits returns *job.NoRoomError if it is known that no node can ever take such a VM. It takes
	// seconds at most.
	Fits(ctx context.Context, spec job.VMSpec) error
}

// Spread reports whether VMs are spread over nodes.
func (f *Fleet) Spread() bool { return f.o.Placer != nil }

// Choose chooses the node for a new VM and calls record to record it, so that the next choice
// counts this VM. only names the one allowed node; empty: any. Choose returns *job.NoRoomError if
// no node can take the VM now.
func (f *Fleet) Choose(ctx context.Context, spec job.VMSpec, only string, record func(job.Placed) error) error {
	release, err := f.choosing.Take(ctx)
	for errors.Is(err, lock.ErrHeld) {
		release, err = f.choosing.Take(ctx)
	}
	if err != nil {
		return err
	}
	defer release()
	want, err := f.Beside(ctx)
	if err != nil {
		return err
	}
	want.Spec, want.Only = spec, only
	at, err := f.o.Placer.Place(ctx, want)
	if err != nil {
		return err
	}
	return record(at)
}

// Beside returns what a VM's node is chosen by, apart from the VM itself.
func (f *Fleet) Beside(ctx context.Context) (want job.Placement, err error) {
	if want.VMs, err = f.Placed(ctx); err != nil {
		return want, err
	}
	want.Cordoned, err = f.o.Store.Cordons(ctx)
	return want, err
}

// Placed returns the VMs of this installation that exist or are being made.
func (f *Fleet) Placed(ctx context.Context) ([]job.PlacedVM, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return nil, err
	}
	placed := make([]job.PlacedVM, 0, len(vms))
	for _, v := range vms {
		if (v.State == vm.Intended || v.State == vm.Created) && !v.Saved() {
			placed = append(placed, job.PlacedVM{ID: v.ID, Node: v.Node, MemoryMB: job.SizeMB(v.Resources.Memory), Making: v.State == vm.Intended})
		}
	}
	return placed, nil
}

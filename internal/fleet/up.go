package fleet

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// How long work in a VM may take before the host is asked whether the VM runs, and how often it is
// asked again: each time costs the host a second of CPU.
const (
	lookAfter = 3 * time.Second
	lookEvery = 10 * time.Second
)

// WhileUp calls work, which connects to a VM. If work takes long or fails because the VM does not
// run or the host does not respond, WhileUp returns early with the host's error or what notUp
// returns for the VM's status, instead of SSH's late error.
func (f *Fleet) WhileUp(ctx context.Context, v vm.VM, notUp func(vm.VM, vm.Status) error, work func(context.Context) error) error {
	working, end := context.WithCancelCause(ctx)
	looked := make(chan struct{})
	var down error
	go func() {
		defer close(looked)
		t := time.NewTimer(lookAfter)
		defer t.Stop()
		for {
			select {
			case <-working.Done():
				return
			case <-t.C:
				t.Reset(lookEvery)
			}
			if status, err := f.o.Provider.Status(working, v); err == nil {
				if down = notUp(v, status); down != nil {
					end(down)
					return
				}
			}
		}
	}()
	err := work(working)
	end(nil)
	<-looked
	switch {
	case err == nil:
		return nil
	case down != nil:
		return down
	case ctx.Err() != nil:
		return err
	}
	status, asked := f.o.Provider.Status(ctx, v)
	if asked != nil {
		if job.IsClass(err, job.HostUnreachable) && job.IsClass(asked, job.HostUnreachable) {
			return asked // the host cannot be reached, rather than the VM
		}
		return err
	}
	if down := notUp(v, status); down != nil {
		return down
	}
	return err
}

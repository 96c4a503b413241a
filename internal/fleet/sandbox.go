package fleet

import (
	"context"
	"errors"
	"net"
	"slices"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// Sandboxes returns the VMs that programs use as sandboxes and that the caller may see, oldest
// first, as stored: the host is not asked.
func (f *Fleet) Sandboxes(ctx context.Context) ([]vm.VM, error) {
	vms, err := f.o.Store.VMs(ctx)
	return slices.DeleteFunc(vms, func(v vm.VM) bool { return v.Sandbox() == nil || !job.Visible(ctx, v.OwnedBy()) }), err
}

// Sandbox returns a sandbox by the ID in its marker, or job.ErrNotFound.
func (f *Fleet) Sandbox(ctx context.Context, id string) (vm.VM, error) {
	v, err := f.o.Store.VM(ctx, id)
	if err == nil && (v.Sandbox() == nil || !job.Visible(ctx, v.OwnedBy())) {
		return vm.VM{}, job.ErrNotFound
	}
	return v, err
}

// DialSandbox connects to the program that serves a sandbox in its VM, and starts it if it does not
// run. The connection outlasts ctx.
func (f *Fleet) DialSandbox(ctx context.Context, id string) (conn net.Conn, err error) {
	v, err := f.Sandbox(ctx, id)
	if err == nil {
		err = takesJobs(v, v.Name)
	}
	if err == nil {
		err = f.access.usable(ctx, v)
	}
	if err != nil {
		return nil, err
	}
	done, err := f.inUseOf(ctx, v, func(ctx context.Context, v vm.VM) error {
		conn, err = f.o.Guest.DialSandbox(ctx, v)
		return err
	})
	if err != nil && conn != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return usedConn{conn, done}, nil
}

// BuildAlone keeps other engines from building the template with a name until release is called. It
// fails if one already does.
func (f *Fleet) BuildAlone(ctx context.Context, template string) (release func(), err error) {
	if f.o.Engines == nil {
		return func() {}, nil
	}
	return lock.TryLock(ctx, f.o.Engines, "build of "+template, "built")
}

// usedConn is a connection that keeps its VM in use until it is closed.
type usedConn struct {
	net.Conn

	done func()
}

func (c usedConn) Close() error {
	defer c.done()
	return c.Conn.Close()
}

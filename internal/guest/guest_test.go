package guest_test

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/vm"
)

var (
	_ fleet.Guest     = (*guest.Guest)(nil)
	_ executor.Runner = (*guest.Guest)(nil)
	_ fleet.Keys      = guest.Keys{}
)

// What fails here, before the VM was asked, says nothing of the VM.
func TestProbe_ThatCouldNotBeMadeIsAFaultOfOurOwn(t *testing.T) {
	for name, fault := range map[string]error{
		"here":               &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)},
		"before the host":    &job.HostError{Op: "reach", Class: job.HostUnreachable, Text: "too many open files", Own: true},
		"not, but at a host": &job.HostError{Op: "reach", Class: job.HostUnreachable, Text: "no route"},
	} {
		g := guest.New(guest.Options{Host: func(context.Context, vm.VM) (*remote.Pool, error) { return nil, fault }})
		_, err := g.Probe(t.Context(), job.Job{ID: "1", VM: &vm.VM{ID: 100, IP: "192.0.2.1", User: "debian"}})
		if own := !strings.HasPrefix(name, "not"); !job.IsClass(err, job.HostUnreachable) || job.IsEngineFault(err) != own {
			t.Errorf("%s: own %v, %v", name, job.IsEngineFault(err), err)
		}
		g.Close()
	}
}

package job

import (
	"context"
	"errors"
	"time"
)

// VMSpec is the VM a job asks for. Name, Job and Owner identify it for good.
type VMSpec struct {
	Name     string // DNS label
	Job      string // linus-job=<uuid>
	Owner    string // linus-owner=<uuid>
	CPU      int    // cores
	MemoryMB int
	DiskGB   int
	Template string // name or VM ID of the template to clone; empty: OS
	OS       string // one of Systems, from its cloud image; empty: Template
	Network  Network

	PublicKey string // one line: what logs in to it; empty: the Provider's own

	// Lease: should nobody destroy the VM within this time, the host itself
	// does, after the same proof. 0: never.
	Lease time.Duration
}

// Progress is one step of a provider's work as it happens.
type Progress struct {
	Step  string // the step's name, e.g. "create_vm"; empty when something else is news
	Text  string // one line for people
	N, Of int    // step N of Of
	VMID  int    // the VM ID, the moment it is ours; else 0

	Warning string // something the job's owner should know, e.g. no host key to pin
}

// Seen is a VM as Look finds it. What its guest says is bounded and of the right
// form, and still the word of a machine where a job may have been root; empty
// where it says nothing.
type Seen struct {
	Status VMStatus
	IP     string // an address a VM can have
	BootID string // the kernel's, another after each restart
}

// ErrDetach is the cause a context ends with when its work is to go on without
// us: the engine stops, the job does not.
var ErrDetach = errors.New("the engine stops; work on the host goes on")

// Provider makes and removes VMs on a hypervisor. Every method may be called
// recordAddress after it was interrupted. Errors are *HostError where the host is
// to blame.
type Provider interface {
	// Check looks whether jobs can run at all.
	Check(ctx context.Context) (HostReport, error)
	// Create makes a VM that answers SSH and has finished its first boot. When
	// there is one of its name, the error is of class HostExists. When it fails, or ctx ends, it has removed what it made, or tried to: Destroy
	// afterwards is always right. When ctx ends with ErrDetach the work goes on,
	// and Create for the same job joins it. progress is called from one goroutine.
	Create(ctx context.Context, spec VMSpec, progress func(Progress)) (VM, error)
	// Destroy removes the VM after proof that it is vm: ID, name, job and owner
	// must all match what the host says. A VM that is gone is success. Of class
	// HostForeign is the error that its ID is another's by now: vm is gone as
	// well. Of class HostLeftAlone, that the host has it, and it is not proven:
	// nothing was touched, and it is not gone. A create for the same job that is
	// still under way is ended first; with ID 0, where the ID was never learned,
	// that is all.
	Destroy(ctx context.Context, vm VM) error
	// ForgetVM gives up what the host keeps of a VM that it leaves alone: its lease,
	// and the address reserved for it. The VM is not touched. One that proves to be
	// vm is refused: it is destroyed, not forgotten.
	ForgetVM(ctx context.Context, vm VM) error
	// List finds every VM that carries this installation's owner marker.
	List(ctx context.Context) ([]VM, error)
	// Status asks how one VM is, by the same proof as Destroy's: running, stopped,
	// gone, where no VM has its ID or another has it by now, or unproven, where
	// Destroy would leave it alone. It does not wait for a host that does not
	// answer. Unknown and unproven are no proof of anything.
	Status(ctx context.Context, vm VM) (VMStatus, error)
	// Look is Status, and asks the guest of a VM that runs, through the hypervisor
	// rather than the network, where it is and which boot this is.
	Look(ctx context.Context, vm VM) (Seen, error)
	// Plan tells what Create would do, one command a line, and changes nothing.
	Plan(ctx context.Context, spec VMSpec) ([]string, error)
	// StartVM starts a VM, after proof, and returns it as it then is (its address
	// may be another) once it answers SSH. A running VM is success.
	StartVM(ctx context.Context, vm VM, progress func(Progress)) (VM, error)
	// StopVM shuts a VM down, after proof, and turns it off when it does not.
	// A stopped VM is success.
	StopVM(ctx context.Context, vm VM) error
	// SnapshotVM keeps the VM's disk as it is now under a name, after proof. A
	// snapshot of that name is an error.
	SnapshotVM(ctx context.Context, vm VM, name string) error
	// RevertVM brings the VM back to a snapshot, after proof, starts it and
	// answers it as StartVM does. What was on its disk since is lost.
	RevertVM(ctx context.Context, vm VM, name string, progress func(Progress)) (VM, error)
	// CallbackHost is this machine's address as VMs of the host can reach it:
	// the near end of the connection to the host. Never "localhost", unless
	// the host itself is this machine's loopback.
	CallbackHost(ctx context.Context) (string, error)
}

package job

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"linus/internal/vm"
)

// VMSpec is the VM for a job. Name, Job and Owner identify it permanently.
type VMSpec struct {
	Node     string // where to create it, as named by Nodes; empty: the Provider's own
	Name     string // DNS label
	Job      string // linus-job=<uuid>
	Owner    string // linus-owner=<uuid>
	CPU      int    // cores
	MemoryMB int
	DiskGB   int
	Template string // name or VM ID of the template to clone; empty: OS
	OS       string // one of vm.Systems, from its cloud image; empty: Template
	Network  vm.Network

	// Checkpoint is the VM ID of the checkpoint from whose memory the VM resumes. It must be on the
	// node and made from the Template in this size. 0: the VM boots.
	Checkpoint int

	Fork ForkOf // the VM to copy, on the node; Template, OS and size are then ignored

	// Volumes are the VM's volumes, which its node must be able to attach.
	Volumes []vm.Volume

	PublicKey string // one line: the key for logging in to the VM; empty: the Provider's own

	// Lease is the time after which the host itself destroys the VM, after the same proof, if nobody
	// else has. 0: never.
	Lease time.Duration
}

// SpecOf returns the VM for a manifest that has all defaults, except its identity, node and lease.
func SpecOf(m Manifest) (VMSpec, error) {
	memory, err := ParseSize(m.Resources.Memory)
	if err != nil {
		return VMSpec{}, err
	}
	disk, err := ParseSize(m.Resources.Disk)
	if err != nil {
		return VMSpec{}, err
	}
	const mib, gib = 1 << 20, 1 << 30
	return VMSpec{
		CPU:      m.Resources.CPU,
		MemoryMB: int((memory + mib - 1) / mib),
		DiskGB:   int((disk + gib - 1) / gib),
		Template: m.VMTemplate,
		OS:       m.OS,
		Network:  m.Network,
	}, nil
}

// Progress is one step of a provider's work as it happens.
type Progress struct {
	Step  string // the step's name, e.g. "create_vm"; empty if this reports something else
	Text  string // one line for people
	N, Of int    // step N of Of; 0 of 0: the step is not counted
	VMID  int    // the VM ID, once linus owns it; else 0

	Warning string // something the job's owner should know, e.g. that there is no host key to pin, or what is waited for, which is also in Text
}

// Line describes a step in one line for people.
func (p Progress) Line() string {
	if p.Of > 0 {
		return fmt.Sprintf("%d/%d %s", p.N, p.Of, p.Text)
	}
	return p.Text
}

// Event returns the event of a step or a warning; the zero Event if it is neither.
func (p Progress) Event() Event {
	switch {
	case p.Warning != "":
		return Event{Kind: EventWarning, Phase: PhaseProvision, Text: p.Warning}
	case p.Step != "":
		return Event{Kind: EventProgress, Phase: p.Step, Text: p.Text}
	}
	return Event{}
}

// Seen is a VM as found by Look. What its guest reports is bounded and well-formed, but comes from a
// machine where a job may have been root; it is empty if the guest reports nothing.
type Seen struct {
	Status vm.Status
	IP     string // an address that a VM can have
	BootID string // of the guest's kernel; it changes with each restart
	Node   string // where the VM is; empty: unchanged
}

// ErrDetach is the cause with which a context ends if its work continues without the engine: the
// engine stops, the job does not.
var ErrDetach = errors.New("the engine is stopping; work on the host continues")

// Provider creates and removes VMs on a hypervisor. Every method may be called again after an
// interruption. Errors are *HostError if the host is at fault.
type Provider interface {
	// Check checks whether the host can run jobs.
	Check(ctx context.Context) (HostReport, error)
	// Create creates a VM that responds over SSH and has finished its first boot. If a VM with its
	// name exists, the error is of class HostExists. If the host was restarted meanwhile, the error
	// is of class HostInterrupted and nothing is removed. If Create fails or ctx ends, it has
	// removed what it created, or tried to; calling Destroy afterwards is always right. If ctx ends
	// with ErrDetach, the work continues, and Create for the same job joins it. If the spec's
	// checkpoint is no longer usable, the error is of class HostUnfit, mostly before anything is
	// created. progress is called from one goroutine.
	Create(ctx context.Context, spec VMSpec, progress func(Progress)) (vm.VM, error)
	// Destroy removes a VM after proof that it is v: ID, name, job and owner must all match what the
	// host says. It succeeds if the VM is gone. An error of class HostForeign means that the ID now
	// belongs to another VM, so v is gone as well. An error of class HostLeftAlone means that the VM
	// exists but is not proven: it was not touched, and it is not gone. A create for the same job that
	// is still running is stopped first. If ID is 0 because it was never learned, nothing else is done.
	Destroy(ctx context.Context, v vm.VM) error
	// ForgetVM gives up what the host stores about a VM that is left alone: its lease, and the
	// address reserved for it. The VM is not touched. A VM that is proven to be v is refused: it
	// must be destroyed, not forgotten.
	ForgetVM(ctx context.Context, v vm.VM) error
	// List finds every VM with this installation's owner marker.
	List(ctx context.Context) ([]vm.VM, error)
	// Status returns the status of one VM, by the same proof as Destroy: running, stopped, gone (no
	// VM has its ID, or another VM has it now) or unproven (Destroy would leave it alone). It does
	// not wait for a host that does not answer. Unknown and unproven prove nothing.
	Status(ctx context.Context, v vm.VM) (vm.Status, error)
	// Look is Status, and also asks the guest of a running VM for its address and boot ID, through
	// the hypervisor rather than the network.
	Look(ctx context.Context, v vm.VM) (Seen, error)
	// NetworkRules returns what the node does with a VM's packets, after the same proof as Status, and
	// for each address and port the rule that decides about a new TCP connection there; empty if unknown.
	NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (NetworkRules, []string, error)
	// Plan returns what Create would do, one command per line, and changes nothing.
	Plan(ctx context.Context, spec VMSpec) ([]string, error)
	// SetNetwork changes where the VM's packets may go from now on: the mode and its lists, and
	// nothing else of the network. It needs proof, and returns once the host applies the change; for
	// a VM that does not run, the change applies at the next start. A suspended VM is an error.
	SetNetwork(ctx context.Context, v vm.VM, n vm.Network) error
	// StartVM starts a VM, after proof, and returns it as it then is (its address may have changed)
	// once it responds over SSH. A running VM is success.
	StartVM(ctx context.Context, v vm.VM, progress func(Progress)) (vm.VM, error)
	// StopVM shuts a VM down, after proof, and powers it off if it does not shut down. A stopped VM
	// is success.
	StopVM(ctx context.Context, v vm.VM) error
	// SuspendVM writes a running VM's memory to the VM's storage, after proof, and turns the VM off,
	// which frees its memory on the host until ResumeVM. A suspended VM is success; a stopped one is
	// an error. After an error the VM keeps running, unless the error says otherwise.
	SuspendVM(ctx context.Context, v vm.VM) error
	// ResumeVM resumes a suspended VM, after proof, in the same boot, sets the guest's clock, and
	// returns the VM as StartVM does. StartVM does the same to a suspended VM. A running VM is
	// success; a stopped one is an error. After an error the VM may be running.
	ResumeVM(ctx context.Context, v vm.VM, progress func(Progress)) (vm.VM, error)
	// SnapshotVM saves the VM's disk under a name, after proof, and with memory set also the state of
	// what runs in the VM, which must be running then. It is an error if a snapshot of that name exists.
	SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error
	// RevertVM reverts the VM to a snapshot, after proof, and returns the VM as StartVM does: booted
	// or, if the snapshot has its memory, running as it was then, with the clock set. Later changes
	// on its disk are lost.
	RevertVM(ctx context.Context, v vm.VM, name string, progress func(Progress)) (vm.VM, error)
	// SaveCheckpoint makes a checkpoint of a VM that is ready and was made from a template, after
	// proof: its memory is written to the host and the VM does not run again. If it fails, calling
	// Destroy is right. Destroy removes a checkpoint, too.
	SaveCheckpoint(ctx context.Context, v vm.VM, progress func(Progress)) (vm.Checkpoint, error)
	// SaveVM makes a template of a VM, after proof: of a copy, which is removed on failure, or of
	// the VM itself. Until that is a template, it stays the VM, but may be cleaned and off. A name
	// that is taken is an error of class HostExists. In place, a call after an interrupted one
	// continues it, and a call after a finished one succeeds, too.
	SaveVM(ctx context.Context, v vm.VM, spec SaveSpec, progress func(Progress)) (SavedTemplate, error)
	// ForkVM prepares a running VM, after proof, to be copied by Create with a spec's Fork, until
	// EndFork. The VM keeps running.
	ForkVM(ctx context.Context, v vm.VM, progress func(Progress)) (ForkPoint, error)
	// EndFork removes what ForkVM left on the host, after proof. It succeeds if there is nothing.
	EndFork(ctx context.Context, v vm.VM) error
	// Snapshots returns the VM's snapshots, oldest first, after the same proof as Status.
	Snapshots(ctx context.Context, v vm.VM) ([]Snapshot, error)
	// DeleteSnapshot removes a snapshot, after proof. The VM may run and stays as it is. It is an
	// error if the snapshot does not exist.
	DeleteSnapshot(ctx context.Context, v vm.VM, name string) error
	// Templates finds every template that this installation has made. With an error, the list is incomplete.
	Templates(ctx context.Context) ([]vm.VM, error)
	// CreateVolume creates the volume that a row describes, attached to no VM, and returns it with
	// its node and its holder's VM ID. RemoveVolume removes a volume, or what is left of an
	// unfinished creation, unless a VM has it; it succeeds if the volume is gone. ListVolumes finds every
	// holder of a volume with this installation's owner marker.
	CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error)
	RemoveVolume(ctx context.Context, v vm.Volume) error
	ListVolumes(ctx context.Context) ([]vm.VM, error)
	// AttachVolume attaches a volume to a running VM on its node, and mounts it there at the use's path,
	// after proof of both. A volume that was never formatted is formatted if nothing is found on it. The
	// call is refused while another VM has the volume, unless both only read. A failure is undone.
	AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error
	// DetachVolume unmounts a volume in a running VM and detaches it. It succeeds if the VM does not
	// have the volume. Destroy does not need it: it detaches a stopped VM's volumes first.
	DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error
	// Room returns what the host has left for VMs, what VMs of these origins are made from now, and
	// which of these VMs are no longer proven; it also renews leases. It is cheap: it reads files of
	// the host and starts nothing of Proxmox.
	Room(ctx context.Context, origins []Origin, vms []Watched) (HostRoom, error)
	// Nodes returns the nodes that VMs are created on.
	Nodes(ctx context.Context) (Inventory, error)
	// CallbackHost returns this machine's address as VMs of the host can reach it: the near end of the
	// connection to the host. It is never "localhost", unless the host itself is this machine's loopback.
	CallbackHost(ctx context.Context) (string, error)
}

package job

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"linus/internal/vm"
)

// VMSpec is the VM a job asks for. Name, Job and Owner identify it permanently.
type VMSpec struct {
	Node     string // where it is to be, as Nodes has it; empty: the Provider's own
	Name     string // DNS label
	Job      string // linus-job=<uuid>
	Owner    string // linus-owner=<uuid>
	CPU      int    // cores
	MemoryMB int
	DiskGB   int
	Template string // name or VM ID of the template to clone; empty: OS
	OS       string // one of vm.Systems, from its cloud image; empty: Template
	Network  vm.Network

	// Checkpoint is the VM ID of the checkpoint, on the node and made from the Template in this
	// size, from whose memory the VM goes on; 0: it boots.
	Checkpoint int

	Fork ForkOf // that it is a copy of, on the node; Template, OS and size do not count then

	// Volumes are those that the VM is to have, which its node must be able to attach.
	Volumes []vm.Volume

	PublicKey string // one line: the key that logs in to it; empty: the Provider's own

	// Lease is the time after which the host itself destroys the VM, after the
	// same proof, if nobody has done so. 0: never.
	Lease time.Duration
}

// SpecOf returns what the VM of a manifest with every default is made by, but for its
// identity, its node and its lease.
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
	N, Of int    // step N of Of; 0 of 0: one that is not counted
	VMID  int    // the VM ID, as soon as it is ours; else 0

	Warning string // something the job's owner should know, e.g. no host key to pin, or what is waited for, which is the Text, too
}

// Line is a step in one line for people.
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

// Seen is a VM as Look finds it. What its guest reports is bounded and
// well-formed, but comes from a machine where a job may have been root; it is
// empty where the guest reports nothing.
type Seen struct {
	Status vm.Status
	IP     string // an address a VM can have
	BootID string // the kernel's; it changes with each restart
	Node   string // where the VM is; empty: where it was
}

// ErrDetach is the cause with which a context ends when its work is to go on
// without us: the engine stops, the job does not.
var ErrDetach = errors.New("the engine stops; work on the host goes on")

// Provider creates and removes VMs on a hypervisor. Every method may be called
// again after an interruption. Errors are *HostError where the host is to
// blame.
type Provider interface {
	// Check checks whether the host can run jobs.
	Check(ctx context.Context) (HostReport, error)
	// Create creates a VM that responds over SSH and has finished its first boot. If
	// a VM of its name exists, the error is of class HostExists; if its host was
	// restarted meanwhile, HostInterrupted, and nothing is removed. When it fails,
	// or ctx ends, it has removed what it created, or tried to: Destroy
	// afterwards is always right. When ctx ends with ErrDetach the work goes
	// on, and Create for the same job joins it. If the spec's checkpoint cannot be
	// used any more the error is of class HostUnfit, mostly before anything is created.
	// progress is called from one goroutine.
	Create(ctx context.Context, spec VMSpec, progress func(Progress)) (vm.VM, error)
	// Destroy removes the VM after proof that it is vm: ID, name, job and owner
	// must all match what the host says. A VM that is gone is success. An error
	// of class HostForeign means that the ID now belongs to another VM: vm is
	// gone as well. One of class HostLeftAlone means that the VM exists but is
	// not proven: it was not touched, and it is not gone. A create for the same
	// job that is still running is stopped first; with ID 0, where the ID was
	// never learned, nothing else is done.
	Destroy(ctx context.Context, v vm.VM) error
	// ForgetVM gives up what the host stores about a VM that it leaves alone:
	// its lease, and the address reserved for it. The VM is not touched. One
	// that proves to be vm is refused: it is destroyed, not forgotten.
	ForgetVM(ctx context.Context, v vm.VM) error
	// List finds every VM that carries this installation's owner marker.
	List(ctx context.Context) ([]vm.VM, error)
	// Status returns the status of one VM, by the same proof as Destroy's:
	// running, stopped, gone (no VM has its ID, or another has it now) or
	// unproven (Destroy would leave it alone). It does not wait for a host that
	// does not answer. Unknown and unproven prove nothing.
	Status(ctx context.Context, v vm.VM) (vm.Status, error)
	// Look is Status, and also asks the guest of a running VM, through the
	// hypervisor rather than the network, for its address and its boot ID.
	Look(ctx context.Context, v vm.VM) (Seen, error)
	// NetworkRules returns what the node does with a VM's packets, after the same proof as
	// Status, and for each address and port the rule that decides about a new TCP
	// connection there; empty: not known.
	NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (NetworkRules, []string, error)
	// Plan returns what Create would do, one command per line, and changes
	// nothing.
	Plan(ctx context.Context, spec VMSpec) ([]string, error)
	// SetNetwork changes where the VM's packets may go from now on: the mode and its lists, and
	// nothing else of the network. It is done after proof, and returns when the host does so. Of one
	// that does not run the next start has it; a suspended one is an error.
	SetNetwork(ctx context.Context, v vm.VM, n vm.Network) error
	// StartVM starts a VM, after proof, and returns it as it then is (its
	// address may have changed) once it responds over SSH. A running VM is success.
	StartVM(ctx context.Context, v vm.VM, progress func(Progress)) (vm.VM, error)
	// StopVM shuts a VM down, after proof, and powers it off if it does not
	// shut down. A stopped VM is success.
	StopVM(ctx context.Context, v vm.VM) error
	// SuspendVM writes a running VM's memory to the VM's storage, after proof,
	// and turns the VM off: its memory on the host is free until ResumeVM. A
	// suspended VM is success; a stopped one is an error. After an error the VM
	// runs on, unless the error says otherwise.
	SuspendVM(ctx context.Context, v vm.VM) error
	// ResumeVM continues a suspended VM where it was suspended (it is the same
	// boot), after proof, sets the guest's clock, and returns it as StartVM does.
	// StartVM does the same to a suspended VM. A running VM is success; a
	// stopped one is an error, and after an error the VM may run.
	ResumeVM(ctx context.Context, v vm.VM, progress func(Progress)) (vm.VM, error)
	// SnapshotVM saves the VM's disk as it is now under a name, after proof,
	// and with memory set also what runs in it; the VM must run then. An
	// existing snapshot of that name is an error.
	SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error
	// RevertVM returns the VM to a snapshot, after proof, and returns it as
	// StartVM does: booted, or, where the snapshot has its memory, running as it
	// was then, with the clock set. Changes on its disk since then are lost.
	RevertVM(ctx context.Context, v vm.VM, name string, progress func(Progress)) (vm.VM, error)
	// SaveCheckpoint makes a checkpoint of a VM that is ready and was made from a template, after
	// proof: its memory is written to the host and the VM does not run again. When it fails,
	// Destroy is right. Destroy removes a checkpoint, too.
	SaveCheckpoint(ctx context.Context, v vm.VM, progress func(Progress)) (vm.Checkpoint, error)
	// SaveVM makes a template of a VM, after proof: of a copy, which goes if it fails, or of the VM
	// itself. Until that is a template, it stays the VM; cleaned, perhaps, and off. A name that is
	// taken is an error of class HostExists. In place, a call after one that was cut off goes on
	// with it, and one after its end succeeds, too.
	SaveVM(ctx context.Context, v vm.VM, spec SaveSpec, progress func(Progress)) (SavedTemplate, error)
	// ForkVM makes a running VM ready to be copied, after proof, by Create with a spec's Fork,
	// until EndFork. The VM goes on.
	ForkVM(ctx context.Context, v vm.VM, progress func(Progress)) (ForkPoint, error)
	// EndFork removes what ForkVM has left on the host, after proof; nothing is success.
	EndFork(ctx context.Context, v vm.VM) error
	// Snapshots returns the VM's snapshots, oldest first, after the same proof as Status.
	Snapshots(ctx context.Context, v vm.VM) ([]Snapshot, error)
	// DeleteSnapshot removes a snapshot, after proof. The VM may run, and stays as it is. A
	// snapshot that is not there is an error.
	DeleteSnapshot(ctx context.Context, v vm.VM, name string) error
	// Templates finds every template that this installation has made; with an error, not all of them.
	Templates(ctx context.Context) ([]vm.VM, error)
	// CreateVolume creates the volume that a row describes, for no VM, and returns it with its
	// node and its holder's VM ID. RemoveVolume removes one, also what is left of its making,
	// unless a VM has it; one that is gone is success. ListVolumes finds every holder of a volume
	// that carries this installation's owner marker.
	CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error)
	RemoveVolume(ctx context.Context, v vm.Volume) error
	ListVolumes(ctx context.Context) ([]vm.VM, error)
	// AttachVolume attaches a volume to a running VM on its node, and mounts it there at the
	// use's path, after proof of both. One that was never formatted is formatted if nothing is
	// found on it. Refused while another VM has it, unless both only read. What fails is undone.
	AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error
	// DetachVolume unmounts a volume in a VM that runs, and takes it off. A VM that has it not
	// is success. Destroy does without: it takes a stopped VM's volumes off first.
	DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error
	// Room returns what the host has left for VMs, what VMs of these origins
	// are made from now, and which of these VMs are not proven any more, and
	// renews leases. It is cheap: it reads files of the host and starts nothing
	// of Proxmox.
	Room(ctx context.Context, origins []Origin, vms []Watched) (HostRoom, error)
	// Nodes returns the nodes that VMs are created on.
	Nodes(ctx context.Context) (Inventory, error)
	// CallbackHost returns this machine's address as VMs of the host can reach
	// it: the near end of the connection to the host. Never "localhost", unless
	// the host itself is this machine's loopback.
	CallbackHost(ctx context.Context) (string, error)
}

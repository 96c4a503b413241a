package pve

import (
	"context"

	"linus/internal/lab/state"
)

// Driver runs VMs of one kind. All methods may be called from different
// processes at once; callers of Start, Stop and Shutdown hold the VM's lock.
type Driver interface {
	// Up prepares what all VMs share (network namespace, bridge, DHCP; nothing
	// for process). It may fill fields of s.Config, which the caller saves.
	// Idempotent.
	Up(ctx context.Context, s *state.State) error
	// Down removes what Up created, also a half of it. Idempotent.
	Down(ctx context.Context, s *state.State) error
	// BuildImage returns the path of the disk image the template is made of and
	// that can be imported: a Debian image (cached) or a marker file.
	BuildImage(ctx context.Context, s *state.State) (path string, err error)
	// Start returns when the machine's process runs and is recorded in RunDir.
	Start(ctx context.Context, s *state.State, vm state.VM) error
	// Stop pulls the plug and returns when the machine is gone. A VM that does
	// not run is no error.
	Stop(ctx context.Context, s *state.State, vm state.VM) error
	// Shutdown asks the guest and waits until ctx ends; then ErrShutdownTimeout.
	Shutdown(ctx context.Context, s *state.State, vm state.VM) error
	// Pause stops what runs in a VM where it stands; Continue lets it run on.
	Pause(ctx context.Context, s *state.State, vm state.VM) error
	Continue(ctx context.Context, s *state.State, vm state.VM) error
	// Paused reports whether a running VM is paused.
	Paused(ctx context.Context, s *state.State, vm state.VM) bool
	// SaveMemory writes what runs in a paused VM into a volume of that size, in
	// bytes; 0: of what is written. The VM stays as it is.
	SaveMemory(ctx context.Context, s *state.State, vm state.VM, path string, size int64) error
	// Shelve turns off a paused VM whose memory was saved.
	Shelve(ctx context.Context, s *state.State, vm state.VM, path string) error
	// Restore is Start with what SaveMemory wrote.
	Restore(ctx context.Context, s *state.State, vm state.VM, path string) error
	// StartFrom is Start with what SaveMemory wrote of another VM, which is the same
	// machine; its volumes are this VM's, and cards whose link is down have none at once.
	StartFrom(ctx context.Context, s *state.State, vm state.VM, path string) error
	// SetLink takes the link of a running VM's card down, or puts it up. slot is the card's
	// key in the config.
	SetLink(ctx context.Context, s *state.State, vm state.VM, slot string, up bool) error
	// PlugDisk gives a running VM a disk, which is slot in its config. UnplugDisk takes one
	// away; state.ErrBusy while the guest uses it.
	PlugDisk(ctx context.Context, s *state.State, vm state.VM, slot string) error
	UnplugDisk(ctx context.Context, s *state.State, vm state.VM, slot string, d state.Drive) error
	// Move hands a running VM over to another node of the cluster, whose state is to.
	// The VM's disks and config have moved already.
	Move(ctx context.Context, from, to *state.State, vm state.VM) error
	// SnapshotDisk keeps the content of a VM's disk under a name, also while the
	// machine runs. slot is the disk's key in the config.
	SnapshotDisk(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error
	// DeleteSnapshot forgets it. A missing one is an error.
	DeleteSnapshot(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error

	Disks
}

// Disks makes and changes the driver's disk images. format is raw or qcow2,
// sizes are bytes as the guest sees them; dst does not exist yet and is
// removed again on failure.
type Disks interface {
	// CreateDisk creates an empty disk.
	CreateDisk(ctx context.Context, dst, format string, size int64) error
	// ImportDisk copies an image of any format the driver reads into a new disk.
	ImportDisk(ctx context.Context, src, dst, format string) error
	// LinkDisk creates a disk that shows base's content and keeps only changes.
	LinkDisk(ctx context.Context, base, dst string) error
	// CloneSnapshot copies what SnapshotDisk has kept of a disk into a new one, also while
	// the machine runs.
	CloneSnapshot(ctx context.Context, src, name, dst, format string) error
	// ResizeDisk grows a disk.
	ResizeDisk(ctx context.Context, path string, size int64) error
	// DiskSize is the size the guest sees.
	DiskSize(ctx context.Context, path string) (int64, error)
	// RollbackDisk gives a disk that no machine has open the content of one of
	// its snapshots.
	RollbackDisk(ctx context.Context, path, name string) error
	// RenameDisk gives a disk, and what is kept beside it, another name, also in
	// another directory of the lab.
	RenameDisk(path, other string) error
	// DeleteDisk removes a disk, its snapshots and everything kept beside it. A missing one is
	// no error.
	DeleteDisk(ctx context.Context, path string) error
}

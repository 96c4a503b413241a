package pve

import (
	"context"

	"linus/internal/lab/state"
)

// Driver runs VMs of one kind. Different processes may call any of its methods at once; callers of
// Start, Stop and Shutdown hold the VM's lock.
type Driver interface {
	// Up prepares what all VMs share (network namespace, bridge, DHCP; nothing for process). It may
	// set fields of s.Config, which the caller saves. It is idempotent.
	Up(ctx context.Context, s *state.State) error
	// Down removes what Up created, even if that is incomplete. It is idempotent.
	Down(ctx context.Context, s *state.State) error
	// BuildImage returns the path of the disk image that the template is made from and that can be
	// imported: a cached Debian image, or a marker file.
	BuildImage(ctx context.Context, s *state.State) (path string, err error)
	// Start returns when the machine's process runs and is recorded in RunDir.
	Start(ctx context.Context, s *state.State, vm state.VM) error
	// Stop pulls the plug and returns when the machine is gone, or if it does not run.
	Stop(ctx context.Context, s *state.State, vm state.VM) error
	// Shutdown asks the guest and waits until ctx ends; then it returns ErrShutdownTimeout.
	Shutdown(ctx context.Context, s *state.State, vm state.VM) error
	// Pause stops everything that runs in a VM; Continue resumes it.
	Pause(ctx context.Context, s *state.State, vm state.VM) error
	Continue(ctx context.Context, s *state.State, vm state.VM) error
	// Paused reports whether a running VM is paused.
	Paused(ctx context.Context, s *state.State, vm state.VM) bool
	// SaveMemory writes what runs in a paused VM to a volume of the given size in bytes (0: of the
	// size of what is written). The VM stays paused.
	SaveMemory(ctx context.Context, s *state.State, vm state.VM, path string, size int64) error
	// Shelve turns off a paused VM whose memory was saved.
	Shelve(ctx context.Context, s *state.State, vm state.VM, path string) error
	// Restore is Start with what SaveMemory wrote.
	Restore(ctx context.Context, s *state.State, vm state.VM, path string) error
	// StartFrom is Start with what SaveMemory wrote of another VM with the same machine, on this
	// VM's volumes. Cards whose link is down in this VM's config have no link from the start.
	StartFrom(ctx context.Context, s *state.State, vm state.VM, path string) error
	// SetLink sets the link of a running VM's card. slot is the card's key in the config.
	SetLink(ctx context.Context, s *state.State, vm state.VM, slot string, up bool) error
	// PlugDisk adds the disk slot of a VM's config to the running VM. UnplugDisk removes one; it
	// returns state.ErrBusy while the guest uses the disk.
	PlugDisk(ctx context.Context, s *state.State, vm state.VM, slot string) error
	UnplugDisk(ctx context.Context, s *state.State, vm state.VM, slot string, d state.Drive) error
	// Move hands a running VM over to another node of the cluster, with the state to. The VM's
	// disks and config have already moved.
	Move(ctx context.Context, from, to *state.State, vm state.VM) error
	// SnapshotDisk keeps the content of a VM's disk under a name, even while the machine runs. slot
	// is the disk's key in the config.
	SnapshotDisk(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error
	// DeleteSnapshot deletes a disk's snapshot. It is an error if there is none.
	DeleteSnapshot(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error

	Disks
}

// Disks makes and changes the driver's disk images. format is raw or qcow2; sizes are bytes as the
// guest sees them. dst does not exist yet, and is removed again on failure.
type Disks interface {
	// CreateDisk creates an empty disk.
	CreateDisk(ctx context.Context, dst, format string, size int64) error
	// ImportDisk copies an image of any format the driver reads to a new disk.
	ImportDisk(ctx context.Context, src, dst, format string) error
	// LinkDisk creates a disk that shows base's content and stores only changes.
	LinkDisk(ctx context.Context, base, dst string) error
	// CloneSnapshot copies a disk's snapshot to a new disk, even while the machine runs.
	CloneSnapshot(ctx context.Context, src, name, dst, format string) error
	// ResizeDisk grows a disk.
	ResizeDisk(ctx context.Context, path string, size int64) error
	// DiskSize is the size the guest sees.
	DiskSize(ctx context.Context, path string) (int64, error)
	// RollbackDisk gives a disk the content of one of its snapshots. No machine has the disk open.
	RollbackDisk(ctx context.Context, path, name string) error
	// RenameDisk renames a disk and what is kept beside it, possibly to another directory.
	RenameDisk(path, other string) error
	// DeleteDisk removes a disk, if it exists, its snapshots and everything kept beside it.
	DeleteDisk(ctx context.Context, path string) error
}

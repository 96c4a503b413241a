package job

import (
	"fmt"
	"strings"

	"linus/internal/vm"
)

// What takes disk of a client's and is no VM of a job's or of its own, as limits see it.
const (
	KindVolume     Kind = "volume"
	KindCheckpoint Kind = "checkpoint"
	KindSaved      Kind = "saved template"
)

// Disk is such a disk, as a job that has ended and whose VM is nothing else.
func Disk(kind Kind, mb int) Job {
	return Job{Kind: kind, Status: Success, Manifest: DiskAlone(mb)}
}

// DiskAlone is the manifest of what takes disk and is no job.
func DiskAlone(mb int) Manifest {
	return Manifest{Resources: vm.Resources{Disk: fmt.Sprintf("%dM", mb)}}
}

// CheckpointMB is what a checkpoint may take of the host's disk: its own, as it may grow, and
// its memory.
func CheckpointMB(r vm.Resources) int { return SizeMB(r.Disk) + SizeMB(r.Memory) }

// StateMB is what a VM's memory takes of its host's disk, each time that it is there: what Proxmox
// reserves for a VM that is suspended, and for a snapshot with memory.
func StateMB(r vm.Resources) int { return 2*SizeMB(r.Memory) + 500 }

// Disks is what takes the disk of a client or of a token's owner, in MiB.
type Disks struct{ VMs, Memory, Volumes, Checkpoints, Saved int }

// Add counts what a job has on its host's disk, or what it stands for: a VM that was asked for, or
// a Disk.
func (d *Disks) Add(j Job) {
	mb := SizeMB(j.Manifest.Resources.Disk)
	switch j.Kind {
	case KindVolume:
		d.Volumes += mb
	case KindCheckpoint:
		d.Checkpoints += mb
	case KindSaved:
		d.Saved += mb
	default:
		if j.WantsVM() {
			d.VMs += mb
		}
		if j.VM != nil && j.VM.Job == j.ID {
			d.Memory += j.VM.TimesStored() * StateMB(j.VM.Resources)
		}
	}
}

// Sum is all of it.
func (d Disks) Sum() int { return d.VMs + d.Memory + d.Volumes + d.Checkpoints + d.Saved }

// String says what takes how much, as in "VMs 20480, volumes 10240".
func (d Disks) String() string {
	var parts []string
	for _, p := range []struct {
		what string
		mb   int
	}{{"VMs", d.VMs}, {"memory of VMs", d.Memory}, {"volumes", d.Volumes}, {"checkpoints", d.Checkpoints}, {"saved templates", d.Saved}} {
		if p.mb > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", p.what, p.mb))
		}
	}
	return strings.Join(parts, ", ")
}

// Removes is what can be removed to make room besides VMs; empty: nothing.
func (d Disks) Removes() (text string) {
	if d.Memory > 0 {
		text = ", or resume a suspended VM, or remove a snapshot with memory"
	}
	for _, p := range []struct {
		what string
		mb   int
	}{{"volume", d.Volumes}, {"checkpoint", d.Checkpoints}, {"saved template", d.Saved}} {
		if p.mb > 0 {
			text += ", or remove a " + p.what
		}
	}
	return text
}

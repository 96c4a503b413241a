package job

import (
	"fmt"
	"strings"

	"linus/internal/vm"
)

// Kinds of what takes a client's disk space besides VMs, as limits count it.
const (
	KindVolume     Kind = "volume"
	KindCheckpoint Kind = "checkpoint"
	KindSaved      Kind = "saved template"
)

// Disk returns a job that stands for such disk space: it has ended, and its VM is only the disk.
func Disk(kind Kind, mb int) Job {
	return Job{Kind: kind, Status: Success, Manifest: DiskAlone(mb)}
}

// DiskAlone returns the manifest of something that takes disk space and is not a job.
func DiskAlone(mb int) Manifest {
	return Manifest{Resources: vm.Resources{Disk: fmt.Sprintf("%dM", mb)}}
}

// CheckpointMB returns the most that a checkpoint may take of the host's disk: its own disk, fully
// grown, and its memory.
func CheckpointMB(r vm.Resources) int { return SizeMB(r.Disk) + SizeMB(r.Memory) }

// StateMB returns what each stored copy of a VM's memory takes of its host's disk: what Proxmox
// reserves for a suspended VM and for a snapshot with memory.
func StateMB(r vm.Resources) int { return 2*SizeMB(r.Memory) + 500 }

// Disks is the disk space used by a client or a token's owner, in MiB.
type Disks struct{ VMs, Memory, Volumes, Checkpoints, Saved int }

// Add adds the disk space of a job's VM, of a VM that the job stands for, or of a Disk.
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

// Sum returns the total.
func (d Disks) Sum() int { return d.VMs + d.Memory + d.Volumes + d.Checkpoints + d.Saved }

// String lists what takes how much, as in "VMs 20480, volumes 10240".
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

// Removes says what can be removed to make room besides VMs; empty if there is nothing.
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

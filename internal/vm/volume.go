package vm

import (
	"slices"
	"strings"
	"time"
)

// Volume is a disk that outlives VMs. On the host, it is held by a VM that never runs.
type Volume struct {
	ID        string      `json:"id"` // linus-job in its holder's description, and its filesystem's UUID
	Name      string      `json:"name"`
	Owner     string      `json:"owner"` // this installation's ID
	State     VolumeState `json:"state"`
	SizeGB    int         `json:"size_gb"`
	Node      string      `json:"node,omitempty"`    // of its holder
	Storage   string      `json:"storage,omitempty"` // empty: the Provider's
	Shared    bool        `json:"shared,omitempty"`  // VMs on all nodes can have it; else only those on its node
	VMID      int         `json:"vm_id,omitempty"`   // of its holder; 0: not known yet
	Formatted bool        `json:"formatted,omitempty"`
	Uses      []VolumeUse `json:"uses,omitempty"` // by VMs that have it, or may have it
	Principal string      `json:"principal,omitempty"`
	Client    string      `json:"client,omitempty"`
	CreatedAt time.Time   `json:"created_at"`
}

// VolumeState is the state of a volume's row.
type VolumeState string

// The states. The row exists before the volume can, and as long as it may.
const (
	VolumeIntended VolumeState = "intended"
	VolumeCreated  VolumeState = "created"
	VolumeUnwanted VolumeState = "unwanted"
)

// VolumeUse is a VM that has a volume. It is recorded before the VM can have it, and until the VM
// was seen without it.
type VolumeUse struct {
	VM       string `json:"vm" api:"id"` // the ID in its marker
	VMID     int    `json:"vm_id,omitempty"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

func (u VolumeUse) Mode() MountMode {
	if u.ReadOnly {
		return MountRO
	}
	return MountRW
}

// Mount says where a VM has a volume.
type Mount struct {
	Name string    `json:"name"`
	Path string    `json:"path"`
	Mode MountMode `json:"mode,omitempty"`
}

// ParseMount parses NAME:/PATH or NAME:/PATH:MODE; ok is false if text is neither.
func ParseMount(text string) (m Mount, ok bool) {
	name, at, ok := strings.Cut(text, ":")
	at, mode, moded := strings.Cut(at, ":")
	m = Mount{Name: name, Path: at, Mode: MountMode(mode)}
	return m, ok && name != "" && at != "" && (!moded || m.Mode == MountRO || m.Mode == MountRW)
}

// Text returns the text that ParseMount parses.
func (m Mount) Text() string { return strings.TrimSuffix(m.Name+":"+m.Path+":"+string(m.Mode), ":") }

// MountMode says whether a VM may write to a volume.
type MountMode string

// The modes.
const (
	MountRW MountMode = "rw"
	MountRO MountMode = "ro"
)

// Holder returns the VM that holds the volume on the host.
func (v Volume) Holder() VM {
	return VM{ID: v.VMID, Name: "linus-volume-" + v.ID[24:], Job: v.ID, Owner: v.Owner, Node: v.Node}
}

// Conflict returns the use that forbids next; nil: there is none. One VM may write, or any number may read.
func (v Volume) Conflict(next VolumeUse) *VolumeUse {
	for _, u := range v.Uses {
		if u.VM != next.VM && !(u.ReadOnly && next.ReadOnly) {
			return &u
		}
	}
	return nil
}

// UsedBy returns how the VM with an ID in its marker uses the volume; nil: it does not.
func (v Volume) UsedBy(id string) *VolumeUse {
	if at := slices.IndexFunc(v.Uses, func(u VolumeUse) bool { return u.VM == id }); at >= 0 {
		return &v.Uses[at]
	}
	return nil
}

// Unused removes the use by a VM.
func (v *Volume) Unused(id string) {
	v.Uses = slices.DeleteFunc(slices.Clone(v.Uses), func(u VolumeUse) bool { return u.VM == id })
}

// SavedTemplate is a template that was made from a VM, and whose disk it counts as.
type SavedTemplate struct {
	ID        string    `json:"id"` // of the save
	Name      string    `json:"name"`
	VMID      int       `json:"vm_id,omitempty"` // 0: it may still be in the making
	DiskMB    int       `json:"disk_mb"`         // the disk space that it may take
	Principal string    `json:"principal,omitempty"`
	Client    string    `json:"client,omitempty"`
	Build     string    `json:"build,omitempty"` // the VM's name, if a template was being built in it
	CPU       int       `json:"cpu,omitempty"`   // what that VM had, as VMs of the template should have
	MemoryMB  int       `json:"memory_mb,omitempty"`
	At        time.Time `json:"at"`
}

package job

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	spec "linus/internal/field"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// Bounds of volumes.
const (
	maxVolumeName = 40
	maxMounts     = 8
	maxMountPath  = 255 // bytes
)

// VolumeSpec is a request for a volume.
type VolumeSpec struct {
	Name    string `json:"name" api:",required"`
	Size    string `json:"size" api:",required"` // in whole G, as in 20G
	Node    string `json:"node,omitempty"`       // where VMs can use it; empty: one is chosen
	Storage string `json:"storage,omitempty"`    // empty: that of VMs
}

var volumeID = lazyregexp.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Check returns the size in GiB, or a *FieldError if the volume is invalid.
func (s VolumeSpec) Check() (gib int, err error) {
	switch {
	case !spec.DNSLabel.MatchString(s.Name) || strings.ToLower(s.Name) != s.Name || len(s.Name) > maxVolumeName || isPage(s.Name) || strings.Trim(s.Name, "0123456789") == "":
		return 0, field("name", fmt.Sprintf("use letters of a-z, digits and dashes, at most %d, and not digits alone", maxVolumeName), "%.80q is not a volume's name", s.Name)
	case volumeID.MatchString(s.Name):
		return 0, field("name", "use another, as in cache", "%q reads as a volume's ID", s.Name)
	case s.Storage != "" && !fits(spec.Template, s.Storage, 63):
		return 0, field("storage", "name a storage of the host, as in local-lvm", "%.80q is not a storage's name", s.Storage)
	}
	n, err := ParseSize(s.Size)
	if err != nil || n%(1<<30) != 0 || n < 1<<30 || n > 10000<<30 {
		return 0, field("size", "give 1G to 10000G, as in 20G", "%.80q is not a volume's size", s.Size)
	}
	return int(n >> 30), nil
}

// VolumeAttach is a request to attach a volume to a persistent VM.
type VolumeAttach struct {
	Volume string       `json:"volume"`
	VM     string       `json:"vm" api:",required"`
	Path   string       `json:"path" api:",required"`
	Mode   vm.MountMode `json:"mode,omitempty"` // rw, the default, or ro
}

// Check returns a *FieldError if the volume cannot be mounted so.
func (a VolumeAttach) Check() error {
	if bad := checkMount("", vm.Mount{Name: a.Volume, Path: a.Path, Mode: a.Mode}); len(bad) > 0 {
		return bad[0]
	}
	return nil
}

func checkMount(at string, m vm.Mount) (bad []*FieldError) {
	if m.Path != path.Clean(m.Path) || !path.IsAbs(m.Path) || m.Path == "/" || len(m.Path) > maxMountPath || !utf8.ValidString(m.Path) || strings.ContainsFunc(m.Path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		bad = append(bad, field(at+"path", "give an absolute directory other than /, in its shortest form, as in /srv/cache", "%.80q cannot be a mount point", m.Path))
	}
	if f := OneOf(at+"mode", m.Mode, false, vm.MountRW, vm.MountRO); f != nil {
		bad = append(bad, f)
	}
	return bad
}

// validateVolumes checks a manifest's volumes. Whether they exist is checked where they are used.
func validateVolumes(mounts []vm.Mount) (bad []*FieldError) {
	if len(mounts) > maxMounts {
		return []*FieldError{field("manifest.volumes", "use fewer", "are %d, the limit is %d", len(mounts), maxMounts)}
	}
	for i, m := range mounts {
		at := fmt.Sprintf("manifest.volumes[%d].", i)
		bad = append(bad, checkMount(at, m)...)
		if m.Name == "" {
			bad = append(bad, field(at+"name", string(ListVolumes)+" shows the volumes", "is required"))
		}
		if slices.ContainsFunc(mounts[:i], func(o vm.Mount) bool { return o.Name == m.Name || o.Path == m.Path }) {
			bad = append(bad, field(at+"name", "name each volume, and each path, once", "%q, or its path, is given twice", m.Name))
		}
	}
	return bad
}

// VolumeStatus is the state of a volume as shown.
type VolumeStatus string

// The statuses.
const (
	VolumeMaking   VolumeStatus = "making"
	VolumeReady    VolumeStatus = "ready"
	VolumeRemoving VolumeStatus = "removing"
	VolumeMissing  VolumeStatus = "missing"  // the host no longer has it
	VolumeOrphaned VolumeStatus = "orphaned" // the host has it, but linus has no record of it
)

// VolumeStatuses are all statuses.
var VolumeStatuses = []VolumeStatus{VolumeMaking, VolumeReady, VolumeRemoving, VolumeMissing, VolumeOrphaned}

// VolumeInfo describes a volume.
type VolumeInfo struct {
	ID        string         `json:"id"`
	Name      string         `json:"name"`
	Status    VolumeStatus   `json:"status"`
	SizeGB    int            `json:"size_gb,omitempty"`
	Node      string         `json:"node,omitempty"`
	Storage   string         `json:"storage,omitempty"` // empty: that of VMs
	Shared    bool           `json:"shared,omitempty"`  // its storage is shared: VMs of all nodes can use it, not only those of its node
	VMID      int            `json:"vm_id,omitempty"`   // of the VM that holds it on the host and never runs
	Uses      []vm.VolumeUse `json:"uses,omitempty"`    // by VMs
	CreatedAt time.Time      `json:"created_at,omitzero"`
	Principal string         `json:"principal,omitempty"` // the name of its owner; empty: the operator
}

// VolumeOf describes a volume.
func VolumeOf(v vm.Volume) VolumeInfo {
	status := map[vm.VolumeState]VolumeStatus{vm.VolumeIntended: VolumeMaking, vm.VolumeCreated: VolumeReady, vm.VolumeUnwanted: VolumeRemoving}[v.State]
	return VolumeInfo{
		ID: v.ID, Name: v.Name, Status: status, SizeGB: v.SizeGB, Node: v.Node, Storage: v.Storage, Shared: v.Shared, VMID: v.VMID, Uses: v.Uses, CreatedAt: v.CreatedAt, Principal: v.Principal,
	}
}

// Cells returns the volume's cells.
func (v VolumeInfo) Cells() Cells {
	return Cells{
		"id": v.ID, "vm_id": v.VMID, "name": v.Name, "status": State{[]string{string(v.Status)}, spec.Words(VolumeStatuses)}, "node": v.Node,
		"size_gb": v.SizeGB, "created_at": v.CreatedAt, "principal": v.Principal,
	}
}

// Volumes are the operations on volumes: disks that outlive VMs. ref is a volume's name or its UUID.
type Volumes interface {
	// Volumes returns the existing volumes by name, and for admins also those on the host that linus
	// has no record of.
	Volumes(ctx context.Context) ([]VolumeInfo, error)
	// Volume returns one volume.
	Volume(ctx context.Context, ref string) (VolumeInfo, error)
	// CreateVolume creates a volume, and returns when it exists.
	CreateVolume(ctx context.Context, spec VolumeSpec) (VolumeInfo, error)
	// RemoveVolume removes a volume with all its data. No VM may have it.
	RemoveVolume(ctx context.Context, ref string) (VolumeInfo, error)
	// AttachVolume mounts a volume in a running persistent VM, until it is detached or the VM is destroyed.
	AttachVolume(ctx context.Context, a VolumeAttach) (VolumeInfo, error)
	// DetachVolume unmounts a volume in a VM and detaches it. No job may be running there.
	DetachVolume(ctx context.Context, ref, of string) (VolumeInfo, error)
}

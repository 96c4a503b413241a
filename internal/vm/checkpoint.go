package vm

import "time"

// Checkpoint describes a VM from whose memory others are restored: it was booted from a template,
// and its memory is kept on the host, with a disk that others are cloned from.
type Checkpoint struct {
	Generation string    `json:"generation,omitempty"`               // of its template
	Host       string    `json:"host,omitempty"`                     // the QEMU and CPU of its node, without which it cannot be restored
	Bytes      int64     `json:"bytes,omitempty" api:"memory_bytes"` // of its memory, on the host's disk
	SavedAt    time.Time `json:"saved_at,omitzero"`                  // zero: it is being made
	Uses       int64     `json:"uses,omitempty"`                     // VMs restored from it
	UsedAt     time.Time `json:"used_at,omitzero"`
	Asked      bool      `json:"asked,omitempty"` // a client asked for it, and it counts as that client's
}

// Saved reports whether other VMs can be restored from the VM.
func (v VM) Saved() bool {
	return v.Checkpoint != nil && v.State == Created && !v.Unwanted && !v.Checkpoint.SavedAt.IsZero()
}

// Shape is what two VMs must have in common for one to be restored from the other's memory.
type Shape struct {
	Template string // name or VM ID
	Resources
}

// Shape returns the VM's shape. Without a Template, no other VM is like it.
func (m Made) Shape() Shape { return Shape{m.Template, m.Resources} }

package vm

import "time"

// Checkpoint is what is known of a VM from whose memory others go on: it was booted from a
// template, and its memory is kept on the host, with a disk that others are cloned from.
type Checkpoint struct {
	Generation string    `json:"generation,omitempty"`               // of its template
	Host       string    `json:"host,omitempty"`                     // what it goes on with alone: the node's QEMU and CPU
	Bytes      int64     `json:"bytes,omitempty" api:"memory_bytes"` // of its memory, on the host's disk
	SavedAt    time.Time `json:"saved_at,omitzero"`                  // zero: it is being made
	Uses       int64     `json:"uses,omitempty"`                     // VMs that went on from it
	UsedAt     time.Time `json:"used_at,omitzero"`
	Asked      bool      `json:"asked,omitempty"` // somebody has asked for it, and it counts as theirs
}

// Saved reports whether others can be restored from the VM.
func (v VM) Saved() bool {
	return v.Checkpoint != nil && v.State == Created && !v.Unwanted && !v.Checkpoint.SavedAt.IsZero()
}

// Shape is what two VMs have in common of which one can go on from the other's memory.
type Shape struct {
	Template string // name or VM ID
	Resources
}

// Shape returns that of the VM; without a Template no other is like it.
func (m Made) Shape() Shape { return Shape{m.Template, m.Resources} }

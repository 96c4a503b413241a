package vm

import (
	"slices"
	"time"
)

// Memory is a VM's memory on its host's disk. It is recorded before it can be there, and until it
// is known to be gone.
type Memory struct {
	Snapshot string    `json:"snapshot,omitempty"` // the snapshot that it is part of; empty: the VM is suspended
	At       time.Time `json:"at"`                 // when it was recorded
}

// Stored reports whether the VM's memory is recorded for a snapshot or, without a name, for a
// suspension: because somebody asked for it, or because the VM was idle.
func (v VM) Stored(snapshot string) bool {
	return snapshot == "" && !v.SuspendedAt.IsZero() || slices.ContainsFunc(v.Memories, func(m Memory) bool { return m.Snapshot == snapshot })
}

// TimesStored returns how many times the VM's memory is on the host's disk.
func (v VM) TimesStored() int {
	n := len(v.Memories)
	if v.Stored("") && !slices.ContainsFunc(v.Memories, func(m Memory) bool { return m.Snapshot == "" }) {
		n++
	}
	return n
}

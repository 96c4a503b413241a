package vm

import (
	"slices"
	"time"
)

// Memory is a VM's memory on its host's disk. It is noted before it can be there, until it is
// known not to be.
type Memory struct {
	Snapshot string    `json:"snapshot,omitempty"` // that it is part of; empty: the VM is suspended
	At       time.Time `json:"at"`                 // when it was noted
}

// Stored reports whether the VM's memory is noted as a snapshot's or, without a name, as that of
// a VM that is suspended: because somebody has asked for it, or because it was idle.
func (v VM) Stored(snapshot string) bool {
	return snapshot == "" && !v.SuspendedAt.IsZero() || slices.ContainsFunc(v.Memories, func(m Memory) bool { return m.Snapshot == snapshot })
}

// TimesStored returns how often the host's disk has the VM's memory.
func (v VM) TimesStored() int {
	n := len(v.Memories)
	if v.Stored("") && !slices.ContainsFunc(v.Memories, func(m Memory) bool { return m.Snapshot == "" }) {
		n++
	}
	return n
}

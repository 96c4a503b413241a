package vm

import (
	"slices"
	"time"
)

// Port is a port of a VM's own loopback with a name by which browsers reach it. It disappears with the VM.
type Port struct {
	Name string    `json:"name"`
	Port int       `json:"port"`
	ID   string    `json:"id"` // begins with the name; no other port ever has it
	At   time.Time `json:"at"`
}

// Exposes reports whether the VM has the port with an ID.
func (v VM) Exposes(id string) bool {
	return slices.ContainsFunc(v.Ports, func(p Port) bool { return p.ID == id })
}

package lab

import (
	"linus/internal/lab/pve"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// The two kinds of VM a lab runs.
const (
	DriverProcess = state.DriverProcess
	DriverQemu    = state.DriverQemu
)

// Streams are a command's standard files.
type Streams = sys.Streams

// VMStatus is a VM of a Report.
type VMStatus = pve.VMStatus

// NodeName completes a node's name: 2 stands for pve2.
func NodeName(name string) string { return state.NodeName(name) }

// Fault is a fault on demand, by its name in faults.json; package state describes each.
type Fault = state.Fault

// Faults returns all faults, in a fixed order.
func Faults() []Fault { return state.Faults() }

// Tools returns the names of the work-alikes in the lab's bin directory.
func Tools() []string { return pve.Tools() }

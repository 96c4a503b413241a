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

// Fault is a fault on demand, by its name in faults.json.
type Fault = state.Fault

// Faults that users of the lab ask for; state describes them and has more.
const (
	FaultAgentDelay         = state.FaultAgentDelay
	FaultAgentSilent        = state.FaultAgentSilent
	FaultCloneFails         = state.FaultCloneFails
	FaultDestroyLate        = state.FaultDestroyLate
	FaultDestroyLeaves      = state.FaultDestroyLeaves
	FaultExtraInterfaces    = state.FaultExtraInterfaces
	FaultKilledWorker       = state.FaultKilledWorker
	FaultLockTimeout        = state.FaultLockTimeout
	FaultMissingBridge      = state.FaultMissingBridge
	FaultMissingTemplate    = state.FaultMissingTemplate
	FaultNeighbourAddress   = state.FaultNeighbourAddress
	FaultNeighbourMAC       = state.FaultNeighbourMAC
	FaultNoQuorum           = state.FaultNoQuorum
	FaultPoolFull           = state.FaultPoolFull
	FaultResizeFails        = state.FaultResizeFails
	FaultRouted             = state.FaultRouted
	FaultStartFails         = state.FaultStartFails
	FaultStorageFull        = state.FaultStorageFull
	FaultStorageLockTimeout = state.FaultStorageLockTimeout
	FaultTaken              = state.FaultTaken
	FaultTakenCT            = state.FaultTakenCT
)

// Faults are all faults, in the order of their list.
func Faults() []Fault { return state.Faults() }

// Tools are the names the work-alikes go by in the lab's bin directory.
func Tools() []string { return pve.Tools() }

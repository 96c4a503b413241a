package vm

import "slices"

// Fork describes how a VM is made as a copy of another, whose marker ID is the copy's From.
type Fork struct {
	Partial bool   `json:"partial,omitempty"`  // the copy stays even if another copy made with it fails
	Begun   bool   `json:"begun,omitempty"`    // the original can be copied now, and the fields below are known
	Live    bool   `json:"live,omitempty"`     // the copy continues from the original's memory; else it boots from its disk
	Why     string `json:"why,omitempty"`      // the reason for Live or its opposite
	Proxy   string `json:"proxy,omitempty"`    // the marker of the VM whose proxy port is known to what runs in the copy
	PauseMS int64  `json:"pause_ms,omitempty"` // how long the original was paused, at most; 0: not known, or not at all
}

// ProxyOf returns the marker by which the port of a VM's proxy is found: what runs in a copy has
// the original's port in its environment.
func (v VM) ProxyOf() string {
	if v.Own != nil && v.Own.Fork != nil && v.Own.Fork.Proxy != "" {
		return v.Own.Fork.Proxy
	}
	return v.Job
}

// Forking is the state of a VM while copies of it are made.
type Forking struct {
	IDs   []string `json:"ids,omitempty"`   // in the markers of the copies; empty: no copies are being made
	Begun bool     `json:"begun,omitempty"` // its host has what the copies are made from: others may work in it
	Left  string   `json:"left,omitempty"`  // all is decided; why what the copies were made from could not be removed yet
}

// Active reports whether copies are being made.
func (f Forking) Active() bool { return len(f.IDs) > 0 }

// Has reports whether a VM is one of the copies.
func (f Forking) Has(id string) bool { return slices.Contains(f.IDs, id) }

// Copied reports whether the VM is to be a copy that cannot be made yet.
func (o Own) Copied() bool { return o.Fork != nil && !o.Fork.Begun }

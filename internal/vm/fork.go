package vm

import "slices"

// Fork is what is known of a VM that is made as a copy of another, whose ID in its marker is
// the copy's From.
type Fork struct {
	Partial bool   `json:"partial,omitempty"`  // it stays though another of those made with it fails
	Begun   bool   `json:"begun,omitempty"`    // the VM can be copied now: what follows is known
	Live    bool   `json:"live,omitempty"`     // it goes on from that one's memory; else it boots from its disk
	Why     string `json:"why,omitempty"`      // the one or the other
	Proxy   string `json:"proxy,omitempty"`    // the marker of the VM whose proxy's port those know who run in it
	PauseMS int64  `json:"pause_ms,omitempty"` // how long that one stood still, at most; 0: not known, or not at all
}

// ProxyOf returns the marker by which the port of a VM's proxy is found: what runs in a copy has
// that of the VM it is of in its environment.
func (v VM) ProxyOf() string {
	if v.Own != nil && v.Own.Fork != nil && v.Own.Fork.Proxy != "" {
		return v.Own.Fork.Proxy
	}
	return v.Job
}

// Forking is what is known of a VM while copies of it are made.
type Forking struct {
	IDs   []string `json:"ids,omitempty"`   // in the markers of the copies; none: none are made
	Begun bool     `json:"begun,omitempty"` // its host has what they are made from: others may work in it
	Left  string   `json:"left,omitempty"`  // all is decided, and why what they were made from could not be removed yet
}

// Active reports whether copies are made.
func (f Forking) Active() bool { return len(f.IDs) > 0 }

// Has reports whether a VM is one of the copies.
func (f Forking) Has(id string) bool { return slices.Contains(f.IDs, id) }

// Copied reports whether the VM is to be a copy that cannot be made yet.
func (o Own) Copied() bool { return o.Fork != nil && !o.Fork.Begun }

package job

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// MostForks bounds the copies of a VM made in one call.
const MostForks = 32

// ForkSpec says which copies of a VM to make.
type ForkSpec struct {
	VM      string `json:"vm"`
	Count   int    `json:"count,omitempty"`                 // 1 to 32; default 1
	Name    string `json:"name,omitempty"`                  // of the copies: %d stands for their number, from 1; default: NAME-%d for a VM NAME
	TTL     int    `json:"ttl,omitempty" api:"ttl_seconds"` // seconds until they are destroyed; 0: together with the original VM
	Partial bool   `json:"partial,omitempty"`               // keep the copies that were made even if others fail
}

// Names returns the names of the copies of a VM.
func (s ForkSpec) Names(of string) ([]string, error) {
	count, pattern := max(s.Count, 1), cmp.Or(s.Name, of+"-%d")
	switch n := strings.Count(pattern, "%d"); {
	case s.Count < 0 || s.Count > MostForks:
		return nil, field("count", fmt.Sprintf("give a number from 1 to %d", MostForks), "is %d", s.Count)
	case strings.Count(pattern, "%") != n || n > 1:
		return nil, field("name", "use %d once, and no other %", "%q is not a pattern for names", pattern)
	case n == 0 && count > 1:
		return nil, field("name", "put %d into it, for the number of each copy", "%q would be the name of all %d", pattern, count)
	}
	names := make([]string, count)
	for i := range names {
		names[i] = strings.Replace(pattern, "%d", strconv.Itoa(i+1), 1)
	}
	return names, nil
}

// Forked is the result of a fork: the copies of a VM.
type Forked struct {
	Live    bool        `json:"live"`               // they resume from its memory; else they boot from copies of its disk
	Why     string      `json:"why"`                // the reason for Live
	PauseMS int64       `json:"pause_ms,omitempty"` // how long the VM was paused, at most; 0: not known, or not at all
	VMs     []VMInfo    `json:"vms"`
	Failed  []ForkError `json:"failed,omitempty"` // with partial: copies that could not be made
}

// ForkError is a copy that could not be made.
type ForkError struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

// ForkPoint is what a host keeps to make copies of a VM from.
type ForkPoint struct {
	Live    bool   // a snapshot with its memory; else its disk only
	Why     string // the reason for Live
	PauseMS int64  // how long the VM was paused, at most; 0: not known, or not at all
}

// ForkOf is the VM that a new VM is a copy of, as a provider needs it.
type ForkOf struct {
	VM   int    // its ID; 0: the new VM is not a copy
	Job  string // its linus-job
	Live bool
}

// Text says how copies are made.
func (p ForkPoint) Text() string {
	how := "from its disk, which boots"
	if p.Live {
		how = "from its memory"
	}
	text := how + ": " + p.Why
	if p.PauseMS > 0 {
		text += fmt.Sprintf("; it was paused for at most %d ms", p.PauseMS)
	}
	return text
}

// Point says how the copies were made.
func (f Forked) Point() ForkPoint { return ForkPoint{Live: f.Live, Why: f.Why, PauseMS: f.PauseMS} }

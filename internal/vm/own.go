package vm

import "time"

// Own describes a VM that no job made: a pool's, or one that a client asked for.
type Own struct {
	Client     string `json:"client,omitempty"`     // the client that asked for it; empty: its pool has it made
	Token      string `json:"token,omitempty"`      // the ID of the token it was asked for with; empty: none
	Submission string `json:"submission,omitempty"` // a digest of what was asked for with an idempotency key
	TTL        int    `json:"ttl,omitempty"`        // seconds, from when it is ready until it is destroyed; 0: it stays

	Waits    string    `json:"waits,omitempty"`    // why it has no node yet; empty: it has one, or does not wait
	Progress string    `json:"progress,omitempty"` // the step in progress
	ReadyAt  time.Time `json:"ready_at,omitzero"`  // when it was made, and began to take jobs
	Failed   string    `json:"failed,omitempty"`   // why it could not be made
	FailedAt time.Time `json:"failed_at,omitzero"` // when that was, or when somebody ended it
	Unable   bool      `json:"unable,omitempty"`   // it failed because the host is not configured for it

	Pool string `json:"pool,omitempty"` // the pool it came from; empty: none

	Fork *Fork `json:"fork,omitempty"` // for a copy of another VM; nil: it is not a copy

	Sandbox *Sandbox `json:"sandbox,omitempty"` // what a program that uses the VM as a sandbox says of it; nil: it is not a sandbox

	// Who asked for its destruction: the client, its principal's name and its token's ID.
	EndedBy    string `json:"ended_by,omitempty"`
	EndedFor   string `json:"ended_for,omitempty"`
	EndedToken string `json:"ended_token,omitempty"`
}

// BeingMade reports whether a VM that no job makes is to be made and is not ready yet.
func (v VM) BeingMade() bool {
	return v.Own != nil && v.Own.ReadyAt.IsZero() && !v.Unwanted && !v.State.Settled()
}

// Sandbox returns what a program that uses the VM as a sandbox says of it; nil: it is not a sandbox.
func (v VM) Sandbox() *Sandbox {
	if v.Own == nil {
		return nil
	}
	return v.Own.Sandbox
}

// AskedFor reports whether a client asked for the VM itself: no job made it, and it belongs to no pool.
func (v VM) AskedFor() bool { return v.Own != nil && v.Member == nil }

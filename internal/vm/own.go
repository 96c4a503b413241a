package vm

import "time"

// Own is what is known of a VM that no job has made: a pool's, or one that somebody has
// asked for.
type Own struct {
	Client     string `json:"client,omitempty"`     // that asked for it; empty: its pool has it made
	Token      string `json:"token,omitempty"`      // the ID of the token it was asked for with; empty: none
	Submission string `json:"submission,omitempty"` // a digest of what was asked for with an idempotency key
	TTL        int    `json:"ttl,omitempty"`        // seconds, from when it is there until it is destroyed; 0: it stays

	Waits    string    `json:"waits,omitempty"`    // why it has no node yet; empty: it has one, or does not wait
	Progress string    `json:"progress,omitempty"` // the step that is under way
	ReadyAt  time.Time `json:"ready_at,omitzero"`  // it was made, and took jobs from then on
	Failed   string    `json:"failed,omitempty"`   // why it could not be made
	FailedAt time.Time `json:"failed_at,omitzero"` // or somebody has ended it
	Unable   bool      `json:"unable,omitempty"`   // it has failed as the host is not made for it

	Pool string `json:"pool,omitempty"` // that it was of before; empty: of none

	Fork *Fork `json:"fork,omitempty"` // of a copy of another VM; nil: it is none

	Sandbox *Sandbox `json:"sandbox,omitempty"` // what a program says of the VM that it uses as one; nil: none does

	// Who has asked for its destruction: the client, its principal's name and its token's ID.
	EndedBy    string `json:"ended_by,omitempty"`
	EndedFor   string `json:"ended_for,omitempty"`
	EndedToken string `json:"ended_token,omitempty"`
}

// BeingMade reports whether a VM that no job makes is to be made, and is not ready yet.
func (v VM) BeingMade() bool {
	return v.Own != nil && v.Own.ReadyAt.IsZero() && !v.Unwanted && !v.State.Settled()
}

// Sandbox returns what a program says of the VM that it uses as one; nil: none does.
func (v VM) Sandbox() *Sandbox {
	if v.Own == nil {
		return nil
	}
	return v.Own.Sandbox
}

// AskedFor reports whether somebody has asked for the VM as such: no job makes it, and it is
// no pool's.
func (v VM) AskedFor() bool { return v.Own != nil && v.Member == nil }

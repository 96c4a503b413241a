package vm

import "time"

// MemberState is the state of a pool's VM in the pool.
type MemberState string

// The states. A member is being made (booted, or suspended), then idle (warm or hibernated), then
// claimed by one job. A doomed member is unwanted and is destroyed.
const (
	MemberMaking     MemberState = "making"
	MemberWarm       MemberState = "warm"
	MemberHibernated MemberState = "hibernated"
	MemberClaimed    MemberState = "claimed"
	MemberDoomed     MemberState = "doomed"
)

// MemberStates are all states, in the order a member passes them.
var MemberStates = []MemberState{MemberMaking, MemberWarm, MemberHibernated, MemberClaimed, MemberDoomed}

// Idle reports whether a member can be claimed.
func (s MemberState) Idle() bool { return s == MemberWarm || s == MemberHibernated }

// Member is what a pool knows of a VM that was made for it.
type Member struct {
	Pool       string      `json:"pool"`
	Generation string      `json:"generation,omitempty"` // of the template and the host's settings it is made from
	State      MemberState `json:"state"`
	Since      time.Time   `json:"since"`                // in this state
	Claimer    string      `json:"claimer,omitempty"`    // the job that has it, or had it
	Principal  string      `json:"principal,omitempty"`  // the owner of that job
	LeaseUntil time.Time   `json:"lease_until,omitzero"` // no job may rely on it for longer; zero: the host never ends it
	Why        string      `json:"why,omitempty"`        // why it is doomed
}

// Become moves the member to a state, and records when.
func (m *Member) Become(s MemberState, at time.Time) {
	if m.State != s {
		m.State, m.Since = s, at
	}
}

// OwnedBy returns the name of the VM's owner, empty for the operator. A pool's VM belongs to the
// owner of the job that claimed it.
func (v VM) OwnedBy() string {
	if v.Member != nil && v.Member.Claimer != "" {
		return v.Member.Principal
	}
	return v.Principal
}

// OfPool returns the pool that the VM was made for; empty: none.
func (v VM) OfPool() string {
	if v.Member == nil {
		return ""
	}
	return v.Member.Pool
}

// GivenUp returns when a pool's VM entered its state, and why it was given up; empty: it was not.
func (v VM) GivenUp() (at time.Time, why string) { return v.Member.Since, v.Member.Why }

// MemberInfo is a member as shown to clients.
type MemberInfo struct {
	VM         VM          `json:"vm"`
	State      MemberState `json:"state"`
	Since      time.Time   `json:"since"`
	CreatedAt  time.Time   `json:"created_at"`
	Maker      string      `json:"maker" api:"id"` // the ID in its marker
	Claimer    string      `json:"claimer,omitempty"`
	Generation string      `json:"generation,omitempty"`
	Why        string      `json:"why,omitempty"`
}

// Making is a VM that an engine works on.
type Making struct {
	ID       string // in the VM's marker
	Pool     string // empty: it belongs to no pool
	Waits    bool   // for a node
	MemoryMB int
	Begun    bool // it may exist, and take its memory soon
}

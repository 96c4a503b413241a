// Package vm is the domain of VMs: what a VM is, and which states follow which. It knows nothing of
// jobs, SSH, Proxmox or storage, and imports only the standard library.
package vm

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// State is the state of a VM.
type State string

// A pool's VM is reserved when the pool is to have one more. A VM is intended (a row with its node
// exists before the VM can), then created, then destroyed: it was seen gone. If the host refuses to
// create a VM before it changes anything, nothing of it exists, and it is reserved again. A VM that
// was to be destroyed but is not proven to be linus's is left alone, until it is seen gone or an
// operator forgets it. A job that shares another's VM releases it after cleaning up.
const (
	Reserved  State = "reserved"
	Intended  State = "intended"
	Created   State = "created"
	Destroyed State = "destroyed"
	Released  State = "released"
	LeftAlone State = "left_alone"
	Forgotten State = "forgotten"
)

// States lists every state. A job without a VM has the empty one.
var States = []State{Reserved, Intended, Created, Destroyed, Released, LeftAlone, Forgotten}

// transitions is the life of a job's VM as data: which states may follow a state. A job enters another
// job's VM when it is already created. A pool's VM that does not answer is given back by a job that
// then has none. A pool's VM that is given to a requester is intended again until it has answered.
// After a VM was destroyed, another VM that a create has left can be found, which is left alone.
var transitions = map[State][]State{
	"":        {Reserved, Intended, Created},
	Reserved:  {Intended, Destroyed},
	Intended:  {Reserved, Created, Destroyed, LeftAlone},
	Created:   {"", Intended, Destroyed, Released, LeftAlone},
	Destroyed: {LeftAlone},
	LeftAlone: {Destroyed, Forgotten},
}

// CanBecome reports whether a job's VM may go from s to next.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }

// Stays reports whether the VM exists and outlives the job that made it.
func (v VM) Stays() bool {
	return v.State == Created && !v.Unwanted && (v.Lifecycle == Persistent || v.Lifecycle == Pooled)
}

// Naps reports whether the VM is suspended when it is idle.
func (v VM) Naps() bool { return v.IdleSuspend > 0 && v.Lifecycle == Persistent }

// NotesUse reports whether uses of the VM are recorded, to decide when it is suspended or which VM
// goes first.
func (v VM) NotesUse() bool { return v.Naps() || v.KeptOf != "" }

// IdleTime is how long a VM that naps is not used before it is suspended.
func (v VM) IdleTime() time.Duration { return time.Duration(v.IdleSuspend) * time.Second }

// Counts reports whether the VM runs, as far as is known, and counts itself: it was asked for, or
// its job has ended, so that no job counts it.
func (v VM) Counts() bool {
	there := v.State == Intended || v.State == Created || v.State == LeftAlone
	alone := v.AskedFor() && v.Checkpoint == nil || v.Own == nil && v.Kept
	return there && alone && v.Off == "" && v.SuspendedAt.IsZero()
}

// Expires reports whether the VM is destroyed when its time is over.
func (v VM) Expires() bool { return !v.ExpiresAt.IsZero() && v.AtEnd != EndSuspend }

// Doomed reports whether the VM is unwanted and the fleet's to destroy.
func (v VM) Doomed() bool {
	return (v.State == Intended || v.State == Created) && v.Kept && v.Unwanted
}

// AllOf reports whether a job has the whole VM, with all of its directories: the job made it, or
// claimed it from a pool.
func (v VM) AllOf(job string) bool {
	return v.Job == job || v.Member != nil && v.Member.Claimer == job
}

// Planned reports whether no VM can exist yet.
func (s State) Planned() bool { return s == "" || s == Reserved }

// Settled reports whether the VM's job is finished with it.
func (s State) Settled() bool {
	return s == Destroyed || s == Released || s == LeftAlone || s == Forgotten
}

// VM is a virtual machine of this installation. Job and Owner are the markers that prove it.
type VM struct {
	ID   int    `json:"id,omitempty" api:"vm_id"` // Proxmox VM ID; 0 until reserved
	Name string `json:"name"`                     // DNS label, unique to the job
	// HostName is its name on the host, if that differs: a VM from a pool keeps the name that it
	// was made with.
	HostName string `json:"host_name,omitempty" api:"name_on_host"`

	Node    string `json:"node,omitempty"`
	IP      string `json:"ip,omitempty"`
	User    string `json:"user,omitempty"`     // SSH user
	HostKey string `json:"host_key,omitempty"` // guest's SSH host key, "ssh-ed25519 AAAA..."; pinned
	Job     string `json:"job" api:"id"`       // linus-job=<uuid> in the VM's description
	Owner   string `json:"owner"`              // linus-owner=<installation id>
	State   State  `json:"state"`

	ExpiresAt time.Time `json:"expires_at,omitzero"`                      // when the time of a persistent VM is over, once no job runs in it
	Unwanted  bool      `json:"unwanted,omitempty" api:"to_be_destroyed"` // a persistent VM, or a pool's, is to be destroyed

	// LeaseUntil is when its host ends it if no engine does, as last announced; zero: never. A
	// pool's VM has that of its Member.
	LeaseUntil time.Time `json:"lease_until,omitzero" api:"-"`

	KeptFor string `json:"kept_for,omitempty"` // the ended job for which it is kept instead of being destroyed

	// For a VM that is kept for a session or a GitLab job: the queue, and how many VMs may be kept
	// for it, this one included.
	KeptOf   string `json:"kept_of,omitempty" api:"-"`
	KeptMost int    `json:"kept_most,omitempty" api:"-"`

	// For a VM that is suspended when idle: when it was used last, to within some seconds, and when
	// it was suspended for that, until it is resumed.
	UsedAt      time.Time `json:"used_at,omitzero"`
	SuspendedAt time.Time `json:"suspended_at,omitzero"`

	// Off is how the engines' last work on it left it, or how it was found on the host since:
	// stopped, suspended or gone; empty: it runs, unless that was changed on the host.
	Off Status `json:"off,omitempty" api:"-"`

	// Meanwhile says that AtEnd applies only while it is paused or resumed: else it is destroyed.
	Meanwhile bool `json:"meanwhile,omitempty" api:"-"`

	Reason string `json:"reason,omitempty"` // why it is left alone
	Remedy string `json:"remedy,omitempty"` // what an operator can do about it

	Source Source `json:"source,omitempty"` // where the job's VM came from; empty: it is another job's

	Status Status `json:"status,omitempty"` // what the host reported when asked; not stored

	// Kept says that it outlives the job that made it, which has ended: the fleet is to destroy it.
	Kept bool `json:"kept,omitempty" api:"outlives_job"`

	// From is the ID in the marker of the checkpoint it was restored from, or of the VM it is a
	// copy of; empty: it was booted.
	From string `json:"from,omitempty" api:"restored_from"`

	Forking Forking `json:"forking,omitzero"` // while copies of it are made

	Made       `json:"-"`  // stored separately; zero if only the host was asked
	Member     *Member     `json:"-"` // what its pool knows of it, stored separately; nil: it is no pool's
	Own        *Own        `json:"-"` // stored separately; nil: a job made it
	Checkpoint *Checkpoint `json:"-"` // stored separately; nil: it is no checkpoint
	Ports      []Port      `json:"-"` // exposed ports, stored separately; replaced, never changed
	Memories   []Memory    `json:"-"` // on its host's disk, stored separately; replaced, never changed

	Provenance *Provenance `json:"-"` // of a saved template, as reported by the host; not stored
}

// Provenance is where a template that was made from a VM came from.
type Provenance struct {
	VM       string    `json:"vm"`                 // the VM's name
	Template string    `json:"template,omitempty"` // the template that the VM was made from; empty: an image
	By       string    `json:"by,omitempty"`       // whom it was saved for: a principal or a client
	At       time.Time `json:"at,omitzero"`        // when it was saved
}

// OnHost returns the VM's name on its host.
func (v VM) OnHost() string { return cmp.Or(v.HostName, v.Name) }

// Given reports whether the VM came from a pool, was given to a requester, and has not answered yet.
func (v VM) Given() bool {
	return v.AskedFor() && v.State == Intended && (v.Source == FromPool || v.Source == FromHibernated)
}

// Clone returns a VM that shares nothing changeable with v.
func (v VM) Clone() VM {
	if v.Member != nil {
		m := *v.Member
		v.Member = &m
	}
	if v.Own != nil {
		o := *v.Own
		if o.Fork != nil {
			f := *o.Fork
			o.Fork = &f
		}
		v.Own = &o
	}
	if v.Checkpoint != nil {
		c := *v.Checkpoint
		v.Checkpoint = &c
	}
	return v
}

// DefaultName returns the name of a VM that was given none: a DNS label with the ID's random part, its end.
func DefaultName(id string) string { return "linus-job-" + id[len(id)-12:] }

// Made is what a VM was made as, and for whom. It does not change, except for the lifecycle of a VM
// that stays after its job has ended.
type Made struct {
	Lifecycle Lifecycle `json:"lifecycle,omitempty"`
	Template  string    `json:"template,omitempty"` // name or VM ID of the template it was cloned from; empty: OS
	OS        string    `json:"os,omitempty"`
	Resources Resources `json:"resources,omitzero"`
	Network   Network   `json:"network,omitzero"`
	Principal string    `json:"principal,omitempty"` // the name of its owner; empty: the operator
	CreatedAt time.Time `json:"created_at,omitzero"` // when it was asked for

	IdleSuspend int `json:"idle_suspend,omitempty"` // seconds without use after which it is suspended while it stays; 0: never

	AtEnd End `json:"at_end,omitempty"` // what happens to it when its time is over; empty: it is destroyed

	Labels map[string]string `json:"labels,omitempty"` // of the job or pool that it was made for
}

// End is what happens to a VM that stays when its time is over.
type End string

// The ends. A suspended VM stays suspended, with its memory on disk, until somebody resumes or
// destroys it: it no longer has an end time.
const (
	EndDestroy End = "destroy"
	EndSuspend End = "suspend"
)

// Ends are all ends.
var Ends = []End{EndDestroy, EndSuspend}

// Status is the status of a VM as the host reports it.
type Status string

// The statuses of a VM.
const (
	Provisioning Status = "provisioning" // it is being created
	Running      Status = "running"
	Stopped      Status = "stopped"
	Suspended    Status = "suspended" // off, with its memory on disk
	Destroying   Status = "destroying"
	Gone         Status = "gone"    // the host has no VM of its ID, or another VM has it now
	Unknown      Status = "unknown" // the host could not be asked
	// The host has a VM of its ID that is proven neither this one nor another, or that is on
	// another node: linus does not touch it.
	Unproven Status = "left_alone"
)

// Statuses are all statuses.
var Statuses = []Status{Provisioning, Running, Stopped, Suspended, Destroying, Gone, Unknown, Unproven}

// Down reports whether nothing runs in a VM of this status.
func (s Status) Down() bool { return s == Stopped || s == Suspended || s == Gone }

// Source says where a job's VM came from.
type Source string

// The sources.
const (
	Cold           Source = "cold"       // it was created for the job
	FromPool       Source = "pool"       // a pool's warm member
	FromHibernated Source = "hibernated" // a pool's hibernated member
	Restored       Source = "restored"   // restored from a checkpoint
	Forked         Source = "forked"     // it is a copy of another VM
)

// Systems are the operating systems from which a VM can be created without a template. A name
// without a version is the newest of its line. Their images are in scripts/lib/image.sh.
var Systems = []string{
	"ubuntu", "ubuntu-24.04", "debian", "debian-12", "debian-13",
	"almalinux", "almalinux-9", "rocky", "rocky-9",
}

// Resources are the size of a VM.
type Resources struct {
	CPU    int    `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	Disk   string `json:"disk,omitempty"`
}

// Lifecycle says what happens to the VM when the job ends.
type Lifecycle string

// The lifecycles.
const (
	Ephemeral  Lifecycle = "ephemeral"
	Persistent Lifecycle = "persistent"

	// Only linus uses these, no client's manifest: a pool's VM waits for a job, and a checkpoint is
	// not to run again.
	Pooled       Lifecycle = "pooled"
	Checkpointed Lifecycle = "checkpoint"
)

// SameAddress reports whether two texts are the same IP address.
func SameAddress(a, b string) bool {
	if a == b {
		return a != ""
	}
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

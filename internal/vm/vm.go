// Package vm is the domain of VMs: what a VM of ours is, and which states follow which.
// It knows no job, nothing of SSH, Proxmox or storage, and imports the standard library
// only.
package vm

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// State is the state of a VM of ours.
type State string

// A pool's VM is reserved when the pool is to have one more. A VM is intended (a row exists
// before it can, with its node), then created, then destroyed: it was seen gone. If the host refuses
// to create it before it changes anything, nothing of it exists: it is reserved again. One that was to be destroyed and is not proven ours is left
// alone, until it is seen gone or an operator forgets it. A job that shares
// another's VM releases it after cleaning up.
const (
	Reserved  State = "reserved"
	Intended  State = "intended"
	Created   State = "created"
	Destroyed State = "destroyed"
	Released  State = "released"
	LeftAlone State = "left_alone"
	Forgotten State = "forgotten"
)

// States lists every state. A job without a VM has none of them, the empty one.
var States = []State{Reserved, Intended, Created, Destroyed, Released, LeftAlone, Forgotten}

// transitions is the whole life of a job's VM as data: from a state, the ones that may
// follow. One that is another job's is entered when it is created already, and a pool's is
// given back, by a job that then has none, when it does not answer. One that is given to whoever
// asks for a VM is intended again until it has answered. After a VM was destroyed
// another that a create has left can be found, which is left alone.
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

// Stays reports whether the VM exists and is to go on without the job that made it.
func (v VM) Stays() bool {
	return v.State == Created && !v.Unwanted && (v.Lifecycle == Persistent || v.Lifecycle == Pooled)
}

// Naps reports whether the VM is suspended when it is idle.
func (v VM) Naps() bool { return v.IdleSuspend > 0 && v.Lifecycle == Persistent }

// NotesUse reports whether it is noted when the VM is used: it is suspended, or goes before others, by that.
func (v VM) NotesUse() bool { return v.Naps() || v.KeptOf != "" }

// IdleTime is how long a VM that naps is not used before it is suspended.
func (v VM) IdleTime() time.Duration { return time.Duration(v.IdleSuspend) * time.Second }

// Counts reports whether the VM runs, as far as is known, for itself: it was asked for, or its job
// has ended, so that no job counts it.
func (v VM) Counts() bool {
	there := v.State == Intended || v.State == Created || v.State == LeftAlone
	alone := v.AskedFor() && v.Checkpoint == nil || v.Own == nil && v.Kept
	return there && alone && v.Off == "" && v.SuspendedAt.IsZero()
}

// Expires reports whether it is destroyed when its time is over.
func (v VM) Expires() bool { return !v.ExpiresAt.IsZero() && v.AtEnd != EndSuspend }

// Doomed reports whether the VM is the fleet's to destroy: nobody wants it any more.
func (v VM) Doomed() bool {
	return (v.State == Intended || v.State == Created) && v.Kept && v.Unwanted
}

// AllOf reports whether a job has the VM for itself, with all of its directories: it has made
// it, or claimed it of a pool.
func (v VM) AllOf(job string) bool {
	return v.Job == job || v.Member != nil && v.Member.Claimer == job
}

// Planned reports whether no VM can exist yet.
func (s State) Planned() bool { return s == "" || s == Reserved }

// Settled reports whether the VM's job is finished with it.
func (s State) Settled() bool {
	return s == Destroyed || s == Released || s == LeftAlone || s == Forgotten
}

// VM is a virtual machine of ours. Job and Owner are the markers that prove it.
type VM struct {
	ID   int    `json:"id,omitempty" api:"vm_id"` // Proxmox VM ID; 0 until reserved
	Name string `json:"name"`                     // DNS label, unique to the job
	// HostName is its name on the host, where that is another: a VM that was a pool's keeps the one that
	// it was made with.
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

	// LeaseUntil is when its host ends it if no engine does, as far as it was told; zero: never. A
	// pool's has that of its Member.
	LeaseUntil time.Time `json:"lease_until,omitzero" api:"-"`

	KeptFor string `json:"kept_for,omitempty"` // for whom it stays though it was to be destroyed: a job that has ended

	// Of one that is kept for a session, or for a job of GitLab: the queue, and of how many that are kept for
	// it this one may be the last.
	KeptOf   string `json:"kept_of,omitempty" api:"-"`
	KeptMost int    `json:"kept_most,omitempty" api:"-"`

	// Of one that is suspended when it is idle: when it was used last, to within some seconds,
	// and when it was suspended for that, until it is resumed.
	UsedAt      time.Time `json:"used_at,omitzero"`
	SuspendedAt time.Time `json:"suspended_at,omitzero"`

	// Off is how the last work of ours on it has left it, or how it was found on the host since, stopped,
	// suspended or gone; empty: it runs, unless that was changed on the host.
	Off Status `json:"off,omitempty" api:"-"`

	// Meanwhile says that AtEnd is so while it is paused or resumed alone: else it is destroyed.
	Meanwhile bool `json:"meanwhile,omitempty" api:"-"`

	Reason string `json:"reason,omitempty"` // why it is left alone
	Remedy string `json:"remedy,omitempty"` // what an operator can do about it

	Source Source `json:"source,omitempty"` // where the job's VM came from; empty: it is another job's

	Status Status `json:"status,omitempty"` // what the host said when it was asked; not stored

	// Kept says that it goes on without the job that made it, which has ended: it is the
	// fleet's to destroy.
	Kept bool `json:"kept,omitempty" api:"outlives_job"`

	// From is the ID in the marker of the checkpoint from which it went on, or of the VM that it
	// is a copy of; empty: it was booted.
	From string `json:"from,omitempty" api:"restored_from"`

	Forking Forking `json:"forking,omitzero"` // while copies of it are made

	Made       `json:"-"`  // stored beside the rest; zero where the host alone was asked
	Member     *Member     `json:"-"` // what its pool knows of it, stored beside the rest; nil: it is no pool's
	Own        *Own        `json:"-"` // stored beside the rest; nil: a job has made it
	Checkpoint *Checkpoint `json:"-"` // stored beside the rest; nil: it is none
	Ports      []Port      `json:"-"` // that have a name, stored beside the rest; replaced, never changed
	Memories   []Memory    `json:"-"` // on its host's disk, stored beside the rest; replaced, never changed

	Provenance *Provenance `json:"-"` // of a template that was saved, as the host alone tells it; not stored
}

// Provenance is where a template came from that was made of a VM.
type Provenance struct {
	VM       string    `json:"vm"`                 // its name
	Template string    `json:"template,omitempty"` // that the VM was made from; empty: from an image
	By       string    `json:"by,omitempty"`       // whom it was saved for: a principal or a client
	At       time.Time `json:"at,omitzero"`        // when
}

// OnHost returns the VM's name on its host.
func (v VM) OnHost() string { return cmp.Or(v.HostName, v.Name) }

// Given reports whether the VM was a pool's and is somebody's who has asked for one, but has not
// answered yet.
func (v VM) Given() bool {
	return v.AskedFor() && v.State == Intended && (v.Source == FromPool || v.Source == FromHibernated)
}

// Clone returns a VM that shares nothing with v that changes.
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

// DefaultName returns the name of a VM that was given none: a DNS label. The end of an ID is
// its random part.
func DefaultName(id string) string { return "linus-job-" + id[len(id)-12:] }

// Made is what a VM was made as, and for whom. It does not change, but for the lifecycle of one
// that stays though its job has ended.
type Made struct {
	Lifecycle Lifecycle `json:"lifecycle,omitempty"`
	Template  string    `json:"template,omitempty"` // name or VM ID of the template it was cloned from; empty: OS
	OS        string    `json:"os,omitempty"`
	Resources Resources `json:"resources,omitzero"`
	Network   Network   `json:"network,omitzero"`
	Principal string    `json:"principal,omitempty"` // the name of its owner; empty: the operator
	CreatedAt time.Time `json:"created_at,omitzero"` // when it was asked for

	IdleSuspend int `json:"idle_suspend,omitempty"` // seconds without a use, after which it is suspended while it stays; 0: never

	AtEnd End `json:"at_end,omitempty"` // what becomes of it when its time is over; empty: it is destroyed

	Labels map[string]string `json:"labels,omitempty"` // of the job, or of the pool, that it was made for
}

// End is what becomes of a VM that stays when its time is over.
type End string

// The ends. One that is suspended stays so, with its memory on disk, until somebody resumes or
// destroys it: it has no time any more.
const (
	EndDestroy End = "destroy"
	EndSuspend End = "suspend"
)

// Ends are all of them.
var Ends = []End{EndDestroy, EndSuspend}

// Status is the status of a VM, as the host reports it.
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
	// The host has a VM of its ID that is proven neither ours nor another's, or
	// that is on another node: linus does not touch it.
	Unproven Status = "left_alone"
)

// Statuses are all of them.
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
	Restored       Source = "restored"   // it went on from a checkpoint
	Forked         Source = "forked"     // it is a copy of another VM
)

// Systems are the operating systems a VM can be created from without a
// template. A name without a version is the newest of its line. Their images
// are in scripts/lib/image.sh.
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

	// No manifest of a client may say these: a pool's VM waits for a job, and a checkpoint is not
	// to run again.
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

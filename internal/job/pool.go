package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// Pool is a set of VMs kept ready for jobs that ask for exactly such a VM. A job claims a member
// instead of creating a VM; a member serves one job and is then destroyed.
type Pool struct {
	Name string `json:"name" api:",required"`

	// The properties of its VMs, as in a manifest. A job must ask for the same.
	VMTemplate string       `json:"template,omitempty" api:"template"`
	OS         string       `json:"os,omitempty"`
	Resources  vm.Resources `json:"resources"`
	Network    vm.Network   `json:"network,omitzero"`

	Labels map[string]string `json:"labels,omitempty"` // also set on its VMs

	PoolSize

	CreatedAt time.Time `json:"created_at"`
	AskedAt   time.Time `json:"asked_at"` // when a job last asked for a VM, or the pool was resized
	Hits      int64     `json:"hits"`     // jobs that were given a member
	Misses    int64     `json:"misses"`   // jobs that found no member

	Failure *PoolFailure `json:"failure,omitempty"` // why the last members could not be created; nil: the last one could
}

// PoolSize is how many VMs a pool keeps, and for how long.
type PoolSize struct {
	Warm       int `json:"warm"`                                          // running members
	Hibernated int `json:"hibernated,omitempty"`                          // members suspended to disk, which take no memory
	IdleLimit  int `json:"idle_limit,omitempty" api:"idle_limit_seconds"` // seconds without a request after which the pool keeps no members until the next request; 0: never
	MaxAge     int `json:"max_age" api:"max_age_seconds"`                 // seconds after which a member is replaced
}

// PoolChange is a change of a pool's size; nil fields keep their value.
type PoolChange struct {
	Warm       *int   `json:"warm,omitempty"`                                // running members
	Hibernated *int   `json:"hibernated,omitempty"`                          // members suspended to disk
	IdleLimit  *int   `json:"idle_limit,omitempty" api:"idle_limit_seconds"` // seconds without a request after which the pool keeps no members until the next request; 0: never
	MaxAge     *int   `json:"max_age,omitempty" api:"max_age_seconds"`       // seconds after which a member is replaced
	Match      string `json:"-" api:"If-Match,header"`                       // the ETag of the size to change; empty: any size
}

// Of applies the change to a size. It returns a *FieldError if the size does not have the ETag Match.
func (c PoolChange) Of(s PoolSize) (PoolSize, error) {
	if c.Match != "" && c.Match != "*" && c.Match != s.ETag() {
		return s, inState("If-Match", "read it again, and change what it is now", "the pool's size has changed since, and its ETag is now %s", s.ETag())
	}
	c.each(&s, func(to *int, of **int) {
		if *of != nil {
			*to = **of
		}
	})
	return s, s.Validate()
}

// Change returns the change that sets a size. If MaxAge is 0, it is not changed.
func (s PoolSize) Change() PoolChange {
	var c PoolChange
	c.each(&s, func(is *int, of **int) { *of = is })
	if s.MaxAge == 0 {
		c.MaxAge = nil
	}
	return c
}

func (c *PoolChange) each(s *PoolSize, do func(*int, **int)) {
	do(&s.Warm, &c.Warm)
	do(&s.Hibernated, &c.Hibernated)
	do(&s.IdleLimit, &c.IdleLimit)
	do(&s.MaxAge, &c.MaxAge)
}

// ETag identifies the size, so that a change can be limited to it.
func (s PoolSize) ETag() string {
	return fmt.Sprintf(`"%d-%d-%d-%d"`, s.Warm, s.Hibernated, s.IdleLimit, s.MaxAge)
}

// PoolFailure is why a pool's members cannot be created.
type PoolFailure struct {
	Error string `json:"error"` // the last error, with the remedy
	Count int    `json:"count"` // equal errors in a row
	Row   int    `json:"row"`   // failures in a row
	Maker string `json:"maker"` // the ID in the marker of the member that failed last

	Suspending bool      `json:"suspending,omitempty"` // the member was created but could not be suspended
	At         time.Time `json:"at"`
	// Generation is the template's generation for the failed member: a pool that has stopped tries
	// again with another generation.
	Generation string `json:"generation,omitempty"`
}

// MostFailures is the number of equal failures in a row after which a pool stops creating members,
// until it is resized or its template is replaced.
const MostFailures = 3

// Stopped reports whether the pool has given up creating members.
func (p Pool) Stopped() bool { return p.Failure != nil && p.Failure.Count >= MostFailures }

// HitRate returns the share of jobs that were given a member, 0 to 1; false if no job has asked.
func (p Pool) HitRate() (float64, bool) {
	asked := p.Hits + p.Misses
	return float64(p.Hits) / float64(max(1, asked)), asked > 0
}

// PoolInfo is a pool and its members.
type PoolInfo struct {
	Pool

	State   string          `json:"state"` // one line for people: ready, filling, paused: ..., stopped: ...
	Members []vm.MemberInfo `json:"members,omitempty"`
}

// PoolStatuses are the first words of a pool's state.
var PoolStatuses = []string{"ready", "filling", "asleep", "paused", "waiting", "stopped"}

// Count returns the number of members in a state.
func (p PoolInfo) Count(s vm.MemberState) int {
	n := 0
	for _, m := range p.Members {
		if m.State == s {
			n++
		}
	}
	return n
}

// Pools are the operations on pools. Errors: *InvalidError and *FieldError.
type Pools interface {
	// Pools returns every pool, by name.
	Pools(ctx context.Context) ([]PoolInfo, error)
	// Pool returns one pool, with its members.
	Pool(ctx context.Context, name string) (PoolInfo, error)
	// CreatePool adds a pool. Empty fields get the defaults of a manifest. Members are created in
	// the background.
	CreatePool(ctx context.Context, p Pool) (PoolInfo, error)
	// ResizePool changes how many members a pool keeps; sizes of 0 drain it. A stopped pool tries again.
	ResizePool(ctx context.Context, name string, change PoolChange) (PoolInfo, error)
	// RemovePool removes a pool. Idle members are destroyed; jobs keep their members to the end.
	RemovePool(ctx context.Context, name string) (PoolInfo, error)
}

// DefaultMaxAge is the age at which a member is replaced, in seconds.
const DefaultMaxAge = 24 * 3600

// Maker returns the manifest of a job that creates a member.
func (p Pool) Maker() Manifest {
	if len(p.Network.Allow) == 0 { // names alone mean vm.EgressAllow
		p.Network.Egress = p.Network.Mode() // the pool's, even if the default has changed
	}
	return Manifest{
		Task: "make a VM of pool " + p.Name, AgentType: AgentScript, Lifecycle: vm.Pooled,
		VMTemplate: p.VMTemplate, OS: p.OS, Resources: p.Resources, Network: p.Network, Labels: p.Labels,
	}
}

// Offers reports whether the pool's VMs are exactly what a job asks for. A job whose VM may be kept
// gets a VM of its own, which has the job's name and lease. The manifest must have all defaults.
func (p Pool) Offers(m Manifest) bool {
	return m.VM == "" && m.Lifecycle == vm.Ephemeral && !m.Keep.Keeps() && p.Makes(m)
}

// Makes reports whether the pool's VMs have the properties a manifest asks for. The manifest must
// have all defaults.
func (p Pool) Makes(m Manifest) bool {
	return m.Start != StartCold && m.Start != StartRestore && m.Labels[HostTestLabel] == "" &&
		p.VMTemplate == m.VMTemplate && p.OS == m.OS && p.Network.Equal(m.Network) &&
		p.Resources.CPU == m.Resources.CPU &&
		SameSize(p.Resources.Memory, m.Resources.Memory) && SameSize(p.Resources.Disk, m.Resources.Disk)
}

// SameSize reports whether two texts are the same size, as in 2G and 2048M.
func SameSize(a, b string) bool {
	x, errX := ParseSize(a)
	y, errY := ParseSize(b)
	return errX == nil && errY == nil && x == y
}

// Validate reports everything wrong with a pool as an *InvalidError. Empty fields that have defaults
// are fine.
func (p Pool) Validate() error {
	var bad []*FieldError
	switch {
	case !spec.DNSLabel.MatchString(p.Name) || strings.ToLower(p.Name) != p.Name:
		bad = append(bad, field("pool.name", "use lower-case letters, digits and dashes, at most 63", "%q is not a pool's name", p.Name))
	case isPage(p.Name):
		bad = append(bad, field("pool.name", "choose another", "%q is taken by one of linus's own pages, next to those of the pools", p.Name))
	}
	m := p.Maker()
	m.Lifecycle = vm.Ephemeral
	if err, ok := PoolError(m.Validate()).(*InvalidError); ok { //nolint:errorlint // it returns no other
		bad = append(bad, err.Fields...)
	}
	if addresses, err := ParseAddresses(p.Network.IP); p.Network.IP != "" && err == nil && addresses.Fixed() && addresses.First == addresses.Last {
		bad = append(bad, field("pool.network.ip", "give dhcp, or a pool of addresses as in 10.0.0.50-10.0.0.99/24", "%q is one address, and a pool has several VMs", p.Network.IP))
	}
	bad = append(bad, p.PoolSize.validate()...)
	if len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

// PoolError turns an error about the manifest of Maker into one about the pool.
func PoolError(err error) error {
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		for _, f := range invalid.Fields {
			f.Field = strings.Replace(f.Field, "manifest.", "pool.", 1)
		}
	}
	return err
}

// Validate reports everything wrong with a size as an *InvalidError.
func (s PoolSize) Validate() error {
	if bad := s.validate(); len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

func (s PoolSize) validate() []*FieldError { return checkRows("pool.", poolRows(), s) }

// WithDefaults returns p with every empty field that has a default filled in.
func (p Pool) WithDefaults(d Defaults) Pool {
	m := p.Maker().WithDefaults(d)
	p.VMTemplate, p.Resources = m.VMTemplate, m.Resources
	p.Network = networkDefaults(p.Network, d)
	orDefault(&p.MaxAge, DefaultMaxAge)
	return p
}

// StartMode says how the VM of a job may start.
type StartMode string

// The start modes.
const (
	StartAny     StartMode = "any"     // a pool's VM if one is ready, or one resumed from a checkpoint if there is one, or one that boots
	StartRestore StartMode = "restore" // only a VM resumed from a checkpoint
	StartCold    StartMode = "cold"    // a VM that boots for the job
)

// Origin is what VMs are made from: a template's name or ID, or an operating system.
type Origin struct{ Template, OS string }

func (o Origin) String() string {
	if o.Template == "" {
		return o.OS
	}
	return "template '" + o.Template + "'"
}

// Origin returns what the pool's VMs are made from.
func (p Pool) Origin() Origin { return Origin{Template: p.VMTemplate, OS: p.OS} }

// HostRoom is what a host has left for VMs, its current templates, and the state of the VMs that
// were watched.
type HostRoom struct {
	FreeMB   int     // memory available, MiB
	TotalMB  int     // memory of the node, MiB
	Pressure float64 // share of time in which some work waited for memory, in percent: PSI's some avg10; 0 if unknown

	// Generations identify what VMs of an origin are made from now. A generation changes with the
	// template and with the settings that shape VMs. It is missing if the template was not found.
	Generations map[Origin]string
	// Doubts say, by the VM's job, why watched VMs are no longer proven to be linus's. Nothing may
	// be done to such a VM.
	Doubts map[string]string
	// Leases are the results of renewing leases, by the VM's job.
	Leases map[string]LeaseState
}

// ReserveMB returns how much memory refilling pools leaves free on a host: a tenth, and at least 1 GiB.
func (r HostRoom) ReserveMB() int { return max(1024, r.TotalMB/10) }

// LeaseState is the result of renewing a lease.
type LeaseState string

// The states of a lease.
const (
	LeaseRenewed LeaseState = "renewed"
	LeaseKept    LeaseState = "kept" // not renewed this time: the host's leases are locked, or the VM is not proven
	LeaseOver    LeaseState = "over" // the host is ending the VM, or has ended it
	LeaseGone    LeaseState = "gone" // the host has no VM with that ID
)

// Watched is a VM that the host checks.
type Watched struct {
	VM    vm.VM
	Renew time.Duration // the host ends the VM no sooner than this from now; 0: unchanged
	Never bool          // the host never ends the VM
}

// PoolEvent is something that happened to a pool, for an Observer.
type PoolEvent struct {
	Pool   string
	Kind   PoolEventKind
	By     Caller        // created, resized, removed: who asked
	Job    string        // claims: the job
	VM     vm.VM         // claims: the member
	Took   time.Duration // hit: from the claim until the member answered
	Detail string        // one line for people
}

// PoolEventKind is the kind of a PoolEvent.
type PoolEventKind string

// The kinds.
const (
	PoolCreated PoolEventKind = "create_pool"
	PoolResized PoolEventKind = "resize_pool"
	PoolRemoved PoolEventKind = "remove_pool"
	PoolHit     PoolEventKind = "claim_vm"     // a job got a member, which answers
	PoolMiss    PoolEventKind = "miss"         // no member was ready for a job
	PoolFell    PoolEventKind = "fell_through" // a claimed member did not answer: its job continues without it
	PoolFailed  PoolEventKind = "refill_failed"
)

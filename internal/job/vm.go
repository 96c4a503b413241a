package job

import (
	"cmp"
	"errors"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// VMState returns the state of the job's VM; empty if it has none.
func (j Job) VMState() vm.State {
	if j.VM == nil {
		return ""
	}
	return j.VM.State
}

// poolClient is the client of the stand-in jobs of the pools' VMs.
const poolClient = "pool"

// StandInJob returns a stand-in for the job of a VM that was created without a job, so that clients
// can follow all VMs by the IDs of jobs.
func StandInJob(v vm.VM) Job {
	o := v.Own
	j := Job{
		ID: v.Job, Kind: KindMake, Client: o.Client, Principal: v.Principal, TokenID: o.Token, Status: Provisioning, Phase: PhaseProvision, CreatedAt: v.CreatedAt, VM: &v,
		Progress: cmp.Or(o.Waits, o.Progress), Submission: o.Submission, EndedBy: o.EndedBy, EndedFor: o.EndedFor, EndedToken: o.EndedToken,
		Manifest: Manifest{VMName: v.Name, VMTemplate: v.Template, OS: v.OS, Resources: v.Resources, Network: v.Network, TTL: o.TTL, AtEnd: v.AtEnd, IdleSuspend: v.IdleSuspend, Labels: v.Labels}.ForVM(),
	}
	at, why := o.FailedAt, "Cancelled by user"
	if pool := v.OfPool(); pool != "" {
		j.Client, j.Manifest.VMName, j.Manifest.Task, j.Manifest.Lifecycle = poolClient, "", "make a VM of pool "+pool, v.Lifecycle
		at, why = v.GivenUp()
	}
	code := 0
	switch {
	case o.Failed != "":
		j.Outcome = &Outcome{Status: Failed, Reason: ReasonProvisionFailed, Error: o.Failed, At: at}
	case !o.ReadyAt.IsZero():
		j.Outcome = &Outcome{Status: Success, Reason: ReasonExitStatus, ExitCode: &code, At: o.ReadyAt}
	case v.State.Settled() || v.Unwanted:
		j.Outcome = &Outcome{Status: Failed, Reason: ReasonCancelled, Error: why, At: at}
	case v.State == vm.Reserved:
		j.Status, j.Phase = Pending, ""
		return j
	default:
		return j
	}
	j.Status, j.CompletedAt, j.Progress = j.Outcome.Status, j.Outcome.At, ""
	if v.Unwanted {
		j.Phase = PhaseDestroy
	}
	return j
}

// Pinned returns a *FieldError if a VM is identified only by its address. Such a VM gets no secrets:
// whatever answers at the address would receive them.
func Pinned(v vm.VM) error {
	if v.HostKey != "" {
		return nil
	}
	return field("manifest.secrets", "use a template whose guest agent responds ("+string(BuildTemplate)+" makes one), or run the job without secrets and credentials",
		"VM %d (%s) gets none: its SSH host key was not read through the hypervisor, so whatever answers at %s would receive them", v.ID, v.Name, v.IP)
}

// NotRunning returns a *FieldError if a VM that is shared does not run, according to the host.
func NotRunning(v vm.VM, status vm.Status) error {
	switch {
	case !status.Down():
		return nil
	case status == vm.Stopped:
		return inState("vm", "start it first: "+string(StartVM)+" "+v.Name, "%q (VM %d) is stopped", v.Name, v.ID)
	case status == vm.Suspended:
		return inState("vm", "resume it first: "+string(ResumeVM)+" "+v.Name, "%q (VM %d) is suspended", v.Name, v.ID)
	}
	return inState("vm", "destroy it here too, and create it again", "%q (VM %d) is gone from the host, and linus did not remove it", v.Name, v.ID)
}

// ProxyPort returns the port of the VM's loopback where the proxy of a job with egress allow listens.
// It is the same after every reconnect and in every engine, since the task's environment names it.
func ProxyPort(id string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return 20000 + int(h.Sum32()%10000)
}

// ProxyEnv returns the variables by which programs in a VM find that proxy. Addresses bypass it.
func ProxyEnv(id string, n vm.Network) map[string]string {
	proxy := "http://127.0.0.1:" + strconv.Itoa(ProxyPort(id))
	direct := strings.Join(append([]string{"localhost", "127.0.0.1", "::1"}, n.Ranges()...), ",")
	return map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "NO_PROXY": direct, "no_proxy": direct,
		"NODE_USE_ENV_PROXY": "1",
	}
}

// Snapshot is a saved state of a VM that the VM can be reverted to.
type Snapshot struct {
	Name        string    `json:"name"`
	CreatedAt   time.Time `json:"created_at"`             // by the host's clock
	Parent      string    `json:"parent,omitempty"`       // the snapshot it was taken after
	Memory      bool      `json:"memory"`                 // it includes the state of what ran in the VM, which a revert resumes
	MemoryBytes int64     `json:"memory_bytes,omitempty"` // storage space of the memory; 0: unknown
	DiskBytes   int64     `json:"disk_bytes,omitempty"`   // space of the disks as the storage reports it: on ZFS what only they hold, on LVM-thin all they map; 0: unknown
	Current     bool      `json:"current"`                // the VM's current state is based on it
	Incomplete  bool      `json:"incomplete,omitempty"`   // its creation or removal did not finish: it can only be removed
}

// VMInfo is one of linus's VMs, with its status.
type VMInfo struct {
	vm.VM

	Lifecycle vm.Lifecycle      `json:"lifecycle"`
	Resources vm.Resources      `json:"resources"`
	Network   vm.Network        `json:"network,omitzero"`
	Source    string            `json:"source"`           // the template or operating system it was created from
	Start     vm.Source         `json:"start,omitempty"`  // how it was started: booted (cold), restored, forked, or taken from a pool
	Labels    map[string]string `json:"labels,omitempty"` // of the job that created it, or of its pool
	Jobs      []string          `json:"jobs,omitempty"`   // unfinished jobs that run in it
	CreatedAt time.Time         `json:"created_at"`
	Principal string            `json:"principal,omitempty"` // the name of its owner; empty: the operator

	Ports []ExposedPort `json:"ports,omitempty"` // ports that have a URL

	IdleSuspend int `json:"idle_suspend,omitempty" api:"idle_suspend_seconds"` // seconds without use after which it is suspended; 0: never

	AtEnd vm.End `json:"at_end,omitempty"` // what happens to it at expires_at; empty: it is destroyed

	Sandbox *vm.Sandbox `json:"sandbox,omitempty"` // what a program that uses the VM as a sandbox says about it; null: it is not a sandbox
}

// VMChange is a change of a VM's settings; nil fields keep their value.
type VMChange struct {
	IdleSuspend *int    `json:"idle_suspend,omitempty" api:"idle_suspend_seconds"` // seconds without use after which it is suspended; 0: never
	TTL         *int    `json:"ttl,omitempty" api:"ttl_seconds"`                   // seconds from now until it expires, once no job runs in it; 0: it stays
	AtEnd       *vm.End `json:"at_end,omitempty"`                                  // what happens to it then: destroy, or suspend, after which it stays suspended
	Meanwhile   bool    `json:"-" api:"-"`                                         // at_end holds only until the caller restores the former value

	// With a ttl: what the VM is kept for until then, and how many of its principal's VMs are kept
	// for that at most, as for a session; 0: 5.
	KeptOf   string `json:"kept_of,omitempty"`
	KeptMost int    `json:"keep_at_most,omitempty"`

	Network *vm.Network `json:"network,omitempty"` // what it may reach from now on, once no job runs in it: only egress, allow and deny; empty: the server's settings
}

// NetworkOf returns a VM's network with the change and the defaults applied.
func (c VMChange) NetworkOf(n vm.Network, d Defaults) vm.Network {
	return networkDefaults(n.Reaching(*c.Network), d)
}

// checkNetwork returns an error if no VM's network can be changed to n.
func checkNetwork(n vm.Network) error {
	if !n.Equal(vm.Network{}.Reaching(n)) {
		return field("network", "give only egress, allow and deny", "cannot have its bridge, vlan, ip or gateway changed")
	}
	invalid, _ := errors.AsType[*InvalidError](Manifest{Lifecycle: vm.Persistent, Network: n}.Validate())
	if invalid == nil {
		return nil
	}
	bad := slices.DeleteFunc(invalid.Fields, func(f *FieldError) bool { return !strings.HasPrefix(f.Field, "manifest.network.") })
	if len(bad) == 0 {
		return nil
	}
	for _, f := range bad {
		f.Field = strings.TrimPrefix(f.Field, "manifest.")
		f.Problem, f.Remedy = strings.ReplaceAll(f.Problem, "manifest.", ""), strings.ReplaceAll(f.Remedy, "manifest.", "")
	}
	return &InvalidError{Fields: bad}
}

// Check returns a *FieldError if the change is invalid.
func (c VMChange) Check() error {
	if err := checkSeconds("idle_suspend", "idleSuspend", c.IdleSuspend); err != nil {
		return err
	}
	if err := checkSeconds("ttl", "ttl", c.TTL); err != nil {
		return err
	}
	if err := cmp.Or(sessionText("kept_of", c.KeptOf, false), Within("keep_at_most", int64(c.KeptMost), 0, MaxKeep)); err != nil {
		return err
	}
	if c.KeptOf != "" && (c.TTL == nil || *c.TTL == 0) {
		return field("kept_of", "give ttl, too", "applies only to a VM that is kept for a time")
	}
	if c.Network != nil {
		if err := checkNetwork(*c.Network); err != nil {
			return err
		}
	}
	if is := c.AtEnd; is != nil {
		if problem, remedy := refusal(&spec.Some("atEnd")[0], reflect.ValueOf(*is)); problem != "" {
			return field("at_end", remedy, "%s", problem)
		}
	}
	return nil
}

// checkSeconds checks a duration for a VM against the manifest field of; 0 is also valid.
func checkSeconds(name, of string, is *int) error {
	if is == nil || *is == 0 {
		return nil
	}
	if problem, remedy := refusal(&spec.Some(of)[0], reflect.ValueOf(*is)); problem != "" {
		return field(name, remedy+", or 0 for never", "%s", problem)
	}
	return nil
}

// Naps reports whether the VM is suspended when it is idle.
func (v VMInfo) Naps() bool { return v.IdleSuspend > 0 && v.Lifecycle == vm.Persistent }

// IdleTime is how long the VM is unused before it is suspended.
func (v VMInfo) IdleTime() time.Duration { return time.Duration(v.IdleSuspend) * time.Second }

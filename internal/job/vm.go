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

// VMState is the state of the job's VM; empty: it has none.
func (j Job) VMState() vm.State {
	if j.VM == nil {
		return ""
	}
	return j.VM.State
}

// poolClient is the client of what stands for the makers of the pools' VMs.
const poolClient = "pool"

// StandInJob returns what stands for the job that would have made a VM which no job has made,
// as it would be: who follows VMs by the IDs of jobs goes on doing so.
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

// Pinned returns a *FieldError if a VM is identified only by its address. It gets no secrets
// then: whatever answers there would receive them.
func Pinned(v vm.VM) error {
	if v.HostKey != "" {
		return nil
	}
	return field("manifest.secrets", "use a template whose guest agent responds ("+string(BuildTemplate)+" makes one), or run the job without secrets and credentials",
		"VM %d (%s) gets none: its SSH host key was not read through the hypervisor, and whatever answers at %s would have them", v.ID, v.Name, v.IP)
}

// NotRunning returns a *FieldError if a VM that others use does not run, as the host reports.
func NotRunning(v vm.VM, status vm.Status) error {
	switch {
	case !status.Down():
		return nil
	case status == vm.Stopped:
		return inState("vm", "start it first: "+string(StartVM)+" "+v.Name, "%q (VM %d) is stopped", v.Name, v.ID)
	case status == vm.Suspended:
		return inState("vm", "resume it first: "+string(ResumeVM)+" "+v.Name, "%q (VM %d) is suspended", v.Name, v.ID)
	}
	return inState("vm", "destroy it here too, and create it again", "%q (VM %d) is gone from the host, and not by us", v.Name, v.ID)
}

// ProxyPort is the port of a VM's loopback where the proxy of a job with egress allow is. It
// is the same after every reconnect and in every engine: the task's environment names it.
func ProxyPort(id string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return 20000 + int(h.Sum32()%10000)
}

// ProxyEnv are the variables by which programs in a VM find that proxy, which does not reach addresses.
func ProxyEnv(id string, n vm.Network) map[string]string {
	proxy := "http://127.0.0.1:" + strconv.Itoa(ProxyPort(id))
	direct := strings.Join(append([]string{"localhost", "127.0.0.1", "::1"}, n.Ranges()...), ",")
	return map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "NO_PROXY": direct, "no_proxy": direct,
		"NODE_USE_ENV_PROXY": "1",
	}
}

// Snapshot is a state of a VM that it can be reverted to.
type Snapshot struct {
	Name        string    `json:"name"`
	CreatedAt   time.Time `json:"created_at"`             // by the host's clock
	Parent      string    `json:"parent,omitempty"`       // the snapshot it was taken after
	Memory      bool      `json:"memory"`                 // it has what ran in the VM, which a revert continues
	MemoryBytes int64     `json:"memory_bytes,omitempty"` // that this takes of its storage; 0: not known
	DiskBytes   int64     `json:"disk_bytes,omitempty"`   // that the storage tells of the disks: on ZFS what they alone hold, on LVM-thin all they map; 0: not known
	Current     bool      `json:"current"`                // what the VM has now began with it
	Incomplete  bool      `json:"incomplete,omitempty"`   // its making or removal did not come to its end: it can only be removed
}

// VMInfo is a VM of ours, Status included.
type VMInfo struct {
	vm.VM

	Lifecycle vm.Lifecycle      `json:"lifecycle"`
	Resources vm.Resources      `json:"resources"`
	Network   vm.Network        `json:"network,omitzero"`
	Source    string            `json:"source"`           // the template or operating system it was created from
	Start     vm.Source         `json:"start,omitempty"`  // how it came to be: it was booted (cold), restored, forked, or a pool's
	Labels    map[string]string `json:"labels,omitempty"` // of the job that has made it, or of its pool
	Jobs      []string          `json:"jobs,omitempty"`   // unfinished jobs that run in it
	CreatedAt time.Time         `json:"created_at"`
	Principal string            `json:"principal,omitempty"` // the name of its owner; empty: the operator

	Ports []ExposedPort `json:"ports,omitempty"` // that have a URL

	IdleSuspend int `json:"idle_suspend,omitempty" api:"idle_suspend_seconds"` // seconds without a use, after which it is suspended; 0: never

	AtEnd vm.End `json:"at_end,omitempty"` // what becomes of it at expires_at; empty: it is destroyed

	Sandbox *vm.Sandbox `json:"sandbox,omitempty"` // what a program says of the VM that it uses as one; null: none does
}

// VMChange is a change of a VM's settings; what is nil stays.
type VMChange struct {
	IdleSuspend *int    `json:"idle_suspend,omitempty" api:"idle_suspend_seconds"` // seconds without a use, after which it is suspended; 0: never
	TTL         *int    `json:"ttl,omitempty" api:"ttl_seconds"`                   // seconds from now until its time is over, once no job runs in it; 0: it stays
	AtEnd       *vm.End `json:"at_end,omitempty"`                                  // what becomes of it then: destroy, or suspend, in which state it stays
	Meanwhile   bool    `json:"-" api:"-"`                                         // at_end is so until its caller gives the former one back

	// With a ttl: for what it is kept until then, and how many VMs of its principal are kept for that at
	// most, as a session's; 0: 5.
	KeptOf   string `json:"kept_of,omitempty"`
	KeptMost int    `json:"keep_at_most,omitempty"`

	Network *vm.Network `json:"network,omitempty"` // what it reaches from now on, once no job runs in it: egress, allow and deny alone; empty: the server's settings
}

// NetworkOf returns a VM's network with the change of it, and the defaults.
func (c VMChange) NetworkOf(n vm.Network, d Defaults) vm.Network {
	return networkDefaults(n.Reaching(*c.Network), d)
}

// checkNetwork returns what no VM's network can be changed to.
func checkNetwork(n vm.Network) error {
	if !n.Equal(vm.Network{}.Reaching(n)) {
		return field("network", "give egress, allow and deny alone", "cannot be changed in bridge, vlan, ip and gateway")
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

// Check returns a *FieldError if no VM can be changed so.
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
		return field("kept_of", "give ttl, too", "is of a VM that is kept for a time")
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

// checkSeconds checks a time that a VM is given as a field of a manifest has it, or 0.
func checkSeconds(name, of string, is *int) error {
	if is == nil || *is == 0 {
		return nil
	}
	if problem, remedy := refusal(&spec.Some(of)[0], reflect.ValueOf(*is)); problem != "" {
		return field(name, remedy+", or 0 for never", "%s", problem)
	}
	return nil
}

// Naps and IdleTime are those of the VM.
func (v VMInfo) Naps() bool { return v.IdleSuspend > 0 && v.Lifecycle == vm.Persistent }

// IdleTime is how long it is not used before it is suspended.
func (v VMInfo) IdleTime() time.Duration { return time.Duration(v.IdleSuspend) * time.Second }

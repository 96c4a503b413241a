// Package proxmox implements job.Provider for Proxmox VE: it uploads the host scripts, runs them over
// SSH, follows their output, and turns their failures into errors an operator can act on. The scripts do
// the work on the host. The package knows nothing of a job except the VM it asks for.
package proxmox

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/vm"
)

// Options say where and how VMs are created. Empty values leave the scripts' own defaults, except where noted.
type Options struct {
	Host *remote.Pool // the Proxmox host; required

	Node    string // default: the host's own
	Member  bool   // the other nodes of its cluster have their own Providers, see job.MovedError
	Storage string
	Bridge  string
	VLANTag int // 0: none

	StorageReserve int // GiB that stay free on storages; below 0: none
	MaxSnapshots   int // per VM; below 0: any number

	VMIDRange   string // "100-999"
	IPConfig    string // "dhcp" or ADDRESS/PREFIX
	Gateway     string
	Nameservers string
	VMUser      string // SSH user of the VMs; default: the template's
	GuestPort   int    // SSH port of the VMs; 0: 22

	Template string // for Check; Create uses the spec's
	// CallbackURL returns the URL for callbacks, for Check to test whether the host reaches it; nil: not tested.
	CallbackURL func(context.Context) (string, error)
	ImageURL    string // for specs without a template
	ImageSHA256 string
	ImageDir    string // the host's directory for images

	// Loopback allows addresses of the host's loopback for VMs, as in the process lab. On any other host
	// such addresses are refused.
	Loopback bool

	PlainTools    bool // start qm, pvesh and pvesm for each call instead of a tool server
	Routed        bool // accept VMs though the node cannot see which card has an address
	TrustFirstUse bool // accept VMs without a host key if the hypervisor does not report it

	// Engine returns this engine's ID if it shares a database with others: the host refuses fenced
	// engines. Nil or an empty ID: it works alone.
	Engine func() string
	// Version is this program's. What the host runs by itself is not replaced by that of an older version.
	Version string
	// KeyRemedy is the remedy if the host presents another SSH host key; "": that for a host in known_hosts.
	KeyRemedy string

	Owner          string        // installation ID: List returns only its VMs
	NetworkTimeout time.Duration // for a VM to get an address
	ReadyTimeout   time.Duration // for a VM to finish its first boot
	RollbackWait   time.Duration // for a stopped script to undo its work; 0: 2 min
	Patience       time.Duration // with an unresponsive host during a create; 0: 10 min. Else a tenth of it
	ScriptDir      string        // on the host, with the operations in progress below it; "": /var/lib/linus/scripts
	OnLockRetry    func()        // called when a change is retried because of a lock; may be nil
	Log            *slog.Logger  // nil: none
}

// clonesAtOnce bounds concurrent creates until their VM starts: Proxmox's storage lock times out if more
// than two or three clones wait for it. Booting, by far the longest part, is not bounded.
const clonesAtOnce = 3

// Provider creates VMs on one Proxmox VE node.
type Provider struct {
	o          Options
	cloning    chan struct{}
	scripts    scripts
	quarantine said
	leftAlone  said
	warned     sync.Map // *said by script and VM: the last warnings of calls that repeat
}

var _ job.Provider = (*Provider)(nil)

// Close ends the connections to the host.
func (p *Provider) Close() { p.o.Host.Close() }

// Host returns the connections to the host.
func (p *Provider) Host() *remote.Pool { return p.o.Host }

// New returns a Provider. It does not connect to the host yet.
func New(o Options) *Provider {
	o.ScriptDir = cmp.Or(o.ScriptDir, "/var/lib/linus/scripts")
	o.RollbackWait = cmp.Or(o.RollbackWait, 2*time.Minute)
	o.Patience = cmp.Or(o.Patience, 10*time.Minute)
	if o.Engine == nil {
		o.Engine = func() string { return "" }
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Provider{
		o: o, cloning: make(chan struct{}, clonesAtOnce),
		scripts: scripts{host: o.Host, dir: o.ScriptDir, turn: make(chan struct{}, 1), there: map[string]bool{}},
	}
}

// Check checks whether VMs can be created. Findings are in the report; an error means that the host could
// not be asked.
func (p *Provider) Check(ctx context.Context) (job.HostReport, error) {
	r := job.HostReport{Host: p.o.Host.Login(), Node: p.o.Node}
	env := p.environment()
	setText(env, "VM_TEMPLATE", p.o.Template)
	setText(env, "IMAGE_DIR", p.o.ImageDir)
	if p.o.CallbackURL != nil {
		if url, err := p.o.CallbackURL(ctx); err == nil { // if the host does not respond, the script fails below
			env["CALLBACK_URL"] = url
		}
	}
	res, err := p.run(ctx, call{op: "check the host", script: "check-host", env: env})
	checks := readChecks(res)
	if len(checks) == 0 && err != nil {
		return r, err
	}
	r.Node = cmp.Or(res.Get("LINUS_VM_NODE"), r.Node)
	r.Checks = append([]job.Check{{Name: "ssh", Level: "ok", Text: "logged in to " + r.Host}, p.forwarding(ctx)}, checks...)
	r.Checks = append(append(r.Checks, p.quarantined()...), p.leftAloneChecks()...)
	if facts := strings.Fields(res.Get("LINUS_FACTS")); len(facts) == 3 {
		r.Facts = []job.HostFacts{{Node: r.Node, Proxmox: facts[0], Storage: facts[1], Template: facts[2]}}
	}
	r.OK = err == nil
	for _, c := range checks {
		r.OK = r.OK && c.Level != "fail"
	}
	return r, nil
}

// forwarding checks whether the host's SSH server forwards connections. VMs that only the host can reach
// need that.
func (p *Provider) forwarding(ctx context.Context) job.Check {
	c := job.Check{Name: "forwarding", Level: "ok", Text: "VMs can be reached through the host"}
	t, err := p.o.Host.Tunnel(ctx, "127.0.0.1:9") // an unused address
	if err != nil {
		c.Level, c.Text = "warn", err.Error()
		c.Remedy = "allow it in the host's sshd_config (AllowTcpForwarding yes); without it VMs and CALLBACK_URL must be reached directly"
		return c
	}
	t.Close()
	return c
}

// readChecks parses `LINUS_CHECK:<name>:<level>:<text>` lines, each followed by its LINUS_REMEDY unless
// the level is ok.
func readChecks(res result.Result) []job.Check {
	var checks []job.Check
	previous := ""
	for _, line := range res.Lines {
		switch {
		case line.Key == "LINUS_CHECK":
			name, rest, _ := strings.Cut(line.Value, ":")
			level, text, _ := strings.Cut(rest, ":")
			checks = append(checks, job.Check{Name: name, Level: level, Text: text})
		case line.Key == result.KeyRemedy && previous == "LINUS_CHECK":
			checks[len(checks)-1].Remedy = line.Value
		}
		previous = line.Key
	}
	return checks
}

// Create creates a VM, as an operation on the host: until Destroy, a second Create for the same job, by
// this process or another, joins the first and returns its result. If ctx ends, the script is stopped,
// and has undone its work when Create returns, unless RollbackWait has passed. If the cause is
// job.ErrDetach, the script continues.
func (p *Provider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	v := vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}
	op := "create VM " + spec.Name
	select {
	case p.cloning <- struct{}{}:
	case <-ctx.Done():
		return v, p.hostError(ctx, op, context.Cause(ctx))
	}
	cloned := sync.OnceFunc(func() { <-p.cloning })
	defer cloned()
	tell := telling(progress)
	onLine := func(key, value string) {
		switch {
		case key == "LINUS_VM_ID":
			if id, err := readID(value); err == nil && id != v.ID {
				v.ID = id
				progress(job.Progress{VMID: id})
			}
		case key == result.KeyStep && readStep(value).Step == "start_vm":
			cloned()
		}
		tell(key, value)
	}
	res, err := p.operate(ctx, p.createOperation(spec.Job), call{op: op, script: "create-vm", env: p.createEnvironment(spec), onLine: onLine})
	if err != nil {
		return v, err
	}
	v.State = vm.Created
	return p.booted(op, v, res)
}

// Plan returns the commands that Create would run on the host.
func (p *Provider) Plan(ctx context.Context, spec job.VMSpec) ([]string, error) {
	res, err := p.run(ctx, call{
		op: "plan VM " + spec.Name, script: "create-vm", args: []string{"--dry-run"}, env: p.createEnvironment(spec), patience: p.o.Patience / 10,
	})
	return res.All("LINUS_PLAN"), err
}

// readStep parses `<n>/<total>:<function>:<text>`.
func readStep(value string) job.Progress {
	count, rest, _ := strings.Cut(value, ":")
	name, text, _ := strings.Cut(rest, ":")
	n, of, _ := strings.Cut(count, "/")
	step := job.Progress{Step: name, Text: text}
	step.N, _ = strconv.Atoi(n)
	step.Of, _ = strconv.Atoi(of)
	return step
}

func (p *Provider) createEnvironment(spec job.VMSpec) map[string]string {
	env := p.machineEnvironment()
	env["VM_NAME"], env["LINUS_JOB"], env["LINUS_OWNER"] = spec.Name, spec.Job, spec.Owner
	env["SSH_PUBLIC_KEY"] = spec.PublicKey
	setNumber(env, "VM_CPU", spec.CPU)
	setNumber(env, "VM_RAM", spec.MemoryMB)
	setNumber(env, "VM_DISK", spec.DiskGB)
	setNumber(env, "LINUS_LEASE_SECONDS", int(spec.Lease/time.Second))
	setText(env, "VM_TEMPLATE", spec.Template)
	setNumber(env, "VM_CHECKPOINT", spec.Checkpoint)
	if spec.Fork.VM != 0 {
		setNumber(env, "VM_FORK", spec.Fork.VM)
		env["VM_FORK_JOB"], env["VM_FORK_LIVE"] = spec.Fork.Job, strconv.FormatBool(spec.Fork.Live)
	}
	setText(env, "PROXMOX_NODE", spec.Node)
	setText(env, "PROXMOX_BRIDGE", spec.Network.Bridge)
	setNumber(env, "VM_VLAN_TAG", spec.Network.VLAN)
	setText(env, "VM_IP_CONFIG", spec.Network.IP)
	setText(env, "VM_GATEWAY", spec.Network.Gateway)
	setEgress(env, spec.Network)
	if spec.Template == "" && spec.Fork.VM == 0 {
		setText(env, "VM_OS", spec.OS)
		setText(env, "VM_IMAGE_URL", p.o.ImageURL)
		setText(env, "VM_IMAGE_SHA256", p.o.ImageSHA256)
	}
	return env
}

// machineEnvironment returns the script inputs that all VMs created here share.
func (p *Provider) machineEnvironment() map[string]string {
	env := p.environment()
	setNumber(env, "VM_VLAN_TAG", p.o.VLANTag)
	setNumber(env, "VM_SSH_PORT", p.o.GuestPort)
	setNumber(env, "VM_NETWORK_TIMEOUT", int(p.o.NetworkTimeout/time.Second))
	setNumber(env, "VM_READY_TIMEOUT", int(p.o.ReadyTimeout/time.Second))
	setText(env, "VM_ID_RANGE", p.o.VMIDRange)
	env["VM_ROUTED"], env["VM_TRUST_FIRST_USE"] = strconv.FormatBool(p.o.Routed), strconv.FormatBool(p.o.TrustFirstUse)
	setText(env, "VM_IP_CONFIG", p.o.IPConfig)
	setText(env, "VM_GATEWAY", p.o.Gateway)
	setText(env, "VM_NAMESERVERS", p.o.Nameservers)
	setText(env, "VM_SSH_USER", p.o.VMUser)
	setText(env, "IMAGE_DIR", p.o.ImageDir)
	return env
}

// environment returns the inputs of scripts that choose or check where VMs run.
func (p *Provider) environment() map[string]string {
	env := map[string]string{}
	setText(env, "PROXMOX_NODE", p.o.Node)
	setText(env, "PROXMOX_STORAGE", p.o.Storage)
	setText(env, "PROXMOX_BRIDGE", p.o.Bridge)
	setLimit(env, "STORAGE_RESERVE", p.o.StorageReserve)
	setLimit(env, "SNAPSHOT_MAX", p.o.MaxSnapshots)
	return env
}

func setText(env map[string]string, name, value string) {
	if value != "" {
		env[name] = value
	}
}

func setEgress(env map[string]string, n vm.Network) {
	setText(env, "VM_EGRESS", string(n.Egress))
	setText(env, "VM_EGRESS_RANGES", strings.Join(n.Ranges(), ","))
}

// setLimit sets an input for which 0 is a valid value: negative values become 0, and 0 leaves it unset.
func setLimit(env map[string]string, name string, value int) {
	if value != 0 {
		env[name] = strconv.Itoa(max(0, value))
	}
}

func setNumber(env map[string]string, name string, value int) {
	if value != 0 {
		env[name] = strconv.Itoa(value)
	}
}

// CallbackHost returns this machine's address on the route to the host.
func (p *Provider) CallbackHost(ctx context.Context) (string, error) {
	ip, err := p.o.Host.NearIP(ctx)
	if err != nil {
		return "", p.hostError(ctx, "find the address for callbacks", err)
	}
	return ip, nil
}

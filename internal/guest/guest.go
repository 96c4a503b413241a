// Package guest implements the executor's Guest and Runner: it puts the job runner with a job's
// task and files into a VM and drives it, over SSH through the Proxmox host. The runner knows how
// to run, stop and account for a task; this package knows nothing of a job beyond its payload.
package guest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/term"
	"linus/internal/vm"
)

// Options configure how to reach VMs.
type Options struct {
	// Host returns the machine through which a VM is reached: the VM's host. Required.
	Host func(context.Context, vm.VM) (*remote.Pool, error)
	Keys LoginKeys // to log in to the VMs; required
	Port int       // SSH port of the VMs; 0: 22
	Root string    // prefix of every path in the VM, for tests

	Sandbox string // path of the program that serves sandboxes in their VMs; empty: missing

	Sandboxes bool // clients may ask for sandboxes: pool VMs get the program in advance

	Log *slog.Logger // nil: none
}

// LoginKeys are the private keys that log in to VMs.
type LoginKeys interface {
	// Path returns the file of a VM's key; empty if there is none.
	Path(v vm.VM) string
}

// Time limits of one call. They are generous because an emulated VM is slow; keepalive detects an
// unresponsive VM sooner.
const (
	callTimeout  = 3 * time.Minute
	pushTimeout  = 10 * time.Minute
	probeTimeout = 20 * time.Second // a frozen VM must not look busy
)

// maxAnswer bounds the output of one call of the runner, in bytes.
const maxAnswer = 256 << 10

// Guest works inside VMs. It keeps connections to each VM until Forget.
type Guest struct {
	o Options

	mu         sync.Mutex
	pools      map[string]*pooled    // by job, even if jobs share a VM
	tunnels    map[string]keptTunnel // by job
	workspaces map[string]*workspace // by the job that created the VM

	sandboxProgram func() (sandboxProgram, error) // read and compressed on first use

	closing sync.WaitGroup // connections no longer in use, and trees in transfer
}

// pooled holds the connections to a VM and the values they were created with.
type pooled struct {
	vm     vm.VM
	host   *remote.Pool
	pool   *remote.Pool
	launch *launch // for the job's next call; nil: none
}

// serves reports whether the connections lead to v through host.
func (k *pooled) serves(v vm.VM, host *remote.Pool) bool {
	return k.host == host && k.vm.ID == v.ID && k.vm.IP == v.IP && k.vm.User == v.User && k.vm.HostKey == v.HostKey
}

// Through returns an Options.Host for VMs that are all reached through one machine.
func Through(host *remote.Pool) func(context.Context, vm.VM) (*remote.Pool, error) {
	return func(context.Context, vm.VM) (*remote.Pool, error) { return host, nil }
}

// New returns a Guest. It does not connect yet.
func New(o Options) *Guest {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Guest{o: o, pools: map[string]*pooled{}, tunnels: map[string]keptTunnel{}, workspaces: map[string]*workspace{}, sandboxProgram: sync.OnceValues(func() (sandboxProgram, error) { return readSandboxProgram(o.Sandbox) })}
}

// Ping checks that the job's VM responds over SSH, and leaves a connection open.
func (g *Guest) Ping(ctx context.Context, j job.Job) error {
	err := g.retry(ctx, j, func(pool *remote.Pool) error { return pool.Ping(ctx) })
	return g.fault(ctx, "reach", j, result.Result{}, err)
}

func (g *Guest) pool(ctx context.Context, j job.Job) (*remote.Pool, error) {
	if j.VM == nil {
		return nil, fmt.Errorf("job %s has no VM yet", j.ID)
	}
	vm := *j.VM
	host, err := g.host(ctx, vm)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known, ok := g.pools[j.ID]
	if ok && known.serves(vm, host) {
		return known.pool, nil
	}
	if warm := g.pools[vm.Job]; !ok && warm != nil && warm.serves(vm, host) && warm.launch != nil && warm.launch.stage == waiting {
		g.pools[j.ID] = warm
		delete(g.pools, vm.Job)
		return warm.pool, nil
	}
	p, err := g.connections(vm, host, g.o.Log.With("vm_id", vm.ID, "job_id", j.ID))
	if err != nil {
		return nil, err
	}
	g.pools[j.ID] = &pooled{vm: vm, host: host, pool: p}
	if ok {
		g.closing.Go(known.pool.Close) // waits for calls in progress there
	}
	return p, nil
}

// host returns the machine through which a VM is reached. The VM must have an address.
func (g *Guest) host(ctx context.Context, v vm.VM) (*remote.Pool, error) {
	if v.IP == "" || v.User == "" {
		return nil, fmt.Errorf("VM %d has no address or user yet", v.ID)
	}
	return g.o.Host(ctx, v)
}

func (g *Guest) connections(v vm.VM, host *remote.Pool, log *slog.Logger) (*remote.Pool, error) {
	return host.Guest(remote.GuestOptions{
		Options: remote.Options{
			Host: v.IP, Port: g.o.Port, User: v.User, KeyPath: g.o.Keys.Path(v),
			ConnectTimeout: time.Minute, Patience: 5 * time.Second, KeepAlive: 20 * time.Second, Log: log,
		},
		HostKey: v.HostKey,
		OnFirstUse: func(fingerprint string) {
			log.Warn("host key of the VM trusted on first use: it could not be read through the hypervisor", "fingerprint", fingerprint)
		},
	})
}

// Forget closes the job's connections to its VM.
func (g *Guest) Forget(j job.Job) {
	g.endTunnel(j.ID) // first, because it would reconnect
	g.mu.Lock()
	known, ok := g.pools[j.ID]
	delete(g.pools, j.ID)
	g.mu.Unlock()
	if ok {
		known.pool.Close()
	}
}

// Close closes all connections.
func (g *Guest) Close() {
	g.mu.Lock()
	jobs := slices.Collect(maps.Keys(g.tunnels))
	g.mu.Unlock()
	for _, id := range jobs {
		g.endTunnel(id)
	}
	g.mu.Lock()
	known := g.pools
	g.pools = map[string]*pooled{}
	workspaces := g.workspaces
	g.workspaces = map[string]*workspace{}
	g.mu.Unlock()
	for _, k := range known {
		k.pool.Close()
	}
	for _, d := range workspaces {
		d.close()
	}
	g.closing.Wait()
}

// place is where a job has its files in its VM. The runner derives state and tmpfs from its own location.
type place struct {
	home  string // runner, task, settings
	state string // their status and output
	tmpfs string // token and secrets
}

// The directories of the top place, which are the parents of all other places.
const (
	topHome  = "/opt/job-runner"
	topState = "/var/lib/linus"
	topTmpfs = "/run/linus"
)

// place returns the job's place. A job that has a VM for itself uses the top directories; other
// jobs have theirs below.
func (g *Guest) place(j job.Job) place {
	if g.atTop(j) {
		return place{g.o.Root + topHome, g.o.Root + topState + "/job", g.o.Root + topTmpfs}
	}
	below := "/jobs/" + j.ID
	return place{g.o.Root + topHome + below, g.o.Root + topState + below, g.o.Root + topTmpfs + below}
}

// atTop reports whether the job's place is the top place of its VM.
func (g *Guest) atTop(j job.Job) bool { return j.VM != nil && j.VM.AllOf(j.ID) }

// Stop stops the task's whole process tree.
func (g *Guest) Stop(ctx context.Context, j job.Job, signal string) error {
	res, err := g.runner(ctx, j, "stop", signal)
	if missing(err) {
		return nil
	}
	return g.fault(ctx, "stop the task in", j, res, err)
}

// Probe returns the task's state. A VM without a runner has no task.
func (g *Guest) Probe(ctx context.Context, j job.Job) (job.RunState, error) {
	timed, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	res, err := g.runner(timed, j, "probe")
	if missing(err) {
		return job.RunState{}, nil
	}
	if err != nil {
		return job.RunState{}, g.fault(ctx, "probe the task in", j, res, err)
	}
	state, err := readState(res)
	if err != nil {
		return job.RunState{}, g.fault(ctx, "probe the task in", j, res, err)
	}
	return state, nil
}

// Sums returns the sha256 of the given number of leading bytes of both streams. They are empty if
// the VM returns none, which never equals the sum of any output.
func (g *Guest) Sums(ctx context.Context, j job.Job, stdout, stderr int64) (sums [2]string, err error) {
	res, err := g.runner(ctx, j, "sums", strconv.FormatInt(stdout, 10), strconv.FormatInt(stderr, 10))
	if err != nil {
		return sums, g.fault(ctx, "compare the output of the task in", j, res, err)
	}
	sums, _ = readSums(res)
	return sums, nil
}

// ReadOutput returns a part of a stream; nothing before the task has started.
func (g *Guest) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	if stream != job.Stdout && stream != job.Stderr {
		return nil, fmt.Errorf("read output: no stream %q", stream)
	}
	data, err := g.readFile(ctx, j, path.Join(g.place(j).state, stream), offset, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, g.fault(ctx, "read "+stream+" from", j, result.Result{}, err)
}

func (g *Guest) readFile(ctx context.Context, j job.Job, name string, offset, limit int64) (data []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = g.retry(ctx, j, func(pool *remote.Pool) error {
		data, err = pool.ReadRange(ctx, name, offset, limit)
		return err
	})
	return data, err
}

// runner runs one of the job runner's verbs.
func (g *Guest) runner(ctx context.Context, j job.Job, verb string, args ...string) (result.Result, error) {
	return g.runnerWith(ctx, j, nil, verb, args...)
}

// runnerWith is runner with stdin.
func (g *Guest) runnerWith(ctx context.Context, j job.Job, stdin []byte, verb string, args ...string) (res result.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nonce := rand.Text()
	env := map[string]string{"LINUS_NONCE": nonce}
	const run = `[ -e "$1" ] || exit 66; exec bash "$@"`
	line := remote.EnvLine(env, append([]string{"sh", "-c", run, "sh", g.place(j).home + "/job-runner.sh", verb}, args...)...)
	err = g.retry(ctx, j, func(pool *remote.Pool) error {
		out, err := pool.Output(ctx, remote.Command{Name: "job-runner " + verb, Line: line, Stdin: bytes.NewReader(stdin)}, maxAnswer)
		res, _ = result.Parse(bytes.NewReader(out), nonce, nil) // reading from memory cannot fail; Parse's limits are above maxAnswer
		return err
	})
	if err == nil && !res.Success() {
		err = fmt.Errorf("job-runner %s ended without a result", verb)
	}
	return res, err
}

// retry does work and repeats it once if the connection broke, so work must be repeatable.
func (g *Guest) retry(ctx context.Context, j job.Job, work func(*remote.Pool) error) error {
	pool, err := g.pool(ctx, j)
	if err != nil {
		return err
	}
	if err = work(pool); remote.ClassOf(err) == remote.Lost && ctx.Err() == nil {
		err = work(pool)
	}
	return err
}

// missing reports whether the VM has no runner. It does not rely on exit code 127: a VM that is out
// of processes or memory returns that, too, and has not lost its job.
func missing(err error) bool {
	var exit *remote.ExitError
	return errors.As(err, &exit) && exit.Code == 66
}

var remedies = map[job.HostClass]string{
	job.HostUnreachable: "check that the host reaches the VM (PROXMOX_BRIDGE, PROXMOX_VLAN_TAG, VM_IP_CONFIG) and that its SSH server runs",
	job.HostAuth:        "check that the VM's template applies the SSH key cloud-init gives it, and VM_SSH_USER",
	job.HostKeyChanged:  "another machine answers at the VM's address: look for an address in use twice",
}

// fault turns err into a *job.HostError, with the runner's own text if there is one. Nil stays nil,
// and the end of the caller's context is only wrapped.
func (g *Guest) fault(ctx context.Context, what string, j job.Job, res result.Result, err error) error {
	if err == nil {
		return nil
	}
	v := vm.VM{}
	if j.VM != nil {
		v = *j.VM
	}
	op := fmt.Sprintf("%s VM %d", what, v.ID)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	e := &job.HostError{Op: op, Host: v.User + "@" + v.IP, Class: remote.ClassOf(err).HostClass(), Text: res.Failure(), Remedy: res.Remedy(), Own: job.IsEngineFault(err)}
	var exit *remote.ExitError
	var host *job.HostError
	switch {
	case errors.As(err, &host): // the machine through which the VM is reached failed
		e.Class, e.Text, e.Remedy = job.HostUnreachable, host.Text, host.Remedy
	case e.Own:
		e.Class, e.Remedy = job.HostUnreachable, job.ExhaustedRemedy
	case errors.As(err, &exit):
		e.Class = exit.HostClass()
		if e.Class != job.HostInvalid && e.Class != job.HostDependency { // the runner has no other classes, whatever its VM says
			e.Class = job.HostVM
		}
	case e.Class == "" && errors.Is(err, context.DeadlineExceeded):
		e.Class = job.HostTimeout
	case e.Class == "":
		e.Class = job.HostVM
	}
	e.Text = cmp.Or(e.Text, strings.TrimSpace(term.Text(err.Error())))
	e.Remedy = cmp.Or(e.Remedy, remedies[e.Class])
	return e
}

// rename sets the host name of the running system, of its next boot, and in its own /etc/hosts.
// cloud-init does not touch a name that it has not set itself.
const rename = `old=$(hostname) && hostname "$1" && printf '%s\n' "$1" >/etc/hostname || exit 1
swap="s/(^|[[:space:]])$old([.[:space:]]|\$)/\1$1\2/g" # twice: two of them side by side share the blank between them
[ ! -f /etc/hosts ] || sed -i -E -e "$swap" -e "$swap" /etc/hosts || :`

// Rename sets the host name of the VM's system.
func (g *Guest) Rename(ctx context.Context, j job.Job, name string) error {
	const asRoot = `if [ "$(id -u)" = 0 ]; then s=; else s='sudo -n'; fi; $s sh -c "$2" linus "$1"`
	err := g.retry(ctx, j, func(pool *remote.Pool) error {
		return pool.Run(ctx, remote.Command{Name: "rename", Line: remote.Quote("sh", "-c", asRoot, "linus", name, rename)})
	})
	return g.fault(ctx, "rename", j, result.Result{}, err)
}

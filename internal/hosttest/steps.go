package hosttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

type step struct {
	name  string
	needs []string // the steps without which this one proves nothing
	quick bool     // also part of a quick test
	run   func(r *run, ctx context.Context) (text string, err error)
}

// The steps that others need, or that are used elsewhere.
const (
	stepCheck      = "check"
	stepBoot       = "boot"
	stepAgent      = "agent"
	stepJob        = "job"
	stepOutput     = "output"
	stepSuspend    = "suspend"
	stepCheckpoint = "checkpoint"
	stepRestore    = "restore"
	stepLAN        = "egress lan"
	stepRest       = "the rest"
	stepClean      = "nothing left"
)

// steps returns the steps of a test, in order; what was made is removed after them.
func steps() []step {
	boot, jobs := []string{stepBoot}, []string{stepJob}
	all := []step{
		{stepCheck, nil, true, (*run).check},
		{stepBoot, []string{stepCheck}, true, (*run).boot},
		{stepAgent, boot, false, (*run).agent},
		{"address", []string{stepAgent}, false, (*run).address},
		{stepJob, boot, true, (*run).job},
		{stepOutput, jobs, false, (*run).output},
		{"exit code", []string{stepOutput}, false, (*run).exitCode},
		{"cancel", jobs, true, (*run).cancelJob},
		{"snapshot", jobs, false, (*run).snapshot},
		{stepSuspend, jobs, false, (*run).suspend},
		{"resume", []string{stepSuspend}, false, (*run).resume},
		{stepCheckpoint, boot, false, (*run).checkpoint},
		{stepRestore, []string{stepJob, stepCheckpoint}, false, (*run).restore},
		{"fork", jobs, false, (*run).fork},
		{"volume", jobs, false, (*run).volume},
	}
	for _, mode := range vm.Egresses {
		needs := []string{stepLAN} // otherwise it is not known whether there is anything to reach
		if mode == vm.EgressLAN {
			needs = boot
		}
		all = append(all, step{"egress " + string(mode), needs, false, func(r *run, ctx context.Context) (string, error) { return r.egress(ctx, mode) }})
	}
	return append(all,
		step{"lease", boot, false, (*run).lease},
		step{"destroy", boot, true, (*run).destroy},
	)
}

// check checks whether the host can run jobs at all, and records the facts that the test holds for.
func (r *run) check(ctx context.Context) (string, error) {
	report, err := r.t.o.Engine.CheckHost(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range report.Checks {
		switch {
		case c.Node != "" && c.Node != r.test.Node:
		case c.Level == "fail":
			return "", &job.HostError{Op: "check " + c.Name, Text: c.Text, Remedy: c.Remedy}
		case c.Name == "nft":
			r.nft = c
		}
	}
	r.test.Of = job.HostFacts{Node: r.test.Node}
	if at := slices.IndexFunc(report.Facts, func(f job.HostFacts) bool { return f.Node == r.test.Node }); at >= 0 {
		r.test.Of = report.Facts[at]
	}
	return fmt.Sprintf("Proxmox VE %s, VMs on %s", r.test.Of.Proxmox, r.test.Of.Storage), nil
}

func (r *run) boot(ctx context.Context) (string, error) {
	v, err := r.create(ctx, "main", vm.Network{Egress: vm.EgressLAN})
	if r.main = v; err == nil && v.Status != vm.Running {
		err = fmt.Errorf("the VM is %s", v.Status)
	}
	return "", err
}

// agent looks at the guest through Proxmox, not the network.
func (r *run) agent(ctx context.Context) (string, error) {
	seen, err := r.t.o.Host.Look(ctx, r.main.VM)
	if r.seen = seen; err == nil && seen.BootID == "" {
		err = &job.HostError{Op: "ask the guest agent", Text: "it does not answer", Remedy: "install and start qemu-guest-agent in the template"}
	}
	return "", err
}

func (r *run) address(context.Context) (string, error) {
	if r.seen.IP == "" || r.seen.IP != r.main.IP {
		return "", fmt.Errorf("the VM is reached at %q, but its agent reports %q", r.main.IP, r.seen.IP)
	}
	return "", nil
}

// job makes a job report the VM's identity, for later steps.
func (r *run) job(ctx context.Context) (string, error) {
	who, err := r.identify(ctx, r.main)
	r.who = who
	return "", err
}

// output checks that every byte of a long output comes back, from a job that fails.
func (r *run) output(ctx context.Context) (text string, err error) {
	const lines = 20000
	if r.wrote, err = r.ran(ctx, r.main.Name, fmt.Sprintf(`seq %d; printf 'caf\303\251 \377' >&2; exit 7`, lines)); err != nil {
		return "", err
	}
	var want strings.Builder
	for i := range lines {
		want.WriteString(strconv.Itoa(i+1) + "\n")
	}
	if string(r.wrote.Stdout) != want.String() || string(r.wrote.Stderr) != "caf\303\251 \377" {
		return "", fmt.Errorf("%d bytes came back of %d, and of stderr %.80q", len(r.wrote.Stdout), want.Len(), r.wrote.Stderr)
	}
	return fmt.Sprintf("%d bytes", want.Len()), nil
}

func (r *run) exitCode(context.Context) (string, error) {
	if w := r.wrote; w.ExitCode == nil || *w.ExitCode != 7 || w.Status != job.Failed {
		return "", fmt.Errorf("a job that exits with 7 ended as %s (%s)", w.Status, w.Reason)
	}
	return "", nil
}

// cancelJob ends a job that would keep running, with all its processes.
func (r *run) cancelJob(ctx context.Context) (string, error) {
	at := r.test.CreatedAt
	seconds := fmt.Sprintf("%d.%09d", 80000+at.Second(), at.Nanosecond()) // no other process sleeps for this time
	j, err := r.start(ctx, r.main.Name, "sleep "+seconds)
	for err == nil && j.Status != job.Running {
		if j.Status.Terminal() {
			return "", errors.New("the job ended before it was cancelled")
		}
		if err = r.pause(ctx); err == nil {
			j, err = r.t.o.Engine.Job(ctx, j.ID)
		}
	}
	if err == nil {
		err = r.t.o.Engine.Cancel(ctx, j.ID)
	}
	if err == nil {
		j, err = r.await(ctx, j.ID)
	}
	if err != nil {
		return "", err
	}
	if j.Outcome.Reason != job.ReasonCancelled {
		return "", fmt.Errorf("it ended as %s", j.Outcome.Reason)
	}
	left, err := r.says(ctx, r.main.Name, `for p in /proc/[0-9]*; do tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -x 'sleep `+seconds+` ' || :; done`)
	if err == nil && left != "" {
		err = errors.New("its process still runs")
	}
	return "", err
}

// The files that note and noted write and read, in a VM's memory and on its disk.
const (
	inMemory = "/dev/shm/linus-host-test"
	onDisk   = `"$HOME/linus-host-test"`
)

func (r *run) note(ctx context.Context, in, file, text string) error {
	_, err := r.says(ctx, in, "echo "+text+" >"+file+"; chmod 666 "+file+"; sync")
	return err
}

func (r *run) noted(ctx context.Context, in, file, want string) error {
	is, err := r.says(ctx, in, "cat "+file)
	if err == nil && is != want {
		err = fmt.Errorf("%s of VM %s has %q, and not %q", file, in, is, want)
	}
	return err
}

func (r *run) snapshot(ctx context.Context) (string, error) {
	const name = "host-test"
	e, main := r.t.o.Engine, r.main
	return "", inTurn(
		func() error { return r.note(ctx, main.Name, onDisk, "before") },
		func() error { return only(e.SnapshotVM(ctx, main.Job, name, false)) },
		func() error { return r.note(ctx, main.Name, onDisk, "after") },
		func() error { return only(e.RevertVM(ctx, main.Job, name)) },
		func() error { return r.noted(ctx, main.Name, onDisk, "before") },
		func() error { return only(e.DeleteSnapshot(ctx, main.Job, name)) },
	)
}

func (r *run) suspend(ctx context.Context) (string, error) {
	return "", inTurn(
		func() error { return r.note(ctx, r.main.Name, inMemory, "suspended") },
		func() error { return only(r.t.o.Engine.SuspendVM(ctx, r.main.Job)) },
		func() error { return r.status(ctx, r.main, vm.Suspended) },
	)
}

func (r *run) resume(ctx context.Context) (string, error) {
	return "", inTurn(
		func() error { return only(r.t.o.Engine.ResumeVM(ctx, r.main.Job)) },
		func() error { return r.noted(ctx, r.main.Name, inMemory, "suspended") },
	)
}

// inTurn calls the functions in order, up to the first that fails.
func inTurn(things ...func() error) error {
	for _, do := range things {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func only[T any](_ T, err error) error { return err }

func (r *run) status(ctx context.Context, v job.VMInfo, want vm.Status) error {
	is, err := r.t.o.Host.Status(ctx, v.VM)
	if err == nil && is != want {
		err = fmt.Errorf("VM %s is %s", v.Name, is)
	}
	return err
}

func (r *run) checkpoint(ctx context.Context) (string, error) {
	c, err := r.t.o.Engine.CreateCheckpoint(ctx, job.CheckpointSpec{Template: r.test.Template, Resources: size, Node: r.pin()})
	for err == nil && c.Status == job.CheckpointMaking {
		if err = r.pause(ctx); err == nil {
			c, err = r.t.o.Engine.Checkpoint(ctx, c.ID)
		} else {
			err = fmt.Errorf("%w: %s", err, c.Text)
		}
	}
	switch {
	case err != nil:
		return "", err
	case c.Status == job.CheckpointReady:
		return fmt.Sprintf("%d MiB of memory", c.Bytes>>20), nil
	}
	return "", r.unable(ctx, c.ID, c.Text)
}

// restore starts two VMs from the checkpoint side by side. Neither may share its identity with the
// other, or with the VM that has booted.
func (r *run) restore(ctx context.Context) (string, error) {
	var all sync.WaitGroup
	vms, errs := make([]job.VMInfo, 2), make([]error, 2)
	for i := range vms {
		all.Go(func() {
			vms[i], errs[i] = r.create(ctx, fmt.Sprintf("restored-%d", i+1), vm.Network{Egress: vm.EgressLAN})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	r.other = vms[1]
	them := []identity{r.who}
	for _, v := range vms {
		if v.From == "" {
			return "", fmt.Errorf("VM %s has booted: %s", v.Name, r.warnings(ctx, v.Job))
		}
		who, err := r.identify(ctx, v)
		if err != nil {
			return "", err
		}
		them = append(them, who)
	}
	return strings.Join(r.who.names(), ", ") + " are each VM's own", apart(them...)
}

// warnings returns a VM's events that say what went wrong.
func (r *run) warnings(ctx context.Context, id string) string {
	events, _, err := r.t.o.Engine.Watch(ctx, id, 0)
	if err != nil {
		return err.Error()
	}
	var texts []string
	for _, e := range events {
		if e.Kind == job.EventWarning {
			texts = append(texts, e.Text)
		}
	}
	return strings.Join(texts, "; ")
}

func (r *run) fork(ctx context.Context) (string, error) {
	if err := r.note(ctx, r.main.Name, inMemory, "forked"); err != nil {
		return "", err
	}
	made, err := r.t.o.Engine.ForkVM(ctx, job.ForkSpec{VM: r.main.Job, Count: 1, Name: r.name("copy"), TTL: ttl})
	if err != nil {
		return "", err
	}
	copied := made.VMs[0]
	if r.other.ID == 0 {
		r.other = copied
	}
	if made.Live {
		if err := r.noted(ctx, copied.Name, inMemory, "forked"); err != nil {
			return "", err
		}
	}
	who, err := r.identify(ctx, copied)
	if err == nil {
		err = apart(r.who, who)
	}
	return made.Point().Text(), err
}

func (r *run) volume(ctx context.Context) (string, error) {
	const at = "/srv/linus-host-test"
	e, main := r.t.o.Engine, r.main
	v, err := e.CreateVolume(ctx, job.VolumeSpec{Name: r.name("volume"), Size: "1G", Node: r.pin(), Storage: r.test.Storage})
	if err != nil {
		return "", err
	}
	attach := func() error {
		return only(e.AttachVolume(ctx, job.VolumeAttach{Volume: v.ID, VM: main.Job, Path: at}))
	}
	detach := func() error { return only(e.DetachVolume(ctx, v.ID, main.Job)) }
	return "", inTurn(
		attach,
		func() error { return r.note(ctx, main.Name, at+"/note", "kept") },
		detach,
		func() error { return only(r.says(ctx, main.Name, "! test -e "+at+"/note")) },
		attach,
		func() error { return r.noted(ctx, main.Name, at+"/note", "kept") },
		detach,
		func() error { return only(e.RemoveVolume(ctx, v.ID)) },
	)
}

// egress makes a VM with the mode try to reach the one machine that is known to exist: the VM that
// has booted, at its SSH port. Whether public addresses can be reached depends on the site.
func (r *run) egress(ctx context.Context, mode vm.Egress) (string, error) {
	target, err := netip.ParseAddr(r.main.IP)
	if err != nil {
		return "", err
	}
	if mode != vm.EgressLAN && r.nft.Level == "warn" {
		return "", &cannot{r.nft.Text, r.nft.Remedy}
	}
	n := vm.Network{Egress: mode}
	if mode == vm.EgressAllow {
		n.Allow = []string{"host-test.invalid"}
	}
	v, err := r.create(ctx, "egress-"+string(mode), n)
	if err != nil {
		return "", err
	}
	report, err := r.t.o.Engine.Network(ctx, job.NetworkQuery{VM: v.Job, Targets: []string{net.JoinHostPort(target.String(), strconv.Itoa(cmp.Or(r.t.o.Port, 22)))}})
	if err != nil {
		return "", err
	}
	got := job.ResultUnknown
	if len(report.Attempts) > 0 {
		got = report.Attempts[0].Result
	}
	want := mode == vm.EgressLAN || mode == vm.EgressInternet && job.IsPublic(target)
	switch {
	case report.Mode != mode:
		err = fmt.Errorf("the host has the mode %q", report.Mode)
	case report.Problem != "":
		err = errors.New(report.Problem)
	case mode != vm.EgressLAN && target.IsLoopback(): // in the lab
		err = &cannot{text: "the host has its rules, which do not hold where VMs are on its loopback"}
	case got == job.ResultUnknown || want != (got == job.ResultConnected):
		err = fmt.Errorf("a connection to another VM: %s", got)
	}
	if err != nil {
		return "", err
	}
	_, err = r.t.o.Engine.DestroyVM(ctx, v.Job)
	return "another VM: " + string(got), err
}

// leaseEnds is how soon the host is told to end a VM.
const leaseEnds = time.Second

// lease makes the host end a VM by itself, as it would if no engine ever came back.
func (r *run) lease(ctx context.Context) (string, error) {
	if r.t.o.Lease == 0 {
		return "", &cannot{"VMs have no lease: LEASE_HOURS is 0", "set LEASE_HOURS, or nothing ends VMs where no engine comes back"}
	}
	if r.other.ID == 0 {
		v, err := r.create(ctx, "lease", vm.Network{Egress: vm.EgressLAN})
		if err != nil {
			return "", err
		}
		r.other = v
	}
	for renewed := job.LeaseKept; renewed == job.LeaseKept; { // the host may be working on its leases
		room, err := r.t.o.Host.Room(ctx, nil, []job.Watched{{VM: r.other.VM, Renew: leaseEnds}})
		if err != nil {
			return "", err
		}
		if renewed = room.Leases[r.other.Job]; renewed == job.LeaseKept {
			if err := r.pause(ctx); err != nil {
				return "", fmt.Errorf("%w: the host has no lease of VM %s", err, r.other.Name)
			}
		}
	}
	began := time.Now()
	if err := r.until(ctx, r.other, vm.Gone); err != nil {
		return "", fmt.Errorf("%w; look at: systemctl status linus-sweep.timer", err)
	}
	return fmt.Sprintf("the host ended it after %s", time.Since(began).Round(time.Second)), nil
}

func (r *run) destroy(ctx context.Context) (string, error) {
	err := only(r.t.o.Engine.DestroyVM(ctx, r.main.Job))
	if err != nil {
		return "", err
	}
	return "", r.until(ctx, r.main, vm.Gone)
}

func (r *run) until(ctx context.Context, v job.VMInfo, want vm.Status) error {
	for {
		err := r.status(ctx, v, want)
		if err == nil {
			return nil
		}
		if waited := r.pause(ctx); waited != nil {
			return errors.Join(waited, err)
		}
	}
}

// identity is what a network or a program tells a VM apart by, value by name.
type identity map[string]string

// identities is a script that prints what no two VMs may share, one command's output each.
const identities = `
echo "host name=$(hostname)"
echo "machine ID=$(cat /etc/machine-id)"
echo "MAC=$(cat /sys/class/net/e*/address | sort | tr '\n' ' ')"
echo "SSH host keys=$(cat /etc/ssh/ssh_host_*_key.pub | cut -d' ' -f2 | sort | tr '\n' ' ')"
echo "cloud-init instance=$(cat /var/lib/cloud/data/instance-id)"
echo "random numbers=$(head -c 32 /dev/urandom | sha256sum | cut -c1-64)"
`

func (r *run) identify(ctx context.Context, v job.VMInfo) (identity, error) {
	said, err := r.says(ctx, v.Name, identities)
	if err != nil {
		return nil, err
	}
	who := identity{"address": v.IP, "pinned host key": v.HostKey}
	for line := range strings.Lines(said) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		who[name] = value
	}
	for _, name := range who.names() {
		if strings.TrimSpace(who[name]) == "" {
			return nil, fmt.Errorf("VM %s has no %s", v.Name, name)
		}
	}
	return who, nil
}

func (i identity) names() []string { return slices.Sorted(maps.Keys(i)) }

// apart returns an error if two VMs share something.
func apart(all ...identity) error {
	for i, a := range all {
		for _, b := range all[:i] {
			for _, name := range a.names() {
				if a[name] == b[name] {
					return fmt.Errorf("two VMs have the same %s", name)
				}
			}
		}
	}
	return nil
}

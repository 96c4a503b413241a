package providertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// fakeSteps are create-vm's steps.
var fakeSteps = []string{
	"validate_environment", "allocate_vm_id", "download_os_image", "create_vm", "configure_vm",
	"start_vm", "wait_for_network", "verify_ssh_ready", "output_result",
}

// FakeTemplate can be cloned on a Fake.
const FakeTemplate = "agent-template"

const fakeHost = "root@pve.example:22"

func fault(op string, class job.HostClass, text, remedy string) error {
	return &job.HostError{Op: op, Host: fakeHost, Class: class, Text: text, Remedy: remedy}
}

// Check reports that everything is in order.
func (f *Fake) Check(context.Context) (job.HostReport, error) {
	return job.HostReport{Host: fakeHost, Node: "pve", OK: true, Checks: []job.Check{
		{Name: "node", Level: "ok", Text: "node 'pve' is online"},
		{Name: "template", Level: "ok", Text: "template '" + FakeTemplate + "' is VM 9000"},
		{Name: "kvm", Level: "warn", Text: "there is no KVM", Remedy: "enable virtualisation"},
	}}, nil
}

// CallbackHost returns an address reserved for documentation.
func (f *Fake) CallbackHost(context.Context) (string, error) { return "192.0.2.1", nil }

// Create goes through the steps of create-vm.
func (f *Fake) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	f.mu.Lock()
	b := f.behaviour
	f.stats.Creates++
	f.mu.Unlock()
	op := "create VM " + spec.Name
	v := vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}
	if b.Warning != "" {
		progress(job.Progress{Warning: b.Warning})
	}
	reserved := 0
	undo := func(err error) (vm.VM, error) {
		f.Vanish(reserved)
		if reserved == 0 {
			err = job.Uncreated(err)
		}
		return v, err
	}
	for i, step := range fakeSteps {
		if ctx.Err() == nil {
			progress(job.Progress{Step: step, Text: "fake " + step, N: i + 1, Of: len(fakeSteps)})
		}
		if err := cmp.Or(sleep.For(ctx, b.StepDelay), context.Cause(ctx)); err != nil {
			return undo(fault(op, job.HostCancelled, "stopped by a signal while: "+step, ""))
		}
		switch {
		case step == b.FailStep && b.Fail != nil:
			return undo(b.Fail)
		case step == b.FailStep:
			return undo(fault(op, job.HostVM, "made to fail at "+step, "do not ask for it"))
		case step == "validate_environment" && unknownTemplateOf(op, spec) != nil:
			return undo(unknownTemplateOf(op, spec))
		case step == "validate_environment" && !f.fits(spec):
			return undo(fault(op, job.HostUnfit, fmt.Sprintf("VM %d is no checkpoint that fits", spec.Checkpoint), "make another"))
		case step == "validate_environment" && !f.forkable(spec.Fork):
			return undo(fault(op, job.HostConfig, fmt.Sprintf("VM %d cannot be copied: it has no snapshot with its memory", spec.Fork.VM), "look at it"))
		case step == "create_vm":
			id, err := f.reserve(op, &v, spec.Network)
			if err != nil {
				return undo(err)
			}
			reserved = id
			if !b.LateID {
				v.ID = id
				progress(job.Progress{VMID: id})
			}
			if !held(ctx, b.Hold) {
				return undo(fault(op, job.HostCancelled, "stopped by a signal while: "+step, ""))
			}
		}
	}
	if b.LateID {
		return v, fault(op, job.HostUnreachable, "the connection ended before the command's exit status came", "try again")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms[v.ID] == nil {
		return v, fault(op, job.HostVM, fmt.Sprintf("VM %d is gone", v.ID), "")
	}
	return f.reached(f.vms[v.ID]), nil
}

// unknownTemplateOf returns an error if the spec's template does not exist.
func unknownTemplateOf(op string, spec job.VMSpec) error {
	if spec.Fork.VM != 0 || spec.OS != "" || spec.Template == FakeTemplate || spec.Template == "9000" {
		return nil
	}
	return fault(op, job.HostConfig, fmt.Sprintf("template '%s' does not exist on node 'pve'", spec.Template), "name one that does")
}

// reached returns a VM as its guest reports it. The caller holds f.mu.
func (f *Fake) reached(v *fakeVM) vm.VM {
	if f.behaviour.Reach != nil {
		return f.behaviour.Reach(v.VM)
	}
	return v.VM
}

// reserve allocates an ID for v, as qm clone does.
func (f *Fake) reserve(op string, v *vm.VM, n vm.Network) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.vms {
		if other.Name == v.Name {
			return 0, fault(op, job.HostExists, fmt.Sprintf("VM already exists: '%s' is VM %d on node 'pve'", v.Name, other.ID), "choose another name")
		}
	}
	made := *v
	made.ID = f.nextID
	f.nextID++
	made.Node, made.User, made.State = "pve", "debian", vm.Created
	made.IP = fmt.Sprintf("10.99.%d.%d", made.ID/250, made.ID%250+1)
	made.HostKey = "ssh-ed25519 AAAAfake" + strconv.Itoa(made.ID)
	f.vms[made.ID] = &fakeVM{VM: made, mode: n.Mode()}
	f.stats.MostVMs = max(f.stats.MostVMs, len(f.vms))
	return made.ID, nil
}

// Destroy removes a VM that is proven.
func (f *Fake) Destroy(ctx context.Context, v vm.VM) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Destroys++
	op := fmt.Sprintf("destroy VM %d (%s)", v.ID, v.Name)
	if err := asked(ctx, op, &f.behaviour.Destroys); err != nil {
		return err
	}
	there := f.vms[v.ID]
	switch {
	case v.ID == 0:
		return nil // an unfinished create, which a Fake never has
	case v.ID < 100:
		return fault(op, job.HostInvalid, fmt.Sprintf("VM_ID '%d' is not a VM ID", v.ID), "give one from 100")
	case there == nil:
		return nil
	case there.another(v):
		return fault(op, job.HostForeign, fmt.Sprintf("refused to destroy VM %d: it is another VM by now; nothing was touched", v.ID), "check what it is")
	case !there.is(v):
		return fault(op, job.HostLeftAlone, fmt.Sprintf("refused to destroy VM %d: it is not proven ours; nothing was touched", v.ID), "destroy it by hand")
	}
	delete(f.vms, v.ID)
	for _, volume := range f.volumes {
		delete(volume.has, v.Job)
	}
	return nil
}

// ForgetVM refuses a VM that is proven, and records the names of others.
func (f *Fake) ForgetVM(_ context.Context, v vm.VM) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if there := f.vms[v.ID]; there != nil && there.is(v) {
		return fault(fmt.Sprintf("forget VM %d (%s)", v.ID, v.Name), job.HostVM, "it is proven", "destroy it")
	}
	f.stats.Forgotten = append(f.stats.Forgotten, v.Name)
	return nil
}

// List returns every proven VM that is neither a checkpoint nor a template.
func (f *Fake) List(ctx context.Context) ([]vm.VM, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Lists++
	if err := asked(ctx, "list VMs", &f.behaviour.Lists); err != nil {
		return nil, err
	}
	var list []vm.VM
	for _, id := range slices.Sorted(maps.Keys(f.vms)) {
		if v := f.vms[id]; !v.foreign && !v.doubted && !v.saved {
			list = append(list, vm.VM{ID: id, Name: v.Name, Node: v.Node, Job: v.Job, Owner: v.Owner, State: vm.Created, Status: f.status(v.VM)})
		}
	}
	return list, nil
}

// Status returns a VM's status.
func (f *Fake) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := asked(ctx, fmt.Sprintf("check VM %d (%s)", v.ID, v.Name), &f.behaviour.Statuses); err != nil {
		return vm.Unknown, err
	}
	return f.status(v), nil
}

// Look returns a VM's status, address and boot.
func (f *Fake) Look(ctx context.Context, v vm.VM) (job.Seen, error) {
	status, err := f.Status(ctx, v)
	seen := job.Seen{Status: status}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Looks++
	if there := f.vms[v.ID]; err == nil && status == vm.Running && there != nil {
		seen.IP, seen.BootID = there.IP, there.bootID()
	}
	return seen, err
}

// status is Status without errors. The caller holds f.mu.
func (f *Fake) status(v vm.VM) vm.Status {
	there := f.vms[v.ID]
	if f.volumes[v.Job] != nil { // a volume's holder, not a VM
		return vm.Unproven
	}
	switch {
	case there == nil || there.another(v):
		return vm.Gone
	case !there.is(v):
		return vm.Unproven
	case there.suspended:
		return vm.Suspended
	case there.stopped:
		return vm.Stopped
	}
	return vm.Running
}

// Plan returns one command.
func (f *Fake) Plan(_ context.Context, spec job.VMSpec) ([]string, error) {
	if err := unknownTemplateOf("plan VM "+spec.Name, spec); err != nil {
		return nil, err
	}
	return []string{"qm clone 9000 <id> --name " + spec.Name}, nil
}

// proven returns the VM of a provider call, the call's error from Behaviour, or an error if the VM
// is not proven. The caller holds f.mu.
func (f *Fake) proven(ctx context.Context, op string, v vm.VM) (*fakeVM, error) {
	op = fmt.Sprintf("%s VM %d (%s)", op, v.ID, v.Name)
	if err := asked(ctx, op, &f.behaviour.Powers); err != nil {
		return nil, err
	}
	there := f.vms[v.ID]
	if there == nil || !there.is(v) {
		return nil, fault(op, job.HostVM, fmt.Sprintf("VM %d is not proven ours; nothing was touched", v.ID), "check what it is")
	}
	return there, nil
}

// with holds f.mu and calls do with a proven VM.
func (f *Fake) with(ctx context.Context, op string, v vm.VM, do func(there *fakeVM) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.proven(ctx, op, v)
	if err != nil {
		return err
	}
	return do(there)
}

// awake is like with, but refuses a suspended VM.
func (f *Fake) awake(ctx context.Context, op string, v vm.VM, do func(there *fakeVM) error) error {
	return f.with(ctx, op, v, func(there *fakeVM) error {
		if there.suspended {
			return fault(op, job.HostVM, "the VM is suspended; nothing was touched", "resume it first")
		}
		return do(there)
	})
}

// StartVM starts a VM, perhaps with another address.
func (f *Fake) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	err := f.with(ctx, "start", v, func(there *fakeVM) error {
		v = f.boot(there, progress)
		return nil
	})
	return v, err
}

// boot starts a VM that does not run. The caller holds f.mu.
func (f *Fake) boot(there *fakeVM, progress func(job.Progress)) vm.VM {
	progress(job.Progress{Step: "start_vm", Text: "fake start", N: 1, Of: 1})
	if there.stopped {
		there.jobs = nil
		there.boots++
	}
	if there.stopped || there.suspended {
		there.stopped, there.suspended = false, false
		there.IP = fmt.Sprintf("10.98.%d.%d", there.ID/250, there.ID%250+1)
	}
	return f.reached(there)
}

// StopVM stops a VM, and what runs in it.
func (f *Fake) StopVM(ctx context.Context, v vm.VM) error {
	return f.awake(ctx, "stop", v, func(there *fakeVM) error {
		there.stopped = true
		f.unmount(there.Job)
		return nil
	})
}

// SaveCheckpoint makes a checkpoint of a running VM.
func (f *Fake) SaveCheckpoint(ctx context.Context, v vm.VM, progress func(job.Progress)) (made vm.Checkpoint, err error) {
	err = f.with(ctx, "save a checkpoint of", v, func(there *fakeVM) error {
		progress(job.Progress{Step: "save_state", Text: "fake save_state", N: 1, Of: 1})
		there.saved = true
		made = vm.Checkpoint{Generation: "1", Host: "fake QEMU", Bytes: 64 << 20}
		return nil
	})
	return made, err
}

// Templates returns the templates made by SaveVM.
func (f *Fake) Templates(context.Context) (all []vm.VM, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.vms {
		if v.madeOf != "" {
			all = append(all, v.VM)
		}
	}
	return all, nil
}

// SaveVM makes a template of a VM; List does not return templates.
func (f *Fake) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (saved job.SavedTemplate, err error) {
	template := job.SavedTemplate{
		Name: spec.Name, VMID: v.ID, Node: "pve", InPlace: spec.InPlace, Left: []string{"/root/work"},
		Saved: vm.Provenance{VM: v.Name, Template: v.Template, By: spec.By, At: snapshotTime},
	}
	f.mu.Lock()
	made := f.vms[v.ID]
	again := spec.InPlace && made != nil && made.madeOf == v.Job && made.Name == spec.Name // by a call that was cut off
	f.mu.Unlock()
	if again {
		return template, nil
	}
	err = f.awake(ctx, "save", v, func(*fakeVM) error {
		for id, other := range f.vms {
			if other.Name == spec.Name {
				return fault("save", job.HostExists, fmt.Sprintf("VM already exists: '%s' is VM %d on node 'pve'", spec.Name, id), "choose another name")
			}
		}
		progress(job.Progress{Step: "clean_vm", Text: "fake clean_vm", N: 1, Of: 1})
		if !spec.InPlace {
			template.VMID = f.nextID
			f.nextID++
		}
		made := &fakeVM{VM: v, saved: true, madeOf: v.Job}
		made.ID, made.Name, made.Job = template.VMID, spec.Name, uuid.NewString()
		f.vms[made.ID], saved = made, template
		return nil
	})
	return saved, err
}

// fits reports whether the spec's checkpoint is usable, or the spec names none.
func (f *Fake) fits(spec job.VMSpec) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := f.vms[spec.Checkpoint]
	return spec.Checkpoint == 0 || there != nil && there.saved && !f.behaviour.Unfit
}

// ForkVM makes a running VM ready to be copied.
func (f *Fake) ForkVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (point job.ForkPoint, err error) {
	err = f.with(ctx, "fork", v, func(there *fakeVM) error {
		if there.stopped || there.suspended {
			return fault("fork", job.HostVM, "the VM does not run", "start it first")
		}
		progress(job.Progress{Step: "power_vm", Text: "fake fork", N: 1, Of: 1})
		if f.behaviour.ForkFromDisk {
			point = job.ForkPoint{Why: "its storage clones no snapshot"}
			return nil
		}
		there.forked = true
		point = job.ForkPoint{Live: true, Why: "its storage clones a snapshot with memory", PauseMS: 120}
		return nil
	})
	return point, err
}

// EndFork makes the VM no longer copyable with its memory.
func (f *Fake) EndFork(ctx context.Context, v vm.VM) error {
	return f.with(ctx, "end the fork of", v, func(there *fakeVM) error {
		there.forked = false
		return nil
	})
}

// ForkPoints returns the VMs that can be copied with their memory.
func (f *Fake) ForkPoints() (ids []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, v := range f.vms {
		if v.forked {
			ids = append(ids, id)
		}
	}
	return ids
}

// forkable reports whether the VM that a spec copies can be copied, or the spec copies none.
func (f *Fake) forkable(of job.ForkOf) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := f.vms[of.VM]
	return of.VM == 0 || there != nil && there.Job == of.Job && (there.forked || !of.Live)
}

// SuspendVM suspends a VM and keeps what runs in it.
func (f *Fake) SuspendVM(ctx context.Context, v vm.VM) error {
	return f.with(ctx, "suspend", v, func(there *fakeVM) error {
		if there.stopped {
			return fault("suspend", job.HostVM, "the VM is stopped", "start it first")
		}
		there.suspended = true
		return nil
	})
}

// ResumeVM continues a suspended VM, perhaps with another address.
func (f *Fake) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	err := f.with(ctx, "resume", v, func(there *fakeVM) error {
		if there.stopped {
			return fault("resume", job.HostVM, "the VM is stopped, not suspended", "start it")
		}
		v = f.boot(there, progress)
		return nil
	})
	return v, err
}

// SnapshotVM records a name, and whether the snapshot includes the VM's memory.
func (f *Fake) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	return f.awake(ctx, "snapshot", v, func(there *fakeVM) error {
		if _, taken := there.snapshots[name]; taken {
			return fault("snapshot", job.HostVM, fmt.Sprintf("snapshot name '%s' already used", name), "choose another name")
		}
		boots := -1
		switch {
		case memory && there.stopped:
			return fault("snapshot", job.HostVM, "the VM is stopped: it has no memory to save", "start it first")
		case memory:
			boots = there.boots
		}
		if there.snapshots == nil {
			there.snapshots = map[string]int{}
		}
		there.snapshots[name], there.current = boots, name
		return nil
	})
}

// Snapshots returns the snapshots that SnapshotVM has recorded, by name and without sizes.
func (f *Fake) Snapshots(ctx context.Context, v vm.VM) (all []job.Snapshot, err error) {
	err = f.with(ctx, "list snapshots", v, func(there *fakeVM) error {
		all = []job.Snapshot{}
		for _, name := range slices.Sorted(maps.Keys(there.snapshots)) {
			all = append(all, job.Snapshot{Name: name, CreatedAt: snapshotTime, Memory: there.snapshots[name] >= 0, Current: name == there.current})
		}
		return nil
	})
	return all, err
}

var snapshotTime = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// DeleteSnapshot removes a name.
func (f *Fake) DeleteSnapshot(ctx context.Context, v vm.VM, name string) error {
	return f.awake(ctx, "delete snapshot", v, func(there *fakeVM) error {
		if _, taken := there.snapshots[name]; !taken {
			return noSnapshot("delete snapshot", name)
		}
		delete(there.snapshots, name)
		if there.current == name {
			there.current = ""
		}
		return nil
	})
}

func noSnapshot(op, name string) error {
	return fault(op, job.HostVM, fmt.Sprintf("snapshot '%s' does not exist", name), "take one first")
}

// RevertVM restarts a VM, or returns it to the boot in the snapshot's memory.
func (f *Fake) RevertVM(ctx context.Context, v vm.VM, name string, progress func(job.Progress)) (vm.VM, error) {
	err := f.awake(ctx, "revert", v, func(there *fakeVM) error {
		boots, taken := there.snapshots[name]
		switch {
		case !taken:
			return noSnapshot("revert", name)
		case boots < 0:
			there.stopped, there.current = true, name
		default:
			there.stopped, there.suspended, there.boots, there.current = false, true, boots, name
		}
		v = f.boot(there, progress)
		return nil
	})
	return v, err
}

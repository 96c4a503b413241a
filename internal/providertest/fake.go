package providertest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
)

// Behaviour is what a Fake does. The zero value makes VMs at once, and tasks
// that print nothing and succeed at once.
type Behaviour struct {
	StepDelay time.Duration // of each step of Create
	FailStep  string        // Create fails at this step, e.g. "start_vm", after undoing its work
	Fail      error         // with this; nil: a *job.HostError of class HostVM
	Warning   string        // told while Create works

	// Errors the calls answer, in order; nil in between lets a call through.
	// A list used up lets all through.
	Destroys, Lists, Pushes, Starts, Probes, Reads, Stops, Powers, Inputs, Statuses []error

	// Ways are what Callbacks finds, in order; a list used up: direct.
	Ways []executor.CallbackWay

	// Task says what a job's task does. Nil: succeed in silence.
	Task func(executor.Payload) Task
	// OnStart is told of each task as it starts, from a goroutine of Start.
	OnStart func(job.Job, executor.Payload)
	// LateID: Create fails at the end without ever telling the VM's ID, and
	// leaves the VM, as after a lost connection.
	LateID bool
}

// Task is what a task does in a fake VM.
type Task struct {
	Stdout, Stderr []byte
	ExitCode       int
	Until          <-chan struct{} // it runs until this is closed; nil: no longer than For
	For            time.Duration   // how long it runs without Until
	Ahead          time.Duration   // by so much longer the VM's clock says it has run

	Echo      bool              // what comes on its open stdin it prints; the end of stdin ends it
	Artifacts map[string][]byte // files it leaves, by relative path
}

// fakeSteps are create-vm's steps.
var fakeSteps = []string{
	"validate_environment", "allocate_vm_id", "download_os_image", "create_vm", "configure_vm",
	"start_vm", "wait_for_network", "verify_ssh_ready", "output_result",
}

// FakeTemplate can be cloned on a Fake.
const FakeTemplate = "agent-template"

// Fake is a hypervisor and its guests in memory: a Provider and a Guest.
type Fake struct {
	mu        sync.Mutex
	behaviour Behaviour
	vms       map[int]*fakeVM
	nextID    int
	opened    map[string]bool // jobs that have used their guest and not forgotten it
	stats     Stats
}

// Stats count what a Fake was asked to do.
type Stats struct {
	Creates, Destroys, Pushes, Starts, Probes, Stops, Callbacks int
	MostVMs                                                     int // at once
}

type fakeVM struct {
	job.VM
	foreign bool // no marker of anybody's
	stopped bool

	jobs      map[string]*fakeJob // by job ID
	snapshots []string
}

// is reports whether this is the VM meant.
func (there *fakeVM) is(vm job.VM) bool {
	return !there.foreign && there.Name == vm.Name && there.Job == vm.Job && there.Owner == vm.Owner
}

// fakeJob is what a job has in a VM.
type fakeJob struct {
	payload *executor.Payload // pushed
	run     *fakeRun          // started
}

type fakeRun struct {
	task    Task
	began   time.Time
	limit   time.Duration
	stopped time.Time // by Stop

	input  []byte
	closed bool // its stdin

	unattended, lost bool // by LoseRunner, and what Start makes of it
}

var (
	_ executor.Provider = (*Fake)(nil)
	_ executor.Guest    = (*Fake)(nil)
)

// NewFake makes an empty hypervisor.
func NewFake() *Fake {
	return &Fake{vms: map[int]*fakeVM{}, nextID: 100, opened: map[string]bool{}}
}

// Set changes the behaviour, for calls that begin from now on.
func (f *Fake) Set(b Behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviour = b
}

// Stats answers the counts so far.
func (f *Fake) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// VMs answers the VMs there are, foreign ones left out, by ID.
func (f *Fake) VMs() []job.VM {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []job.VM
	for _, vm := range f.vms {
		if !vm.foreign {
			list = append(list, vm.VM)
		}
	}
	slices.SortFunc(list, func(a, b job.VM) int { return a.ID - b.ID })
	return list
}

// Leaks names what should be gone when every job is done: VMs, and guests that
// were not forgotten.
func (f *Fake) Leaks() []string {
	var leaks []string
	for _, vm := range f.VMs() {
		leaks = append(leaks, fmt.Sprintf("VM %d (%s)", vm.ID, vm.Name))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.opened {
		leaks = append(leaks, "connections to the VM of job "+id)
	}
	slices.Sort(leaks)
	return leaks
}

// Plant adds a VM that is not ours.
func (f *Fake) Plant(name string) (id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	vm := &fakeVM{VM: job.VM{ID: f.nextID, Name: name}, foreign: true}
	f.nextID++
	f.vms[vm.ID] = vm
	return vm.ID
}

// PlantAt adds a VM that is not ours at an ID that is free.
func (f *Fake) PlantAt(id int, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[id] = &fakeVM{VM: job.VM{ID: id, Name: name}, foreign: true}
}

// Return puts a VM back that was destroyed, as from a backup.
func (f *Fake) Return(vm job.VM) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[vm.ID] = &fakeVM{VM: vm}
}

// Has reports whether there is a VM of this ID.
func (f *Fake) Has(id int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.vms[id] != nil
}

// Vanish removes a VM as an operator would: nobody is told.
func (f *Fake) Vanish(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.vms, id)
}

// next takes the next error of a list in Behaviour.
func next(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

const fakeHost = "root@pve.example:22"

func fault(op string, class job.HostClass, text, remedy string) error {
	return &job.HostError{Op: op, Host: fakeHost, Class: class, Text: text, Remedy: remedy}
}

// Check finds everything in order.
func (f *Fake) Check(context.Context) (job.HostReport, error) {
	return job.HostReport{Host: fakeHost, Node: "pve", OK: true, Checks: []job.Check{
		{Name: "node", Level: "ok", Text: "node 'pve' is online"},
		{Name: "template", Level: "ok", Text: "template '" + FakeTemplate + "' is VM 9000"},
		{Name: "kvm", Level: "warn", Text: "there is no KVM", Remedy: "turn on virtualisation"},
	}}, nil
}

// CallbackHost is an address of documentation's.
func (f *Fake) CallbackHost(context.Context) (string, error) { return "192.0.2.1", nil }

// Create goes through the steps of create-vm.
func (f *Fake) Create(ctx context.Context, spec executor.VMSpec, progress func(executor.Progress)) (job.VM, error) {
	f.mu.Lock()
	b := f.behaviour
	f.stats.Creates++
	f.mu.Unlock()
	op := "create VM " + spec.Name
	vm := job.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}
	if b.Warning != "" {
		progress(executor.Progress{Warning: b.Warning})
	}
	reserved := 0
	undo := func(err error) (job.VM, error) {
		f.Vanish(reserved)
		return vm, err
	}
	for i, step := range fakeSteps {
		if ctx.Err() == nil {
			progress(executor.Progress{Step: step, Text: "fake " + step, N: i + 1, Of: len(fakeSteps)})
		}
		if err := pause(ctx, b.StepDelay); err != nil {
			return undo(fault(op, job.HostCancelled, "stopped by a signal while: "+step, ""))
		}
		switch {
		case step == b.FailStep && b.Fail != nil:
			return undo(b.Fail)
		case step == b.FailStep:
			return undo(fault(op, job.HostVM, "made to fail at "+step, "do not ask for it"))
		case step == "validate_environment" && spec.OS == "" && spec.Template != FakeTemplate && spec.Template != "9000":
			return undo(fault(op, job.HostConfig, fmt.Sprintf("template '%s' does not exist on node 'pve'", spec.Template), "name one that does"))
		case step == "create_vm":
			id, err := f.reserve(op, &vm)
			if err != nil {
				return undo(err)
			}
			reserved = id
			if !b.LateID {
				vm.ID = id
				progress(executor.Progress{VMID: id})
			}
		}
	}
	if b.LateID {
		return vm, fault(op, job.HostUnreachable, "the connection ended before the command's exit status came", "try again")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms[vm.ID] == nil {
		return vm, fault(op, job.HostVM, fmt.Sprintf("VM %d is gone", vm.ID), "")
	}
	return f.vms[vm.ID].VM, nil
}

// reserve takes an ID for vm, as qm clone does.
func (f *Fake) reserve(op string, vm *job.VM) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.vms {
		if other.Name == vm.Name {
			return 0, fault(op, job.HostVM, fmt.Sprintf("VM already exists: '%s' is VM %d on node 'pve'", vm.Name, other.ID), "choose another name")
		}
	}
	made := *vm
	made.ID = f.nextID
	f.nextID++
	made.Node, made.User, made.State = "pve", "debian", job.VMCreated
	made.IP = fmt.Sprintf("10.99.%d.%d", made.ID/250, made.ID%250+1)
	made.HostKey = "ssh-ed25519 AAAAfake" + strconv.Itoa(made.ID)
	f.vms[made.ID] = &fakeVM{VM: made}
	f.stats.MostVMs = max(f.stats.MostVMs, len(f.vms))
	return made.ID, nil
}

// pause waits, and answers an error when ctx ends first or has ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return context.Cause(ctx)
	}
}

// Destroy removes a VM after proof.
func (f *Fake) Destroy(ctx context.Context, vm job.VM) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Destroys++
	op := fmt.Sprintf("destroy VM %d (%s)", vm.ID, vm.Name)
	if ctx.Err() != nil {
		return fault(op, job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	if err := next(&f.behaviour.Destroys); err != nil {
		return err
	}
	there := f.vms[vm.ID]
	switch {
	case vm.ID == 0:
		return nil // what a create left under way; here nothing is
	case vm.ID < 100:
		return fault(op, job.HostInvalid, fmt.Sprintf("VM_ID '%d' is not a VM ID", vm.ID), "give one from 100")
	case there == nil:
		return nil
	case !there.is(vm):
		return fault(op, job.HostVM, fmt.Sprintf("refused to destroy VM %d: it is not proven ours; nothing was touched", vm.ID), "check what it is")
	}
	delete(f.vms, vm.ID)
	return nil
}

// List answers every VM that is not foreign, as the host knows it.
func (f *Fake) List(ctx context.Context) ([]job.VM, error) {
	if ctx.Err() != nil {
		return nil, fault("list VMs", job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	f.mu.Lock()
	err := next(&f.behaviour.Lists)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	list := f.VMs()
	for i, vm := range list {
		list[i] = job.VM{ID: vm.ID, Name: vm.Name, Node: vm.Node, Job: vm.Job, Owner: vm.Owner, State: job.VMCreated, Status: f.status(vm)}
	}
	return list, nil
}

// Status answers how a VM is.
func (f *Fake) Status(ctx context.Context, vm job.VM) (job.VMStatus, error) {
	f.mu.Lock()
	err := next(&f.behaviour.Statuses)
	f.mu.Unlock()
	if ctx.Err() != nil {
		err = fault(fmt.Sprintf("look at VM %d (%s)", vm.ID, vm.Name), job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	if err != nil {
		return job.VMUnknown, err
	}
	return f.status(vm), nil
}

func (f *Fake) status(vm job.VM) job.VMStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	there := f.vms[vm.ID]
	switch {
	case there == nil || !there.is(vm):
		return job.VMGone
	case there.stopped:
		return job.VMStopped
	}
	return job.VMRunning
}

// inside answers what a job has in its VM, with f.mu held, after the call's
// error of Behaviour. The VM must be the one that was made, address and all.
func (f *Fake) inside(ctx context.Context, op string, j job.Job, errs *[]error) (*fakeJob, error) {
	vm := *j.VM
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s VM %d: %w", op, vm.ID, context.Cause(ctx))
	}
	f.opened[j.ID] = true
	if err := next(errs); err != nil {
		return nil, err
	}
	there := f.vms[vm.ID]
	if there == nil || there.stopped || there.Job != vm.Job || there.IP != vm.IP {
		return nil, fault(fmt.Sprintf("%s VM %d", op, vm.ID), job.HostUnreachable, "no route to host "+vm.IP, "check that the VM runs")
	}
	if there.jobs == nil {
		there.jobs = map[string]*fakeJob{}
	}
	if there.jobs[j.ID] == nil {
		there.jobs[j.ID] = &fakeJob{}
	}
	return there.jobs[j.ID], nil
}

// Push keeps the payload.
func (f *Fake) Push(ctx context.Context, j job.Job, p executor.Payload) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Pushes++
	there, err := f.inside(ctx, "push to", j, &f.behaviour.Pushes)
	if err != nil {
		return err
	}
	there.payload = &p
	return nil
}

// Start starts the task, once.
func (f *Fake) Start(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	f.stats.Starts++
	there, err := f.inside(ctx, "start in", j, &f.behaviour.Starts)
	if err == nil && there.payload == nil {
		err = errors.New("start: there is no job runner in the VM")
	}
	if err != nil || there.run != nil {
		if err == nil && there.run.unattended {
			there.run.unattended, there.run.lost = false, true
		}
		f.mu.Unlock()
		return err
	}
	there.run = &fakeRun{began: time.Now(), limit: time.Duration(there.payload.Manifest.Timeout) * time.Second}
	if f.behaviour.Task != nil {
		there.run.task = f.behaviour.Task(*there.payload)
	}
	told, payload := f.behaviour.OnStart, *there.payload
	f.mu.Unlock()
	if told != nil {
		told(j, payload)
	}
	return nil
}

// state answers how a run stands now.
func (r *fakeRun) state() executor.RunState {
	s := executor.RunState{Started: true, StdoutBytes: int64(len(r.task.Stdout)), StderrBytes: int64(len(r.task.Stderr))}
	ran := time.Since(r.began)
	ended := ran >= r.task.For
	if r.task.Echo {
		ended = r.closed
	}
	if r.task.Until != nil {
		select {
		case <-r.task.Until:
			ended = true
		default:
			ended = false
		}
	}
	s.Duration = ran + r.task.Ahead
	switch {
	case r.unattended:
		s.Unattended = true
	case r.lost:
		s.Exited, s.ExitCode, s.Reason, s.Text = true, -1, "lost", "the guest was rebooted while the task ran"
	case !r.stopped.IsZero():
		s.Exited, s.ExitCode, s.Reason = true, 143, "stopped"
	case ended:
		s.Exited, s.ExitCode, s.Reason = true, r.task.ExitCode, "exit"
	case r.limit > 0 && ran > r.limit:
		s.Exited, s.ExitCode, s.Reason = true, 143, "timeout"
	}
	return s
}

// Callbacks finds the next way of Behaviour.
func (f *Fake) Callbacks(ctx context.Context, j job.Job, _, _ string) (executor.CallbackWay, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Callbacks++
	if _, err := f.inside(ctx, "find a way for callbacks from", j, new([]error)); err != nil {
		return "", err
	}
	if len(f.behaviour.Ways) == 0 {
		return executor.CallbacksDirect, nil
	}
	way := f.behaviour.Ways[0]
	f.behaviour.Ways = f.behaviour.Ways[1:]
	return way, nil
}

// LoseRunner makes the runners of a VM's running tasks go, as a reboot does;
// Start brings them back, and they say that the task is lost.
func (f *Fake) LoseRunner(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.vms[id].jobs {
		j.run.unattended = true
	}
}

// Probe answers how the task stands.
func (f *Fake) Probe(ctx context.Context, j job.Job) (executor.RunState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Probes++
	there, err := f.inside(ctx, "probe", j, &f.behaviour.Probes)
	if err != nil || there.run == nil {
		return executor.RunState{}, err
	}
	return there.run.state(), nil
}

// ReadOutput answers a part of what the task printed.
func (f *Fake) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "read from", j, &f.behaviour.Reads)
	if err != nil || there.run == nil {
		return nil, err
	}
	data := there.run.task.Stdout
	if stream == job.Stderr {
		data = there.run.task.Stderr
	}
	size := int64(len(data))
	from := min(offset, size)
	return slices.Clone(data[from:min(from+limit, size)]), nil
}

// Stop ends the task, if it runs.
func (f *Fake) Stop(ctx context.Context, j job.Job, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Stops++
	there, err := f.inside(ctx, "stop in", j, &f.behaviour.Stops)
	if err != nil || there.run == nil || there.run.state().Exited {
		return err
	}
	there.run.stopped = time.Now()
	return nil
}

// Forget closes the job's connections to its VM.
func (f *Fake) Forget(j job.Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.opened, j.ID)
}

// Input keeps what is sent to a task's stdin; a task that echoes prints it.
func (f *Fake) Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "send input to", j, &f.behaviour.Inputs)
	if err != nil || there.run == nil {
		return 0, err
	}
	run := there.run
	if offset > int64(len(run.input)) {
		return 0, fault("send input", job.HostInvalid, fmt.Sprintf("a gap: %d bytes are held, not %d", len(run.input), offset), "")
	}
	run.input = append(run.input[:offset], data...)
	if run.task.Echo {
		run.task.Stdout = slices.Clone(run.input)
	}
	return int64(len(run.input)), nil
}

// CloseInput ends a task's stdin.
func (f *Fake) CloseInput(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "close stdin in", j, &f.behaviour.Inputs)
	if err == nil && there.run != nil {
		there.run.closed = true
	}
	return err
}

// Artifacts answers every file the task leaves, whatever the patterns.
func (f *Fake) Artifacts(ctx context.Context, j job.Job, limits executor.ArtifactLimits) (found []executor.FoundArtifact, skipped []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "find artifacts in", j, &f.behaviour.Reads)
	if err != nil || there.run == nil {
		return nil, nil, err
	}
	files := there.run.task.Artifacts
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if int64(len(files[name])) > limits.Each || len(found) == limits.Files {
			skipped = append(skipped, name+": over the limit")
			continue
		}
		found = append(found, executor.FoundArtifact{
			Artifact: job.Artifact{Path: name, Size: int64(len(files[name])), Mode: "0644", SHA256: fmt.Sprintf("%x", sha256.Sum256(files[name]))},
			Source:   "/home/debian/" + name,
		})
	}
	return found, skipped, nil
}

// ReadArtifact answers a part of a file the task left.
func (f *Fake) ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "read from", j, &f.behaviour.Reads)
	if err != nil || there.run == nil {
		return nil, err
	}
	data := there.run.task.Artifacts[strings.TrimPrefix(source, "/home/debian/")]
	from := min(offset, int64(len(data)))
	return slices.Clone(data[from:min(from+limit, int64(len(data)))]), nil
}

// Clean removes what a job has in a VM.
func (f *Fake) Clean(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.inside(ctx, "clean up in", j, new([]error)); err != nil {
		return err
	}
	delete(f.vms[j.VM.ID].jobs, j.ID)
	return nil
}

// proven answers a VM a provider's call is for, with f.mu held, after the
// call's error of Behaviour and the proof that it is ours.
func (f *Fake) proven(ctx context.Context, op string, vm job.VM) (*fakeVM, error) {
	op = fmt.Sprintf("%s VM %d (%s)", op, vm.ID, vm.Name)
	if ctx.Err() != nil {
		return nil, fault(op, job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	if err := next(&f.behaviour.Powers); err != nil {
		return nil, err
	}
	there := f.vms[vm.ID]
	if there == nil || !there.is(vm) {
		return nil, fault(op, job.HostVM, fmt.Sprintf("VM %d is not proven ours; nothing was touched", vm.ID), "check what it is")
	}
	return there, nil
}

// Plan tells one command.
func (f *Fake) Plan(_ context.Context, spec executor.VMSpec) ([]string, error) {
	if spec.OS == "" && spec.Template != FakeTemplate && spec.Template != "9000" {
		return nil, fault("plan VM "+spec.Name, job.HostConfig, fmt.Sprintf("template '%s' does not exist on node 'pve'", spec.Template), "name one that does")
	}
	return []string{"qm clone 9000 <id> --name " + spec.Name}, nil
}

// StartVM starts a VM; it may have another address then.
func (f *Fake) StartVM(ctx context.Context, vm job.VM, progress func(executor.Progress)) (job.VM, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.proven(ctx, "start", vm)
	if err != nil {
		return vm, err
	}
	progress(executor.Progress{Step: "start_vm", Text: "fake start", N: 1, Of: 1})
	if there.stopped {
		there.stopped, there.jobs = false, nil
		there.IP = fmt.Sprintf("10.98.%d.%d", there.ID/250, there.ID%250+1)
	}
	return there.VM, nil
}

// StopVM stops a VM, and what runs in it.
func (f *Fake) StopVM(ctx context.Context, vm job.VM) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.proven(ctx, "stop", vm)
	if err == nil {
		there.stopped = true
	}
	return err
}

// SnapshotVM remembers a name.
func (f *Fake) SnapshotVM(ctx context.Context, vm job.VM, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.proven(ctx, "snapshot", vm)
	if err != nil {
		return err
	}
	if slices.Contains(there.snapshots, name) {
		return fault("snapshot", job.HostVM, fmt.Sprintf("snapshot name '%s' already used", name), "choose another name")
	}
	there.snapshots = append(there.snapshots, name)
	return nil
}

// RevertVM starts a VM anew.
func (f *Fake) RevertVM(ctx context.Context, vm job.VM, name string, progress func(executor.Progress)) (job.VM, error) {
	f.mu.Lock()
	there, err := f.proven(ctx, "revert", vm)
	if err == nil && !slices.Contains(there.snapshots, name) {
		err = fault("revert", job.HostVM, fmt.Sprintf("snapshot '%s' does not exist", name), "take one first")
	}
	if err == nil {
		there.stopped = true
	}
	f.mu.Unlock()
	if err != nil {
		return vm, err
	}
	return f.StartVM(ctx, vm, progress)
}

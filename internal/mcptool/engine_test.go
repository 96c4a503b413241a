package mcptool

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

const knownID = "0197a1b2-0000-7000-8000-000000000001"

// engine knows one job and one VM and records what is asked of it.
type engine struct {
	job.Engine // what no tool calls

	mu        sync.Mutex
	submitted []job.Submission
	calls     []string // verb and arguments of what changes something
	tests     []job.HostTest
	filter    job.Filter
	job       job.Job
	result    job.Result
	out, err2 string        // its streams
	onInput   func(string)  // called with every input; may write
	vm        job.VMInfo    // named dev, ID 105
	disk      disk          // its files
	err       error         // answered by every method, when set
	hang      chan struct{} // CheckHost, StartVM and Watch wait for it, or for their context's end
}

var _ job.Engine = (*engine)(nil)

// change alters the engine while it is in use.
func (e *engine) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *engine) note(words ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, strings.Join(words, " "))
	return e.err
}

func (e *engine) Submit(_ context.Context, s job.Submission) (job.Job, error) {
	return e.submit(s, s.Manifest)
}

func (e *engine) CreateVM(_ context.Context, s job.Submission) (job.VMInfo, error) {
	j, err := e.submit(s, s.Manifest.ForVM())
	return job.VMInfo{VM: vm.VM{Job: j.ID, Name: s.Manifest.VMName, Status: vm.Provisioning}}, err
}

func (e *engine) submit(s job.Submission, m job.Manifest) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := m.Validate(); err != nil {
		return job.Job{}, err
	}
	if m.VM != "" && m.VM != "dev" && m.VM != "105" {
		return job.Job{}, noVM(m.VM)
	}
	if e.err != nil {
		return job.Job{}, e.err
	}
	e.submitted = append(e.submitted, s)
	return job.Job{ID: knownID, Status: job.Pending}, nil
}

// noVM is the engine's own word for a VM it does not know.
func noVM(ref string) error {
	return &job.FieldError{Field: "vm", Problem: `"` + ref + `" is not a VM of ours`, Remedy: string(job.ListVMs) + " shows the VMs there are"}
}

func (e *engine) Plan(_ context.Context, s job.Submission) ([]string, error) {
	return []string{"qm clone 9000 100 --name " + s.Manifest.VMName}, e.err
}

func (e *engine) find(id string) error {
	if e.err == nil && id != knownID {
		return job.ErrNotFound
	}
	return e.err
}

func (e *engine) Job(_ context.Context, id string) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.job, e.find(id)
}

func (e *engine) Result(_ context.Context, id string) (job.Result, error) {
	if err := e.find(id); err != nil {
		return job.Result{}, err
	}
	if !e.job.Status.Terminal() && e.job.Status != "" {
		return job.Result{}, &job.NotCompleteError{Status: e.job.Status}
	}
	return e.result, nil
}

func (e *engine) Cancel(_ context.Context, id string) error { return e.find(id) }

func (e *engine) Kill(_ context.Context, id, signal string) (job.Killed, error) {
	if id != knownID {
		return job.KillNotFound, nil
	}
	return job.KilledNow, e.note("kill", signal)
}

func (e *engine) List(_ context.Context, f job.Filter) (job.Page, error) {
	if e.filter = f; slices.Contains(f.Label, "team=db") {
		return job.Page{}, e.err
	}
	return job.Page{Jobs: []job.Summary{{
		ID: knownID, Kind: job.KindTask, Client: "cli", Status: job.Running, Phase: "run", Task: "true", CreatedAt: at,
		VM: &job.SummaryVM{ID: 105, Name: "dev", Node: "pve", State: vm.Created},
	}}, Next: "more"}, e.err
}

func (e *engine) Cleanup(_ context.Context, age time.Duration) (int, error) {
	return 3, e.note("cleanup", age.String())
}

func (e *engine) Output(_ context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.find(id); err != nil {
		return job.Chunk{}, err
	}
	all := e.out
	if stream == job.Stderr {
		all = e.err2
	}
	if offset < 0 {
		offset = max(0, int64(len(all))+offset)
	}
	begin := min(offset, int64(len(all)))
	data := all[begin:min(begin+limit, int64(len(all)))]
	next := offset + int64(len(data))
	return job.Chunk{Data: []byte(data), Offset: offset, Next: next, Complete: e.job.Status.Terminal() && next >= int64(len(all))}, nil
}

func (e *engine) Input(_ context.Context, id string, data []byte, closed bool) error {
	if err := e.find(id); err != nil {
		return err
	}
	if e.onInput != nil {
		e.onInput(string(data))
	}
	if closed {
		return e.note("input", string(data), "closed")
	}
	return e.note("input", string(data))
}

func (e *engine) OpenArtifact(_ context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	if err := e.find(id); err != nil {
		return nil, job.Artifact{}, err
	}
	i := slices.IndexFunc(e.job.Artifacts, func(a job.Artifact) bool { return a.Path == path })
	if i < 0 {
		return nil, job.Artifact{}, &job.FieldError{Field: "path", Problem: "the job has no artifact " + path}
	}
	return io.NopCloser(strings.NewReader("of " + path)), e.job.Artifacts[i], nil
}

func (e *engine) Schedules(context.Context) ([]job.Schedule, error) {
	return []job.Schedule{nightly(job.ScheduleSpec{Name: "nightly", Cron: "0 3 * * *", Timezone: "UTC", Overlap: job.OverlapSkip, Missed: job.MissedOnce, Manifest: job.Manifest{Task: "make"}})}, e.err
}

func nightly(s job.ScheduleSpec) job.Schedule {
	return job.Schedule{ScheduleSpec: s, Principal: "ci", NextAt: at, Runs: []job.Run{{At: at, Job: knownID}, {At: at, Why: "left out"}, {At: at}, {At: at}, {At: at}, {At: at}}}
}

func (e *engine) CreateSchedule(_ context.Context, s job.ScheduleSpec) (job.Schedule, error) {
	err := s.Check()
	if err == nil {
		err = e.note("schedule", s.Name, s.Cron, s.Timezone, string(s.Overlap), string(s.Missed), s.Manifest.Task, string(s.Manifest.AgentType))
	}
	return nightly(s), err
}

func (e *engine) RemoveSchedule(ctx context.Context, name string) (job.Schedule, error) {
	all, _ := e.Schedules(ctx)
	return all[0], e.note("remove schedule", name)
}

func (e *engine) Usage(_ context.Context, q job.UsageQuery) ([]job.Usage, error) {
	return []job.Usage{{Of: "by " + q.By, VMHours: 1.5}}, q.Check()
}

func (e *engine) VMs(context.Context) ([]job.VMInfo, error) { return []job.VMInfo{e.vm}, e.err }

func (e *engine) VM(_ context.Context, ref string) (job.VMInfo, error) {
	if e.err == nil && ref != "dev" && ref != "105" {
		return job.VMInfo{}, noVM(ref)
	}
	return e.vm, e.err
}

func (e *engine) act(ctx context.Context, ref string, words ...string) (job.VMInfo, error) {
	vm, err := e.VM(ctx, ref)
	if err != nil {
		return vm, err
	}
	if e.hang != nil {
		select {
		case <-e.hang:
		case <-ctx.Done():
			return vm, ctx.Err()
		}
	}
	return vm, e.note(words...)
}

func (e *engine) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.act(ctx, ref, "start", ref)
}

func (e *engine) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.act(ctx, ref, "stop", ref)
}

func (e *engine) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.act(ctx, ref, "destroy", ref)
	v.Status = vm.Destroying
	return v, err
}

func (e *engine) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.act(ctx, ref, "suspend", ref)
	v.Status = vm.Suspended
	return v, err
}

func (e *engine) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.act(ctx, ref, "resume", ref)
}

func (e *engine) ForkVM(ctx context.Context, spec job.ForkSpec) (job.Forked, error) {
	v, err := e.act(ctx, spec.VM, "fork", spec.VM, strconv.Itoa(spec.Count), spec.Name)
	return job.Forked{Live: true, Why: "its storage can", PauseMS: 120, VMs: []job.VMInfo{v}}, err
}

func (e *engine) SnapshotVM(ctx context.Context, ref, name string, memory bool) (job.VMInfo, error) {
	if memory {
		name += " with memory"
	}
	return e.act(ctx, ref, "snapshot", ref, name)
}

func (e *engine) RevertVM(ctx context.Context, ref, name string) (job.VMInfo, error) {
	return e.act(ctx, ref, "revert", ref, name)
}

func (e *engine) ListSnapshots(context.Context, string) ([]job.Snapshot, error) {
	return []job.Snapshot{{Name: "clean", CreatedAt: e.vm.CreatedAt, DiskBytes: 4096, Current: true}}, nil
}

func (e *engine) DeleteSnapshot(ctx context.Context, ref, name string) (job.VMInfo, error) {
	return e.act(ctx, ref, "remove", ref, name)
}

func (e *engine) ExposePort(_ context.Context, spec job.PortSpec) (job.ExposedPort, error) {
	p := job.ExposedPort{Name: spec.Name, Port: spec.Port, URL: "https://" + spec.Name + "-1.vms.example/"}
	if spec.Port == 1 {
		p.Note = "nothing listens there yet"
	}
	return p, e.err
}

func (e *engine) SaveVM(ctx context.Context, ref, name string, inPlace bool) (job.SavedTemplate, error) {
	_, err := e.act(ctx, ref, "save", ref, name, strconv.FormatBool(inPlace))
	return job.SavedTemplate{Name: name, VMID: 9001, Node: "pve", Left: []string{"a key"}}, err
}

func (e *engine) Nodes(context.Context) ([]job.NodeInfo, error) {
	return []job.NodeInfo{{Name: "pve", Templates: []string{"agent-template"}}, {Name: "pve2"}}, e.err
}

// cache is a volume that VM dev has.
func cache() job.VolumeInfo {
	return job.VolumeInfo{Name: "cache", Status: job.VolumeReady, SizeGB: 20, Node: "pve", Uses: []vm.VolumeUse{{VM: knownID, VMID: 105, Path: "/srv", ReadOnly: true}}}
}

func (e *engine) Volumes(context.Context) ([]job.VolumeInfo, error) {
	return []job.VolumeInfo{cache()}, e.err
}

func (e *engine) CreateVolume(_ context.Context, s job.VolumeSpec) (job.VolumeInfo, error) {
	return cache(), e.note("volume", s.Name, s.Size)
}

func (e *engine) AttachVolume(_ context.Context, a job.VolumeAttach) (job.VolumeInfo, error) {
	return cache(), e.note("attach", a.Volume, a.VM, a.Path, string(a.Mode))
}

func (e *engine) DetachVolume(_ context.Context, ref, of string) (job.VolumeInfo, error) {
	return cache(), e.note("detach", ref, of)
}

func (e *engine) RemoveVolume(_ context.Context, ref string) (job.VolumeInfo, error) {
	return job.VolumeInfo{Name: ref, Status: job.VolumeRemoving}, e.note("delete", ref)
}

func (e *engine) HostTests(context.Context) ([]job.HostTest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.tests), e.err
}

// TestHost has a test that has ended when it is looked at again.
func (e *engine) TestHost(context.Context, job.HostTestSpec) (job.HostTest, error) {
	begun := job.HostTest{ID: "t1", Node: "pve", Status: job.HostTestRunning}
	ended := begun
	ended.Status, ended.EndedAt = job.HostTestFailed, time.Now()
	ended.Steps = []job.HostTestStep{{Name: "boot", Result: job.StepPassed}, {Name: "fork", Result: job.StepSkipped, Text: "no room", Remedy: "make some"}, {Name: "lease", Result: job.StepFailed, Text: "it lives"}}
	e.mu.Lock()
	e.tests = append(e.tests, ended)
	e.mu.Unlock()
	return begun, e.note("test")
}

func (e *engine) CheckHost(ctx context.Context) (job.HostReport, error) {
	if e.hang != nil {
		select {
		case <-e.hang:
		case <-ctx.Done():
			return job.HostReport{}, ctx.Err()
		}
	}
	return job.HostReport{Host: "pve:22", Node: "pve", Checks: []job.Check{{Name: "bridge", Level: "fail", Text: "vmbr0 is missing", Remedy: "add it"}}}, e.err
}

// Watch has an event for each step the job's progress has taken.
func (e *engine) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	for {
		j, err := e.Job(ctx, id)
		if step := int64(len(j.Progress)); err != nil || step > after || j.Status.Terminal() {
			return []job.Event{{Seq: step, At: at, Kind: job.EventProgress, Text: j.Progress}}, j, err
		}
		if err := sleep.For(ctx, time.Millisecond); err != nil {
			return nil, j, nil
		}
	}
}

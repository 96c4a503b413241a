package web_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// engine stands in for the real one: it knows the jobs and VMs it is given,
// those named id among them with outputs and artifacts, and records what is
// asked of it.
type engine struct {
	job.Engine // what no page calls

	unlisted  error  // of ListSnapshots
	note      string // of an exposed port
	dropped   bool   // the contents of jobs' files are not there any more
	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	jobs      []job.Job     // newest first
	events    map[string][]job.Event
	outputs   map[string]string // of the job id, by stream
	artifacts map[string]string
	complete  bool
	echoes    bool  // input is part of the output
	gap       int64 // where the middle of an output is left out; 0: nowhere
	noTail    bool  // nothing was kept after the gap
	outputErr error
	vms       []job.VMInfo
	vmsErr    error
	pools     []job.PoolInfo
	nodes     []job.NodeInfo
	tokens    []job.Token
	engines   []job.EngineInfo
	files     map[string]string // of VMs, by path; a directory's ends with a slash
	fileErr   error
	report    job.HostReport
	reportErr error
	calls     []string
	tests     []job.HostTest
	submitted []job.Submission
	plan      []string
	formErr   error      // of Submit and Plan
	filter    job.Filter // of the last list
}

var _ job.Engine = (*engine)(nil)

// change alters the engine while it is in use, and wakes those who watch.
func (e *engine) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// happens changes a job and adds an event.
func (e *engine) happens(jobID string, event job.Event, f func(*job.Job)) {
	e.change(func() {
		i := slices.IndexFunc(e.jobs, func(j job.Job) bool { return j.ID == jobID })
		f(&e.jobs[i])
		if e.events == nil {
			e.events = map[string][]job.Event{}
		}
		event.Seq, event.JobID = int64(len(e.events[jobID])+1), jobID
		if event.At.IsZero() {
			event.At = time.Now()
		}
		e.events[jobID] = append(e.events[jobID], event)
	})
}

func (e *engine) asked() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *engine) Job(_ context.Context, jobID string) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range e.jobs {
		if j.ID == jobID {
			return j, nil
		}
	}
	return job.Job{}, job.ErrNotFound
}

func (e *engine) List(_ context.Context, f job.Filter) (job.Page, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var page job.Page
	e.filter = f
	begun := f.Cursor == ""
	if f.Counts {
		page.Counts = map[job.Status]int{}
		for _, j := range e.jobs {
			page.Counts[j.Status]++
		}
	}
	for _, j := range e.jobs {
		if begun = begun || j.ID == f.Cursor; !begun || f.Status != "" && j.Status != f.Status {
			continue
		}
		if len(page.Jobs) == f.Limit {
			page.Next = j.ID
			break
		}
		s := job.Summary{
			ID: j.ID, Kind: j.Kind, Client: j.Client, Status: j.Status, Task: job.TaskHead(j.Manifest.Task), CreatedAt: j.CreatedAt, CompletedAt: j.CompletedAt,
		}
		if !j.Done() {
			s.Phase = j.Phase
		}
		if j.VM != nil {
			s.VM = &job.SummaryVM{ID: j.VM.ID, Name: j.VM.Name, Node: j.VM.Node, State: j.VM.State}
		}
		page.Jobs = append(page.Jobs, s)
	}
	return page, nil
}

func (e *engine) Watch(ctx context.Context, jobID string, after int64) ([]job.Event, job.Job, error) {
	for {
		j, err := e.Job(ctx, jobID)
		if err != nil {
			return nil, j, err
		}
		e.mu.Lock()
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed, events := e.changed, slices.Clone(e.events[jobID][after:])
		e.mu.Unlock()
		if len(events) > 0 || j.Done() {
			return events, j, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, j, nil
		}
	}
}

func (e *engine) Output(_ context.Context, jobID, stream string, offset, limit int64) (job.Chunk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if jobID == doneID {
		return job.Chunk{Complete: true}, nil
	}
	if jobID != id {
		return job.Chunk{}, job.ErrNotFound
	}
	if e.outputErr != nil {
		return job.Chunk{}, e.outputErr
	}
	all := e.outputs[stream]
	if offset < 0 {
		offset = max(0, int64(len(all))+offset)
	}
	begin := min(offset, int64(len(all)))
	data := all[begin:min(begin+limit, int64(len(all)))]
	next := offset + int64(len(data))
	chunk := job.Chunk{Data: []byte(data), Offset: offset, Next: next, Complete: e.complete && next >= int64(len(all))}
	if e.gap > 0 && begin+limit > e.gap { // what follows was never kept; then the tail
		chunk.Data, chunk.Next, chunk.Complete = []byte(all[begin:e.gap]), e.gap, false
		if offset == e.gap {
			chunk = job.Chunk{Data: []byte("tail"), Offset: e.gap + 100, Next: e.gap + 104, Dropped: 100, Complete: true}
			if e.noTail {
				chunk = job.Chunk{Offset: e.gap + 100, Next: e.gap + 100, Dropped: 100, Complete: true}
			}
		}
	}
	return chunk, nil
}

func (e *engine) OpenArtifact(_ context.Context, jobID, path string) (io.ReadCloser, job.Artifact, error) {
	content, ok := e.artifacts[path]
	switch {
	case jobID != id:
		return nil, job.Artifact{}, job.ErrNotFound
	case path == "broken":
		return nil, job.Artifact{}, errors.New("disk on fire")
	case !ok:
		return nil, job.Artifact{}, &job.FieldError{Field: "path", Problem: "no such artifact"}
	}
	return io.NopCloser(strings.NewReader(content)), job.Artifact{Path: path, Size: int64(len(content)), SHA256: "abc"}, nil
}

// called records a call about a job.
func (e *engine) called(ctx context.Context, jobID string, words ...string) (job.Job, error) {
	j, err := e.Job(ctx, jobID)
	if err == nil && j.Status.Terminal() {
		err = job.ErrCompleted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, strings.Join(words, " "))
	return j, err
}

func (e *engine) Cancel(ctx context.Context, jobID string) error {
	_, err := e.called(ctx, jobID, "cancel", jobID)
	if err == nil {
		e.happens(jobID, job.Event{Kind: job.EventStatus, Text: "failed"}, func(j *job.Job) {
			j.Status, j.CompletedAt = job.Failed, time.Now()
			j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, Error: "Cancelled by user"}
			if j.VM != nil { // another one: the old is in answers
				v := *j.VM
				v.State = vm.Destroyed
				j.VM = &v
			}
			e.complete = true
		})
	}
	return err
}

func (e *engine) Kill(ctx context.Context, jobID, signal string) (job.Killed, error) {
	_, err := e.called(ctx, jobID, "kill", jobID, signal)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return job.KillNotFound, nil
	case errors.Is(err, job.ErrCompleted):
		return job.AlreadyTerminated, nil
	}
	return job.KilledNow, err
}

func (e *engine) Input(ctx context.Context, jobID string, data []byte, closed bool) error {
	word := "input"
	if closed {
		word = "close"
	}
	_, err := e.called(ctx, jobID, word, jobID, string(data))
	if err == nil {
		e.change(func() {
			if e.echoes {
				e.outputs[job.Stdout] += string(data)
			}
		})
	}
	return err
}

func (e *engine) Resize(ctx context.Context, jobID string, rows, columns int) error {
	_, err := e.called(ctx, jobID, "resize", jobID, fmt.Sprintf("%dx%d", rows, columns))
	return err
}

func (e *engine) VMs(context.Context) ([]job.VMInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.vms), e.vmsErr
}

func (e *engine) Pools(context.Context) ([]job.PoolInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.pools), nil
}

func (e *engine) Pool(ctx context.Context, name string) (job.PoolInfo, error) {
	pools, err := e.Pools(ctx)
	for _, p := range pools {
		if p.Name == name {
			return p, err
		}
	}
	return job.PoolInfo{}, &job.FieldError{Field: "pool", Problem: "there is no pool " + name}
}

func (e *engine) CreatePool(_ context.Context, p job.Pool) (job.PoolInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := p.Validate()
	if err == nil {
		e.pools = append(e.pools, job.PoolInfo{Pool: p})
	}
	return job.PoolInfo{Pool: p}, err
}

func (e *engine) ResizePool(ctx context.Context, name string, change job.PoolChange) (job.PoolInfo, error) {
	p, err := e.Pool(ctx, name)
	var size job.PoolSize
	if err == nil {
		size, err = change.Of(p.PoolSize)
	}
	e.change(func() {
		for i := range e.pools {
			if err == nil && e.pools[i].Name == name {
				e.pools[i].PoolSize = size
			}
		}
	})
	return p, err
}

func (e *engine) RemovePool(ctx context.Context, name string) (job.PoolInfo, error) {
	p, err := e.Pool(ctx, name)
	e.change(func() {
		e.pools = slices.DeleteFunc(e.pools, func(p job.PoolInfo) bool { return p.Name == name })
	})
	return p, err
}

func (e *engine) Volumes(context.Context) ([]job.VolumeInfo, error) {
	return []job.VolumeInfo{
		{Name: "cache", Status: job.VolumeReady, SizeGB: 20, Node: "pve1", Principal: "<b>alice", CreatedAt: time.Now().Add(-time.Hour), Uses: []vm.VolumeUse{{VMID: 105, Path: "/srv", ReadOnly: true}}},
	}, nil
}

func (e *engine) Volume(context.Context, string) (job.VolumeInfo, error) {
	return job.VolumeInfo{}, job.ErrNotFound
}

func (e *engine) CreateVolume(context.Context, job.VolumeSpec) (job.VolumeInfo, error) {
	return job.VolumeInfo{}, job.ErrNotFound
}

func (e *engine) RemoveVolume(context.Context, string) (job.VolumeInfo, error) {
	return job.VolumeInfo{}, job.ErrNotFound
}

func (e *engine) AttachVolume(context.Context, job.VolumeAttach) (job.VolumeInfo, error) {
	return job.VolumeInfo{}, job.ErrNotFound
}

func (e *engine) DetachVolume(context.Context, string, string) (job.VolumeInfo, error) {
	return job.VolumeInfo{}, job.ErrNotFound
}

func (e *engine) Checkpoints(context.Context) ([]job.CheckpointInfo, error) {
	return []job.CheckpointInfo{{Name: "linus-checkpoint-1", Template: "debian-13", Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, Node: "pve1", Status: job.CheckpointFailed, Text: "the <disk> is full"}}, nil
}

func (e *engine) Checkpoint(context.Context, string) (job.CheckpointInfo, error) {
	return job.CheckpointInfo{}, job.ErrNotFound
}

func (e *engine) CreateCheckpoint(context.Context, job.CheckpointSpec) (job.CheckpointInfo, error) {
	return job.CheckpointInfo{}, job.ErrNotFound
}

func (e *engine) RemoveCheckpoint(context.Context, string) (job.CheckpointInfo, error) {
	return job.CheckpointInfo{}, job.ErrNotFound
}

func (e *engine) CordonNode(_ context.Context, name string) (job.NodeInfo, error) {
	return e.setCordon(name, true)
}

func (e *engine) UncordonNode(_ context.Context, name string) (job.NodeInfo, error) {
	return e.setCordon(name, false)
}

func (e *engine) setCordon(name string, cordoned bool) (job.NodeInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.nodes {
		if e.nodes[i].Name == name {
			e.nodes[i].Cordoned = cordoned
			return e.nodes[i], nil
		}
	}
	return job.NodeInfo{}, &job.FieldError{Field: "node", Problem: "there is no node " + name}
}

func (e *engine) Tokens(context.Context) ([]job.Token, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.tokens), nil
}

func (e *engine) CreateToken(_ context.Context, s job.TokenSpec) (job.NewToken, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := s.Validate(); err != nil {
		return job.NewToken{}, err
	}
	made := job.Token{ID: fmt.Sprintf("0123456789ab%d", len(e.tokens)), TokenSpec: s, CreatedAt: time.Now(), CreatedBy: "operator"}
	e.tokens = append(e.tokens, made)
	return job.NewToken{Token: made, Secret: "linus_very-secret"}, nil
}

func (e *engine) RevokeToken(_ context.Context, ref string) ([]job.Token, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, "revoke "+ref)
	e.tokens = slices.DeleteFunc(e.tokens, func(t job.Token) bool { return t.ID == ref })
	return nil, nil
}

func (e *engine) Credentials(context.Context) ([]job.Credential, error) {
	return []job.Credential{{CredentialSpec: job.CredentialSpec{Name: "forge", Host: "forge.example", Path: "/api", Env: "FORGE_TOKEN"}, CreatedAt: time.Now(), CreatedBy: "operator"}}, nil
}

func (e *engine) CreateCredential(context.Context, job.NewCredential) (job.Credential, error) {
	return job.Credential{}, nil
}

func (e *engine) RemoveCredential(context.Context, string) (job.Credential, error) {
	return job.Credential{}, nil
}

func (e *engine) Nodes(context.Context) ([]job.NodeInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.nodes), nil
}

func (e *engine) Engines(context.Context) ([]job.EngineInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.engines), nil
}

func (e *engine) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	vms, err := e.VMs(ctx)
	for _, v := range vms {
		if v.Name == ref || v.Job == ref || ref == "105" && v.ID == 105 {
			return v, err
		}
	}
	return job.VMInfo{}, &job.FieldError{Field: "vm", Problem: `"` + ref + `" is not a VM of ours`, Remedy: string(job.ListVMs) + " shows the VMs there are"}
}

// Submit returns the first job of a key, as the real one.
func (e *engine) Submit(_ context.Context, s job.Submission) (job.Job, error) {
	return e.submit(job.KindTask, s, s.Manifest)
}

func (e *engine) CreateVM(_ context.Context, s job.Submission) (job.VMInfo, error) {
	j, err := e.submit(job.KindMake, s, s.Manifest.ForVM())
	return job.VMInfo{VM: vm.VM{Job: j.ID, Name: s.Manifest.VMName}}, err
}

func (e *engine) submit(kind job.Kind, s job.Submission, m job.Manifest) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.formErr != nil {
		return job.Job{}, e.formErr
	}
	if err := m.Validate(); err != nil {
		return job.Job{}, err
	}
	for i, first := range e.submitted {
		if first.IdempotencyKey == s.IdempotencyKey {
			if !cmp.Equal(first, s) {
				return job.Job{}, &job.FieldError{Field: "idempotency_key", Problem: "was used for another submission"}
			}
			return e.jobs[len(e.submitted)-1-i], nil
		}
	}
	e.submitted = append(e.submitted, s)
	j := job.Job{ID: fmt.Sprintf("0197a1b2-0000-7000-8000-0000000001%02d", len(e.submitted)), Kind: kind, Status: job.Pending, Manifest: s.Manifest, CreatedAt: time.Now()}
	e.jobs = append([]job.Job{j}, e.jobs...)
	if e.events == nil {
		e.events = map[string][]job.Event{}
	}
	e.events[j.ID] = []job.Event{{Seq: 1, JobID: j.ID, Kind: job.EventStatus, Text: "pending"}}
	return j, nil
}

func (e *engine) Plan(_ context.Context, s job.Submission) ([]string, error) {
	if e.formErr != nil {
		return nil, e.formErr
	}
	if s.Manifest.Task == "" {
		s.Manifest = s.Manifest.ForVM()
	}
	return e.plan, s.Manifest.Validate()
}

func (e *engine) Manifest(ctx context.Context, jobID string) (job.Manifest, error) {
	j, err := e.Job(ctx, jobID)
	if err == nil && e.dropped {
		err = &job.FieldError{Field: "manifest.files", Problem: "the contents were removed", Remedy: "give them again"}
	}
	return j.Manifest, err
}

func (e *engine) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.power(ctx, "start", ref, vm.Running)
}

func (e *engine) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.power(ctx, "stop", ref, vm.Stopped)
}

func (e *engine) ForkVM(ctx context.Context, spec job.ForkSpec) (job.Forked, error) {
	v, err := e.power(ctx, fmt.Sprint("fork ", spec.Count, " ", spec.Name), spec.VM, vm.Running)
	return job.Forked{Live: true, Why: "its storage can", VMs: []job.VMInfo{v}}, err
}

func (e *engine) SnapshotVM(ctx context.Context, ref, name string, memory bool) (job.VMInfo, error) {
	return e.power(ctx, fmt.Sprint("snapshot ", name, " ", memory), ref, vm.Running)
}

func (e *engine) SaveVM(ctx context.Context, ref, name string, inPlace bool) (job.SavedTemplate, error) {
	_, err := e.power(ctx, fmt.Sprint("save ", name, " ", inPlace), ref, vm.Running)
	return job.SavedTemplate{Name: name}, err
}

func (e *engine) RevertVM(ctx context.Context, ref, name string) (job.VMInfo, error) {
	return e.power(ctx, "revert "+name, ref, vm.Running)
}

func (e *engine) DeleteSnapshot(ctx context.Context, ref, name string) (job.VMInfo, error) {
	return e.power(ctx, "remove-snapshot "+name, ref, vm.Running)
}

func (e *engine) ListSnapshots(context.Context, string) ([]job.Snapshot, error) {
	if e.unlisted != nil {
		return nil, e.unlisted
	}
	return []job.Snapshot{
		{Name: "a", CreatedAt: time.Now().Add(-2 * time.Hour), DiskBytes: 3 << 20}, {Name: "b", Parent: "a", CreatedAt: time.Now().Add(-time.Hour), Memory: true, MemoryBytes: 4 << 30, Current: true},
		{Name: "half", Parent: "b", CreatedAt: time.Now(), Incomplete: true},
	}, nil
}

func (e *engine) ExposePort(ctx context.Context, spec job.PortSpec) (job.ExposedPort, error) {
	_, err := e.power(ctx, fmt.Sprint("expose ", spec.Port, " ", spec.Name), spec.VM, vm.Running)
	return job.ExposedPort{Note: e.note}, err
}

func (e *engine) UnexposePort(ctx context.Context, ref, name string) (job.ExposedPort, error) {
	_, err := e.power(ctx, "unexpose "+name, ref, vm.Running)
	return job.ExposedPort{}, err
}

func (e *engine) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.power(ctx, "forget", ref, vm.Gone)
}

func (e *engine) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.power(ctx, "suspend", ref, vm.Suspended)
}

func (e *engine) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.power(ctx, "resume", ref, vm.Running)
}

func (e *engine) power(ctx context.Context, what, ref string, status vm.Status) (job.VMInfo, error) {
	v, err := e.VM(ctx, ref)
	e.change(func() {
		e.calls = append(e.calls, what+" "+ref)
		for i := range e.vms {
			if err == nil && e.vms[i].Job == v.Job {
				e.vms[i].Status = status
			}
		}
	})
	return v, err
}

func (e *engine) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.VM(ctx, ref)
	if err == nil && len(v.Jobs) > 0 {
		err = &job.FieldError{Field: "vm", Problem: "jobs run in it", Remedy: "cancel them first"}
	}
	e.change(func() {
		e.calls = append(e.calls, "destroy "+ref)
		for i := range e.vms {
			if err == nil && e.vms[i].Job == v.Job {
				e.vms[i].Status = vm.Destroying
			}
		}
	})
	return v, err
}

func (e *engine) HostTests(context.Context) ([]job.HostTest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.tests), nil
}

func (e *engine) TestHost(_ context.Context, spec job.HostTestSpec) (job.HostTest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tests = append(e.tests, job.HostTest{ID: "t1", Node: "pve", Quick: spec.Quick, Status: job.HostTestRunning, Steps: []job.HostTestStep{
		{Name: "boot", Result: job.StepPassed, Seconds: 12.34}, {Name: "volume", Result: job.StepFailed, Text: "<b>full", Remedy: "make room"}, {Name: "lease", Result: job.StepRunning},
	}})
	return e.tests[0], nil
}

func (e *engine) CancelHostTest(_ context.Context, id string) (job.HostTest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, "cancel test "+id)
	return job.HostTest{}, nil
}

func (e *engine) CheckHost(context.Context) (job.HostReport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.report, e.reportErr
}

func (e *engine) Dispatchers(context.Context) ([]job.Dispatcher, error) {
	return []job.Dispatcher{{Queue: "github:o/<r>", Name: "here", HeardAt: time.Now(), Sessions: 2, Places: 8, Waiting: 41, Problem: "the <key> is refused", Failed: []job.Failing{{Reason: job.ReasonLost, Count: 3}}}}, nil
}

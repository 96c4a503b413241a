package hosttest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/hosttest"
	"linus/internal/job"
	"linus/internal/vm"
)

// site is a host with its engine and store, as small as a test of it can be. broken are calls that
// fail; hook is called before each.
type site struct {
	job.Engine // the verbs that are not called

	mu      sync.Mutex
	broken  map[string]error
	hook    func(call string)
	calls   []string
	tests   map[string]job.HostTest
	vms     map[string]*guest // by the ID in the marker
	jobs    map[string]job.Job
	results map[string]job.Result
	volumes map[string]job.VolumeInfo
	points  map[string]job.CheckpointInfo
	next    int
	alike   bool // VMs that go on from a checkpoint have one machine ID
	booting bool // none goes on from one
	open    bool // no mode limits a VM
	dead    bool // no VM is reached by another
	foreign []vm.VM
	facts   job.HostFacts
	checks  []job.Check
	work    sync.WaitGroup
	ctx     context.Context //nolint:containedctx // the engine's
	stop    context.CancelFunc
}

// guest is a VM, with what is written in it, by file.
type guest struct {
	vm.VM

	network     vm.Network
	labels      map[string]string
	files, kept map[string]string
	status      vm.Status
	machine     string
	volume      string
}

func newSite() *site {
	s := &site{
		broken: map[string]error{}, hook: func(string) {}, tests: map[string]job.HostTest{}, vms: map[string]*guest{}, jobs: map[string]job.Job{}, results: map[string]job.Result{},
		volumes: map[string]job.VolumeInfo{}, points: map[string]job.CheckpointInfo{}, facts: job.HostFacts{Node: "pve", Proxmox: "9.1", Storage: "lvmthin", Template: "sum"},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

func (s *site) new(lease time.Duration) *hosttest.Tests {
	return hosttest.New(hosttest.Options{
		Store: s, Host: proxmox{s}, Engine: s, Log: slog.New(slog.DiscardHandler), Template: "agent-template", Lease: lease, Pause: time.Millisecond, Again: 10 * time.Millisecond,
		Row: func(_ context.Context, id string) (vm.VM, error) {
			defer s.locked()()
			if g := s.vms[id]; g != nil {
				return g.VM, nil
			}
			return vm.VM{}, job.ErrNotFound
		},
	})
}

func (s *site) locked() (unlock func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// call notes a call, and returns why it fails. Else the caller has s.mu until done is called.
func (s *site) call(ctx context.Context, name string) (done func(), err error) {
	s.hook(name)
	s.mu.Lock()
	s.calls = append(s.calls, name)
	if err := cmp.Or(s.broken[name], ctx.Err()); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return s.mu.Unlock, nil
}

func (s *site) id() string {
	s.next++
	return fmt.Sprintf("00000000-0000-7000-8000-%012d", s.next)
}

// guest returns the VM of a name or an ID; nil: there is none.
func (s *site) guest(ref string) *guest {
	for _, g := range s.vms {
		if g.Job == ref || g.Name == ref {
			return g
		}
	}
	return nil
}

func (s *site) HostTests(context.Context) ([]job.HostTest, error) {
	defer s.locked()()
	return slices.SortedFunc(maps.Values(s.tests), func(a, b job.HostTest) int { return strings.Compare(a.ID, b.ID) }), nil
}

func (s *site) PutHostTest(_ context.Context, t job.HostTest) error {
	s.hook("PutHostTest")
	defer s.locked()()
	t.Steps = slices.Clone(t.Steps)
	s.tests[t.ID] = t
	return nil
}

// running are the IDs of the tests that run.
func (s *site) running() (ids []string) {
	defer s.locked()()
	for id, h := range s.tests {
		if h.Status == job.HostTestRunning {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *site) DeleteHostTest(_ context.Context, id string) error {
	defer s.locked()()
	delete(s.tests, id)
	return nil
}

func (s *site) Spawn(work func(context.Context)) error {
	s.work.Go(func() { work(s.ctx) })
	return nil
}

func (s *site) Leads(context.Context) bool { return true }

func (s *site) Nodes(context.Context) ([]job.NodeInfo, error) {
	return []job.NodeInfo{{Name: "pve", Status: job.NodeOnline}, {Name: "off", Status: job.NodeOffline}, {Name: "left", Status: job.NodeOnline, Cordoned: true}}, nil
}

func (s *site) CheckHost(ctx context.Context) (job.HostReport, error) {
	done, err := s.call(ctx, "CheckHost")
	if err != nil {
		return job.HostReport{}, err
	}
	defer done()
	return job.HostReport{OK: true, Facts: []job.HostFacts{s.facts}, Checks: s.checks}, nil
}

// add makes a VM.
func (s *site) add(m job.Manifest, from string) *guest {
	id := s.id()
	g := &guest{
		VM:      vm.VM{Job: id, Name: m.VMName, ID: 100 + s.next, Node: "pve", IP: fmt.Sprintf("10.0.0.%d", s.next), HostKey: "key " + id, From: from, Own: &vm.Own{}},
		network: m.Network, labels: m.Labels, files: map[string]string{}, status: vm.Running, machine: "machine " + id,
	}
	s.vms[id] = g
	return g
}

func (s *site) CreateVM(ctx context.Context, sub job.Submission) (job.VMInfo, error) {
	role := sub.Manifest.VMName[strings.LastIndex(sub.Manifest.VMName, "-")+1:]
	done, err := s.call(ctx, "CreateVM "+role)
	if err != nil {
		return job.VMInfo{}, err
	}
	defer done()
	from := ""
	for id := range s.points {
		if !s.booting {
			from = id
		}
	}
	g := s.add(sub.Manifest, from)
	if from != "" && s.alike {
		g.machine = "the checkpoint's"
	}
	made := job.Job{ID: g.Job, Status: job.Success, Outcome: &job.Outcome{Status: job.Success}}
	if failed := s.broken["make "+role]; failed != nil {
		g.Own.Unable, g.status = job.IsClass(failed, job.HostConfig), vm.Gone
		made.Status, made.Outcome = job.Failed, &job.Outcome{Status: job.Failed, Error: failed.Error()}
	}
	s.jobs[g.Job] = made
	return job.VMInfo{VM: g.VM}, nil
}

func (s *site) VM(_ context.Context, ref string) (job.VMInfo, error) {
	defer s.locked()()
	g := s.guest(ref)
	info := job.VMInfo{VM: g.VM, Labels: g.labels}
	info.Status = g.status
	return info, nil
}

func (s *site) VMs(ctx context.Context) (all []job.VMInfo, err error) {
	done, err := s.call(ctx, "VMs")
	if err != nil {
		return nil, err
	}
	defer done()
	for _, g := range s.vms {
		if g.status != vm.Gone {
			all = append(all, job.VMInfo{VM: g.VM, Labels: g.labels})
		}
	}
	return all, nil
}

// change is a call that does something to a VM.
func (s *site) change(ctx context.Context, call, ref string, do func(g *guest)) (job.VMInfo, error) {
	done, err := s.call(ctx, call)
	if err != nil {
		return job.VMInfo{}, err
	}
	defer done()
	g := s.guest(ref)
	do(g)
	return job.VMInfo{VM: g.VM}, nil
}

func (s *site) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return s.change(ctx, "DestroyVM", ref, func(g *guest) { g.status = vm.Gone })
}

func (s *site) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return s.change(ctx, "SuspendVM", ref, func(g *guest) { g.status = vm.Suspended })
}

func (s *site) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return s.change(ctx, "ResumeVM", ref, func(g *guest) { g.status = vm.Running })
}

func (s *site) SnapshotVM(ctx context.Context, ref, _ string, _ bool) (job.VMInfo, error) {
	return s.change(ctx, "SnapshotVM", ref, func(g *guest) { g.kept = maps.Clone(g.files) })
}

func (s *site) RevertVM(ctx context.Context, ref, _ string) (job.VMInfo, error) {
	return s.change(ctx, "RevertVM", ref, func(g *guest) { g.files = g.kept })
}

func (s *site) DeleteSnapshot(ctx context.Context, ref, _ string) (job.VMInfo, error) {
	return s.change(ctx, "DeleteSnapshot", ref, func(g *guest) { g.kept = nil })
}

func (s *site) ForkVM(ctx context.Context, spec job.ForkSpec) (job.Forked, error) {
	done, err := s.call(ctx, "ForkVM")
	if err != nil {
		return job.Forked{}, err
	}
	defer done()
	of := s.guest(spec.VM)
	g := s.add(job.Manifest{VMName: spec.Name, Labels: of.labels}, "")
	g.files = maps.Clone(of.files)
	return job.Forked{Live: true, Why: "it can", VMs: []job.VMInfo{{VM: g.VM}}}, nil
}

func (s *site) Network(ctx context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	done, err := s.call(ctx, "Network")
	if err != nil {
		return job.NetworkReport{}, err
	}
	defer done()
	mode := s.guest(q.VM).network.Mode()
	result := job.ResultNoAnswer
	if (mode == vm.EgressLAN || s.open) && !s.dead {
		result = job.ResultConnected
	}
	return job.NetworkReport{NetworkRules: job.NetworkRules{Mode: mode}, Attempts: []job.NetworkAttempt{{Result: result}}}, nil
}

// Submit runs one of the scripts of a test, by what it looks like.
func (s *site) Submit(ctx context.Context, sub job.Submission) (job.Job, error) {
	script := sub.Manifest.Task
	kind := "script"
	switch {
	case strings.Contains(script, "machine ID="):
		kind = "identities"
	case strings.HasPrefix(script, "seq "):
		kind = "output"
	case strings.HasPrefix(script, "sleep "):
		kind = "sleep"
	}
	done, err := s.call(ctx, "Submit "+kind)
	if err != nil {
		return job.Job{}, err
	}
	defer done()
	g, code := s.guest(sub.Manifest.VM), 0
	j := job.Job{ID: s.id(), Status: job.Success, Manifest: sub.Manifest, Outcome: &job.Outcome{Status: job.Success}}
	out := job.Result{Status: job.Success, ExitCode: &code}
	words := strings.Fields(script)
	switch {
	case kind == "identities":
		out.Stdout = fmt.Appendf(nil, "host name=%s\nmachine ID=%s\nMAC=%s\n", g.Name, g.machine, g.Job)
	case kind == "output":
		for i := range 20000 {
			out.Stdout = fmt.Appendf(out.Stdout, "%d\n", i+1)
		}
		out.Stderr = []byte("caf\303\251 \377")
		code, out.Status = 7, job.Failed
		if s.broken["exit"] != nil {
			code, out.Status = 0, job.Success
		}
	case kind == "sleep":
		j.Status, j.Outcome = job.Running, nil
	case words[0] == "echo":
		file := strings.TrimRight(strings.TrimPrefix(words[2], ">"), ";")
		if g.volume != "" && strings.HasPrefix(file, "/srv/") {
			file = g.volume
		}
		g.files[file] = words[1]
	case words[0] == "cat":
		file := words[1]
		if g.volume != "" && strings.HasPrefix(file, "/srv/") {
			file = g.volume
		}
		out.Stdout = []byte(g.files[file] + "\n")
	}
	if spoilt, ok := s.broken["answer "+kind]; ok {
		out.Stdout, out.Stderr, out.ExitCode, out.Status = []byte(spoilt.Error()), []byte(spoilt.Error()), new(int), job.Success
	}
	s.jobs[j.ID], s.results[j.ID] = j, out
	return j, nil
}

func (s *site) Job(_ context.Context, id string) (job.Job, error) {
	defer s.locked()()
	return s.jobs[id], nil
}

func (s *site) Result(_ context.Context, id string) (job.Result, error) {
	defer s.locked()()
	return s.results[id], nil
}

func (s *site) Watch(ctx context.Context, id string, _ int64) ([]job.Event, job.Job, error) {
	for {
		s.mu.Lock()
		j := s.jobs[id]
		s.mu.Unlock()
		if j.Status.Terminal() || ctx.Err() != nil {
			return []job.Event{{Kind: job.EventWarning, Text: "no checkpoint fits"}}, j, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *site) Cancel(ctx context.Context, id string) error {
	done, err := s.call(ctx, "Cancel")
	if err != nil {
		return err
	}
	defer done()
	j := s.jobs[id]
	j.Status, j.Outcome = job.Failed, &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled}
	s.jobs[id] = j
	return nil
}

func (s *site) List(_ context.Context, f job.Filter) (p job.Page, err error) {
	defer s.locked()()
	for _, j := range s.jobs {
		if j.Manifest.VM != "" && slices.Contains(f.Label, job.HostTestLabel+"="+j.Manifest.Labels[job.HostTestLabel]) {
			p.Jobs = append(p.Jobs, job.Summary{ID: j.ID, Status: j.Status})
		}
	}
	return p, nil
}

func (s *site) DeleteJob(_ context.Context, id string) error {
	defer s.locked()()
	delete(s.jobs, id)
	return nil
}

func (s *site) CreateCheckpoint(ctx context.Context, spec job.CheckpointSpec) (job.CheckpointInfo, error) {
	done, err := s.call(ctx, "CreateCheckpoint")
	if err != nil {
		return job.CheckpointInfo{}, err
	}
	defer done()
	c := job.CheckpointInfo{ID: s.id(), Name: "point", Node: "pve", Template: spec.Template, Resources: spec.Resources, Status: job.CheckpointReady}
	if failed := s.broken["save"]; failed != nil {
		c.Status, c.Text = job.CheckpointFailed, failed.Error()
		return c, nil
	}
	s.points[c.ID] = c
	return c, nil
}

func (s *site) Checkpoints(context.Context) ([]job.CheckpointInfo, error) {
	defer s.locked()()
	return slices.Collect(maps.Values(s.points)), nil
}

func (s *site) RemoveCheckpoint(_ context.Context, id string) (job.CheckpointInfo, error) {
	defer s.locked()()
	delete(s.points, id)
	return job.CheckpointInfo{}, nil
}

func (s *site) CreateVolume(ctx context.Context, spec job.VolumeSpec) (job.VolumeInfo, error) {
	done, err := s.call(ctx, "CreateVolume")
	if err != nil {
		return job.VolumeInfo{}, err
	}
	defer done()
	v := job.VolumeInfo{ID: s.id(), Name: spec.Name, Status: job.VolumeReady}
	s.volumes[v.ID] = v
	return v, nil
}

func (s *site) Volumes(context.Context) ([]job.VolumeInfo, error) {
	defer s.locked()()
	return slices.Collect(maps.Values(s.volumes)), nil
}

func (s *site) AttachVolume(ctx context.Context, a job.VolumeAttach) (job.VolumeInfo, error) {
	_, err := s.change(ctx, "AttachVolume", a.VM, func(g *guest) { g.volume = a.Volume })
	return job.VolumeInfo{}, err
}

func (s *site) DetachVolume(ctx context.Context, _, of string) (job.VolumeInfo, error) {
	_, err := s.change(ctx, "DetachVolume", of, func(g *guest) { g.volume = "" })
	return job.VolumeInfo{}, err
}

func (s *site) RemoveVolume(ctx context.Context, id string) (job.VolumeInfo, error) {
	done, err := s.call(ctx, "RemoveVolume")
	if err != nil {
		return job.VolumeInfo{}, err
	}
	defer done()
	delete(s.volumes, id)
	return job.VolumeInfo{}, nil
}

// proxmox is the site as the host shows it.
type proxmox struct{ s *site }

func (p proxmox) List(ctx context.Context) (all []vm.VM, err error) {
	done, err := p.s.call(ctx, "list")
	if err != nil {
		return nil, err
	}
	defer done()
	all = append(all, p.s.foreign...)
	for _, g := range p.s.vms {
		if g.status != vm.Gone {
			all = append(all, g.VM)
		}
	}
	return all, nil
}

func (p proxmox) ListVolumes(context.Context) (all []vm.VM, err error) {
	defer p.s.locked()()
	for _, v := range p.s.volumes {
		all = append(all, vm.VM{Job: v.ID, Name: v.Name})
	}
	return all, nil
}

func (p proxmox) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	defer p.s.locked()()
	if g := p.s.vms[v.Job]; g != nil {
		return g.status, ctx.Err()
	}
	return vm.Gone, ctx.Err()
}

func (p proxmox) Look(ctx context.Context, v vm.VM) (seen job.Seen, err error) {
	done, err := p.s.call(ctx, "look")
	if err != nil {
		return seen, err
	}
	defer done()
	seen = job.Seen{IP: v.IP, BootID: "boot"}
	if errors.Is(p.s.broken["agent"], errBroken) {
		seen.BootID = ""
	}
	if errors.Is(p.s.broken["address"], errBroken) {
		seen.IP = "10.9.9.9"
	}
	return seen, nil
}

func (p proxmox) Room(ctx context.Context, _ []job.Origin, vms []job.Watched) (room job.HostRoom, err error) {
	done, err := p.s.call(ctx, "lease")
	if err != nil {
		return room, err
	}
	defer done()
	id := vms[0].VM.Job
	p.s.vms[id].status = vm.Gone
	return job.HostRoom{Leases: map[string]job.LeaseState{id: job.LeaseRenewed}}, nil
}

// errBroken is why a call fails.
var errBroken = errors.New("made to fail")

package providertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// fakeJob is a job's state in a VM.
type fakeJob struct {
	payload *job.Payload // nil until Push
	run     *fakeRun     // nil until Start
}

type fakeRun struct {
	task    Task
	bootID  string
	began   time.Time
	limit   time.Duration
	stopped time.Time // by Stop

	input  []byte
	closed bool   // of its stdin
	size   [2]int // of its terminal, by Resize

	unattended, lost bool // set by LoseRunner, and by Start after it
}

// inside returns a job's state in its VM, or the call's error from Behaviour. The VM must be the
// one that was created, with the same address. The caller holds f.mu.
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
	if there == nil || there.stopped || there.suspended || there.Job != vm.Job || there.IP != vm.IP {
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

// withRun holds f.mu and calls do with the job's task, if it was started.
func (f *Fake) withRun(ctx context.Context, op string, j job.Job, errs *[]error, do func(*fakeRun)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, op, j, errs)
	if err == nil && there.run != nil {
		do(there.run)
	}
	return err
}

// Warm does nothing: a fake VM is always warm.
func (f *Fake) Warm(context.Context, job.Job) error { return nil }

// Trust does nothing: a fake VM has no programs.
func (f *Fake) Trust(context.Context, job.Job, []byte) error { return nil }

// Connect fails.
func (f *Fake) Connect(context.Context, job.Job, string) (net.Conn, error) {
	return nil, errors.New("a fake VM reaches nothing")
}

// Push stores the payload, and reads what can only be read now.
func (f *Fake) Push(ctx context.Context, j job.Job, p job.Payload) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Pushes++
	there, err := f.inside(ctx, "push to", j, &f.behaviour.Pushes)
	if err != nil {
		return err
	}
	if p.Repository != nil {
		data := make([]byte, p.RepositorySize)
		if _, err := p.Repository.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		p.Repository = bytes.NewReader(data)
	}
	there.payload = &p
	return nil
}

// Start starts the task, once.
func (f *Fake) Start(ctx context.Context, j job.Job) (bootID string, err error) {
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
		if err == nil {
			bootID = there.run.bootID
		}
		f.mu.Unlock()
		return bootID, err
	}
	bootID = f.vms[j.VM.ID].bootID()
	there.run = &fakeRun{bootID: bootID, began: time.Now(), limit: time.Duration(there.payload.Manifest.Timeout) * time.Second}
	if f.behaviour.Task != nil {
		there.run.task = f.behaviour.Task(*there.payload)
	}
	told, payload := f.behaviour.OnStart, *there.payload
	f.mu.Unlock()
	if told != nil {
		told(j, payload)
	}
	return bootID, nil
}

// Follow returns job.ErrNoChannel.
func (f *Fake) Follow(context.Context, job.Job, func(job.Piece) error) error {
	return job.ErrNoChannel
}

// state returns a run's current state.
func (r *fakeRun) state() job.RunState {
	s := job.RunState{Started: true, StdoutBytes: int64(len(r.task.Stdout)), StderrBytes: int64(len(r.task.Stderr)), DiskFull: r.task.DiskFull}
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
		s.Exited, s.ExitCode, s.Reason, s.Text = true, r.task.ExitCode, "exit", r.task.Text
	case r.limit > 0 && ran > r.limit:
		s.Exited, s.ExitCode, s.Reason = true, 143, "timeout"
	}
	return s
}

// Proxy is open until ctx ends. Nothing in the VM uses it.
func (f *Fake) Proxy(ctx context.Context, _ job.Job, _ int, _ func(context.Context) (net.Conn, error), opened func()) error {
	opened()
	<-ctx.Done()
	return nil
}

// Callbacks returns the next of Behaviour.Ways.
func (f *Fake) Callbacks(ctx context.Context, j job.Job, _, _ string) (job.CallbackWay, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Callbacks++
	if _, err := f.inside(ctx, "find a way for callbacks from", j, new([]error)); err != nil {
		return "", err
	}
	if len(f.behaviour.Ways) == 0 {
		return job.CallbacksDirect, nil
	}
	way := f.behaviour.Ways[0]
	f.behaviour.Ways = f.behaviour.Ways[1:]
	return way, nil
}

// LoseRunner removes the runners of running tasks, as a reboot does. Start then reports them lost.
func (f *Fake) LoseRunner(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[id].reboot()
}

func (there *fakeVM) reboot() {
	there.boots++
	for _, j := range there.jobs {
		if j.run != nil && !j.run.state().Exited {
			j.run.unattended = true
		}
	}
}

// Probe returns the task's state.
func (f *Fake) Probe(ctx context.Context, j job.Job) (job.RunState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Probes++
	there, err := f.inside(ctx, "probe", j, &f.behaviour.Probes)
	if err != nil || there.run == nil {
		return job.RunState{}, err
	}
	return there.run.state(), nil
}

// ReadOutput returns a part of what the task printed.
func (f *Fake) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) (out []byte, err error) {
	err = f.withRun(ctx, "read from", j, &f.behaviour.Reads, func(run *fakeRun) {
		data := run.task.Stdout
		if stream == job.Stderr {
			data = run.task.Stderr
		}
		out = part(data, offset, limit)
	})
	return out, err
}

func part(data []byte, offset, limit int64) []byte {
	from := min(offset, int64(len(data)))
	return slices.Clone(data[from:min(from+limit, int64(len(data)))])
}

// Sums returns the checksums of what the task printed.
func (f *Fake) Sums(ctx context.Context, j job.Job, stdout, stderr int64) (sums [2]string, err error) {
	err = f.withRun(ctx, "compare in", j, &f.behaviour.Reads, func(run *fakeRun) {
		sums[0] = fmt.Sprintf("%x", sha256.Sum256(part(run.task.Stdout, 0, stdout)))
		sums[1] = fmt.Sprintf("%x", sha256.Sum256(part(run.task.Stderr, 0, stderr)))
	})
	return sums, err
}

// Stop stops the task, if it runs.
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

// Input stores what is sent to a task's stdin; a task that echoes prints it.
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

// Resize records the terminal's size.
func (f *Fake) Resize(ctx context.Context, j job.Job, rows, columns int) error {
	return f.withRun(ctx, "resize in", j, &f.behaviour.Inputs, func(run *fakeRun) { run.size = [2]int{rows, columns} })
}

// TerminalSize returns the rows and columns set for a job's terminal; 0, 0: none were set.
func (f *Fake) TerminalSize(j job.Job) (rows, columns int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if there := f.vms[j.VM.ID].jobs[j.ID]; there != nil && there.run != nil {
		return there.run.size[0], there.run.size[1]
	}
	return 0, 0
}

// Dial connects to a program in the VM that echoes its input, at any port but 1.
func (f *Fake) Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.inside(ctx, "connect to", job.Job{ID: "dial", VM: &v}, &f.behaviour.Inputs); err != nil {
		return nil, err
	}
	if port == 1 {
		return nil, &job.FieldError{Field: "port", Problem: "nothing accepts connections at port 1"}
	}
	r, w := io.Pipe()
	return &echoed{r, w}, nil
}

// Login connects to an SSH server that echoes its input, and ignores the key.
func (f *Fake) Login(ctx context.Context, v vm.VM, _ string) (job.Tunnel, error) {
	return f.Dial(ctx, v, 22)
}

// echoed is a connection to a program that echoes its input.
type echoed struct {
	io.Reader
	*io.PipeWriter
}

func (e *echoed) CloseWrite() error { return e.PipeWriter.Close() }

// CloseInput closes a task's stdin.
func (f *Fake) CloseInput(ctx context.Context, j job.Job) error {
	return f.withRun(ctx, "close stdin in", j, &f.behaviour.Inputs, func(run *fakeRun) { run.closed = true })
}

// Artifacts returns every file the task leaves, whatever the patterns.
func (f *Fake) Artifacts(ctx context.Context, j job.Job, limits job.ArtifactLimits) (found []job.FoundArtifact, skipped job.SkippedArtifacts, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.inside(ctx, "find artifacts in", j, &f.behaviour.Reads)
	if err != nil || there.run == nil {
		return nil, skipped, err
	}
	files := there.run.task.Artifacts
	for _, s := range there.run.task.LeftOut {
		skipped.Skip(s.Path, s.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if int64(len(files[name])) > limits.Each || len(found) == limits.Files {
			skipped.Skip(name, "over the limit")
			continue
		}
		found = append(found, job.FoundArtifact{
			Artifact: job.Artifact{Path: name, Size: int64(len(files[name])), Mode: "0644", SHA256: fmt.Sprintf("%x", sha256.Sum256(files[name]))},
			Source:   "/home/debian/" + name,
		})
	}
	return found, skipped, nil
}

// ReadArtifact returns a part of a file the task left.
func (f *Fake) ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) (data []byte, err error) {
	err = f.withRun(ctx, "read from", j, &f.behaviour.Reads, func(run *fakeRun) {
		data = part(run.task.Artifacts[strings.TrimPrefix(source, "/home/debian/")], offset, limit)
	})
	return data, err
}

// Clean removes a job's state from a VM.
func (f *Fake) Clean(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.inside(ctx, "clean up in", j, new([]error)); err != nil {
		return err
	}
	delete(f.vms[j.VM.ID].jobs, j.ID)
	return nil
}

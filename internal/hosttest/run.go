package hosttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// client is the client on whose behalf a test creates things.
const client = "host-test"

// Bounds of a test.
const (
	ttl       = 3600             // of its VMs, in seconds; holds whatever happens to the engine
	stepTime  = 20 * time.Minute // a boot without KVM takes minutes
	cleanTime = 15 * time.Minute
)

// size is the size of a test's VMs, odd enough that no other checkpoint and no pool has it.
var size = vm.Resources{CPU: 1, Memory: "1025M"}

// run is a test that this engine runs.
type run struct {
	t    *Tests
	test job.HostTest // the run's own copy; others read the store
	node job.NodeInfo

	// Tests.mu guards these.
	cancel    context.CancelFunc
	cancelled bool

	nft   job.Check  // of the host
	main  job.VMInfo // the VM that boots, and that most steps use
	seen  job.Seen   // the main VM, as Proxmox sees it
	wrote job.Result // of the job with a long output
	other job.VMInfo // another VM; zero: not made
	who   identity   // of the main VM
}

// cannot is the reason why a step cannot be done on this host.
type cannot struct{ text, remedy string }

func (c *cannot) Error() string { return c.text }

// work goes through the steps. running ends with the engine, asked also if the test is cancelled.
func (r *run) work(running, asked context.Context) {
	log := r.t.o.Log.With("host_test", r.test.ID, "node", r.test.Node)
	log.Info("test of the host begins")
	for _, s := range steps() {
		if r.test.Quick && !s.quick {
			continue
		}
		if asked.Err() != nil {
			break
		}
		r.step(asked, s)
	}
	if running.Err() != nil {
		return // the next engine removes what was made
	}
	status := job.HostTestPassed
	if asked.Err() != nil {
		r.over(job.StepSkipped, "cancelled")
		status = job.HostTestCancelled
	}
	if err := r.finish(running, status); err != nil {
		log.Warn("the end of a test of the host failed, will be tried again", "err", err)
	}
	log.Info("test of the host has ended", "status", r.test.Status)
}

// step does a step and records how it ended.
func (r *run) step(ctx context.Context, s step) {
	for _, name := range s.needs {
		if before := r.test.Step(name); before == nil || before.Result != job.StepPassed {
			r.test.Steps = append(r.test.Steps, job.HostTestStep{Name: s.name, Result: job.StepSkipped, Text: "needs " + name})
			r.save(ctx)
			return
		}
	}
	r.test.Steps = append(r.test.Steps, job.HostTestStep{Name: s.name, Result: job.StepRunning})
	r.save(ctx)
	began := time.Now()
	timed, end := context.WithTimeoutCause(ctx, stepTime, fmt.Errorf("not done within %s", stepTime))
	defer end()
	text, err := s.run(r, timed)
	if ctx.Err() != nil {
		return // over records why
	}
	if err != nil && timed.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(timed), err)
	}
	at := &r.test.Steps[len(r.test.Steps)-1]
	at.Seconds, at.Text, at.Result = time.Since(began).Round(time.Millisecond).Seconds(), text, job.StepPassed
	if err != nil {
		at.Result, at.Text, at.Remedy = outcome(err)
	}
	at.Text = job.Bounded(at.Text) // a guest may have written it
	if s.quick && at.Result == job.StepSkipped {
		at.Result = job.StepFailed // a host that cannot do the minimum has not passed
	}
	r.save(ctx)
}

// outcome classifies an error as a failure, or as something that the host is not set up for.
func outcome(err error) (job.StepResult, string, string) {
	var not *cannot
	var host *job.HostError
	switch {
	case errors.As(err, &not):
		return job.StepSkipped, not.text, not.remedy
	case errors.As(err, &host) && host.Class == job.HostConfig:
		return job.StepSkipped, host.Text, host.Remedy
	case errors.As(err, &host):
		return job.StepFailed, host.Op + ": " + host.Text, host.Remedy
	}
	return job.StepFailed, err.Error(), ""
}

// save stores the test in its current state, so that readers see each step when it starts and ends.
func (r *run) save(ctx context.Context) {
	if err := r.t.o.Store.PutHostTest(context.WithoutCancel(ctx), r.test); err != nil {
		r.t.o.Log.WarnContext(ctx, "keep a step of a test of the host failed", "err", err)
	}
}

// over ends the step that was under way.
func (r *run) over(as job.StepResult, why string) {
	if n := len(r.test.Steps); n == 0 || r.test.Steps[n-1].Result != job.StepRunning {
		r.test.Steps = append(r.test.Steps, job.HostTestStep{Name: stepRest})
	}
	at := &r.test.Steps[len(r.test.Steps)-1]
	at.Result, at.Text = as, why
}

// finish removes what the test has made, proves that, and stores the result.
func (r *run) finish(ctx context.Context, status job.HostTestStatus) error {
	r.step(ctx, step{name: stepClean, run: (*run).clean})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.test.Status = status // until everything is removed, the test counts as running
	if slices.ContainsFunc(r.test.Steps, func(s job.HostTestStep) bool { return s.Result == job.StepFailed }) {
		r.test.Status = job.HostTestFailed
	}
	r.test.EndedAt = time.Now().UTC()
	if err := r.t.o.Store.PutHostTest(ctx, r.test); err != nil {
		return err
	}
	all, err := r.t.o.Store.HostTests(ctx)
	for _, old := range all {
		replaced := r.test.Status != job.HostTestCancelled || old.Status == job.HostTestCancelled // a cancelled test says nothing new
		if replaced && old.ID != r.test.ID && old.Status != job.HostTestRunning && old.Node == r.test.Node && old.Storage == r.test.Storage && old.Quick == r.test.Quick {
			err = errors.Join(err, r.t.o.Store.DeleteHostTest(ctx, old.ID))
		}
	}
	return err
}

func (r *run) name(of string) string { return client + "-" + r.test.ID[24:] + "-" + of }

func (r *run) labels() map[string]string { return map[string]string{job.HostTestLabel: r.test.ID} }

// pause waits until the next check.
func (r *run) pause(ctx context.Context) error {
	return sleep.For(ctx, r.t.o.Pause)
}

// await returns a job when it has ended, which for a VM's job is when the VM is made.
func (r *run) await(ctx context.Context, id string) (job.Job, error) {
	_, j, err := r.t.o.Engine.Watch(ctx, id, job.OnlyEnd)
	if err == nil && !j.Status.Terminal() {
		err = fmt.Errorf("%w: it was %s: %s", context.Cause(ctx), j.Status, j.Progress)
	}
	return j, err
}

// create makes a VM, or returns an error if it could not be made.
func (r *run) create(ctx context.Context, name string, n vm.Network) (job.VMInfo, error) {
	info, err := r.t.o.Engine.CreateVM(ctx, job.Submission{Client: client, Node: r.pin(), Manifest: job.Manifest{
		VMName: r.name(name), VMTemplate: r.test.Template, Resources: size, Network: n, TTL: ttl, Labels: r.labels(),
	}})
	if err != nil {
		return info, err
	}
	j, err := r.await(ctx, info.Job)
	if err == nil && j.Outcome != nil && j.Outcome.Status != job.Success {
		err = r.unable(ctx, info.Job, j.Outcome.Error)
	}
	if err != nil {
		return info, err
	}
	return r.t.o.Engine.VM(ctx, info.Job)
}

// unable returns why a VM or a checkpoint could not be made.
func (r *run) unable(ctx context.Context, id, text string) error {
	if v, err := r.t.o.Row(ctx, id); err == nil && v.Own != nil && v.Own.Unable {
		return &cannot{text: text}
	}
	return errors.New(text)
}

// pin is the node to request for a VM; empty if there is no choice.
func (r *run) pin() string {
	if r.node.Spread {
		return r.test.Node
	}
	return ""
}

// start starts a script in a VM.
func (r *run) start(ctx context.Context, in, script string) (job.Job, error) {
	return r.t.o.Engine.Submit(ctx, job.Submission{Client: client, Manifest: job.Manifest{AgentType: job.AgentScript, Task: script, VM: in, Timeout: 600, Labels: r.labels()}})
}

// ran runs a script in a VM to its end.
func (r *run) ran(ctx context.Context, in, script string) (job.Result, error) {
	j, err := r.start(ctx, in, script)
	if err == nil {
		_, err = r.await(ctx, j.ID)
	}
	if err != nil {
		return job.Result{}, err
	}
	return r.t.o.Engine.Result(ctx, j.ID)
}

// says runs a script in a VM, which must succeed, and returns its trimmed output.
func (r *run) says(ctx context.Context, in, script string) (string, error) {
	result, err := r.ran(ctx, in, script)
	if err == nil && result.Status != job.Success {
		err = fmt.Errorf("a job in VM %s ended as %s (%s): %s%s", in, result.Status, result.Reason, result.Error, result.Stderr)
	}
	return strings.TrimSpace(string(result.Stdout)), err
}

// clean removes everything that the test has made, and checks that the host has none of it left.
func (r *run) clean(ctx context.Context) (string, error) {
	ctx, end := context.WithTimeoutCause(ctx, cleanTime, fmt.Errorf("not gone within %s", cleanTime))
	defer end()
	made := map[string]bool{}
	for {
		left, err := r.remove(ctx, made)
		if err == nil && len(left) == 0 {
			break
		}
		if waited := r.pause(ctx); waited != nil {
			return "", remains(errors.Join(waited, err, fmt.Errorf("left: %s", strings.Join(left, ", "))))
		}
	}
	vms, err := r.t.o.Host.List(ctx)
	volumes, volumesErr := r.t.o.Host.ListVolumes(ctx)
	if err = errors.Join(err, volumesErr); err != nil {
		return "", fmt.Errorf("it is not known what the host has: %w", err)
	}
	var left []string
	for _, v := range slices.Concat(vms, volumes) {
		if made[v.Job] || strings.HasPrefix(v.Name, r.name("")) {
			left = append(left, fmt.Sprintf("%s (VM %d on node %s)", v.Name, v.ID, v.Node))
		}
	}
	if len(left) > 0 {
		return "", remains(fmt.Errorf("the host has %s", strings.Join(left, ", ")))
	}
	return "the host has no VM, volume or checkpoint of it", nil
}

// remains tells the user what to do about what could not be removed.
func remains(err error) error {
	return &job.HostError{Op: "remove all of it", Text: err.Error(), Remedy: "remove by hand what is named here; VMs of a test end by themselves within an hour"}
}

// remove requests the removal of everything that the test has made, and returns what still exists.
// It records in made what there was, by the ID in its marker.
func (r *run) remove(ctx context.Context, made map[string]bool) (left []string, err error) {
	e := r.t.o.Engine
	jobs, err := e.List(ctx, job.Filter{Label: []string{job.HostTestLabel + "=" + r.test.ID}, Limit: 200})
	for _, j := range jobs.Jobs {
		if !j.Status.Terminal() || j.Phase != "" {
			left = append(left, "job "+j.ID)
			if failed := e.Cancel(ctx, j.ID); !errors.Is(failed, job.ErrCompleted) {
				err = errors.Join(err, failed)
			}
		}
	}
	vms, failed := e.VMs(ctx)
	err = errors.Join(err, failed)
	for _, v := range vms {
		if v.Labels[job.HostTestLabel] != r.test.ID {
			continue
		}
		left, made[v.Job] = append(left, v.Name), true
		if _, failed := e.DestroyVM(ctx, v.Job); failed != nil && len(v.Jobs) == 0 {
			err = errors.Join(err, failed)
		}
	}
	checkpoints, failed := e.Checkpoints(ctx)
	err = errors.Join(err, failed)
	for _, c := range checkpoints {
		if c.Template == r.test.Template && c.Resources.CPU == size.CPU && c.Resources.Memory == size.Memory && (c.Node == "" || c.Node == r.test.Node) {
			left, made[c.ID] = append(left, c.Name), true
			_, failed := e.RemoveCheckpoint(ctx, c.ID)
			err = errors.Join(err, failed)
		}
	}
	volumes, failed := e.Volumes(ctx)
	err = errors.Join(err, failed)
	for _, v := range volumes {
		if v.Name == r.name("volume") && v.Status != job.VolumeMissing {
			left, made[v.ID] = append(left, v.Name), true
			if len(v.Uses) == 0 { // otherwise it is detached along with its VM
				_, failed := e.RemoveVolume(ctx, v.ID)
				err = errors.Join(err, failed)
			}
		}
	}
	if len(left) == 0 && err == nil {
		for _, j := range jobs.Jobs {
			err = errors.Join(err, e.DeleteJob(ctx, j.ID))
		}
	}
	return left, err
}

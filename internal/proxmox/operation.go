package proxmox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

// operation is one run of a host script that continues without an engine. The host's part is
// scripts/proxmox/operation.sh.
type operation struct {
	p      *Provider
	dir    string // on the host
	name   string // the script's, for errors
	engine string // ID of the engine that began it

	nonce string
	sent  bool // it may have been started
}

// unsent are the connection faults that prove that a command was not sent.
var unsent = []remote.Class{remote.Refused, remote.Auth, remote.HostKeyUnknown, remote.HostKeyChanged, remote.HostKeyRefused}

func (p *Provider) operations() string { return path.Join(p.o.ScriptDir, "operations") }

// createOperation returns the ID of the only create a job can have.
func (p *Provider) createOperation(jobID string) string { return "create-" + jobID }

var errGone = errors.New("the script is gone from the host without a result: the host was restarted, or the script was killed")

// operate runs a host script as the operation with that ID, or joins the existing one, and returns what
// run returns. It survives a loss of the connection.
func (p *Provider) operate(ctx context.Context, id string, c call) (result.Result, error) {
	p.sign(&c)
	o := &operation{p: p, dir: path.Join(p.operations(), id), name: c.script, engine: c.env["LINUS_ENGINE"]}
	// A cancel never interrupts a command in progress: its effect would be unknown.
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	defer context.AfterFunc(ctx, func() {
		if detached(ctx) {
			end(job.ErrDetach)
		}
	})()

	res, err := o.begin(ctx, work, id, c)
	if err == nil {
		res, err = o.finish(ctx, work, end, c)
	}
	if detached(work) {
		return res, fmt.Errorf("%s: %w", c.op, job.ErrDetach)
	}
	res, err = p.verdict(ctx, c, res, err)
	if err != nil && c.script == "create-vm" && (!o.sent || refused(res, err)) {
		err = job.Uncreated(err)
	}
	return res, err
}

// operateOnce is operate, and then settles the operation, unless ctx was detached: the engine that
// continues the operation joins it, and gets its result.
func (p *Provider) operateOnce(ctx context.Context, id string, c call) (result.Result, error) {
	res, err := p.operate(ctx, id, c)
	if !detached(ctx) {
		p.discard(ctx, c.op, id)
	}
	return res, err
}

// discard settles an operation that no engine will continue, even if ctx has ended. If that fails, the
// operation is left on the host.
func (p *Provider) discard(ctx context.Context, op, id string) {
	if err := p.settle(context.WithoutCancel(ctx), op, id); err != nil {
		p.o.Log.WarnContext(ctx, "operation left on the host", "err", err)
	}
}

// refused reports whether a create ended by itself before the step that makes the VM.
func refused(res result.Result, err error) bool {
	var host *job.HostError
	if !res.Whole || res.Get("LINUS_VM_ID") != "" || !errors.As(err, &host) || host.Class == job.HostCancelled || host.Class == job.HostFenced {
		return false
	}
	steps := res.All(result.KeyStep)
	return len(steps) == 0 || slices.Contains(beforeChanges, readStep(steps[len(steps)-1]).Step)
}

// beforeChanges are the steps of create-vm.sh before the one that makes the VM.
var beforeChanges = []string{"validate_environment", "allocate_vm_id", "download_os_image"}

func detached(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), job.ErrDetach)
}

// begin starts the operation, or joins the existing one.
func (o *operation) begin(ctx, work context.Context, id string, c call) (result.Result, error) {
	// Nothing runs before the scripts are uploaded, so patience with a host that was never reached is shorter.
	names := []string{"operation", c.script}
	if c.guest != "" {
		names = append(names, c.guest)
	}
	names = o.p.withTools(names...)
	err := o.p.persist(ctx, c.op, o.p.o.Patience/10, func() (bool, error) {
		return false, o.p.scripts.use(ctx, names, func([]string) error { return nil })
	})
	if err != nil {
		return result.Result{}, err
	}
	return result.Result{}, o.p.persist(ctx, c.op, o.p.o.Patience, func() (bool, error) {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return false, o.p.scripts.use(work, names, func(files []string) error {
			if c.guest != "" {
				c.env["VM_RUNNER"] = files[2]
			}
			o.p.setTools(c.env, files)
			out, err := o.p.o.Host.Output(work, remote.Command{
				Name: c.script, Line: remote.EnvLine(c.env, "bash", files[0], "start", o.p.operations(), id, files[1], c.replaces),
			}, 64<<10)
			o.sent = o.sent || !slices.Contains(unsent, remote.ClassOf(err))
			if err != nil {
				return err
			}
			// The last line: a login shell may have printed something before.
			line := strings.TrimSpace(string(out))
			nonce, found := strings.CutPrefix(line[strings.LastIndexByte(line, '\n')+1:], "LINUS_OPERATION:")
			if !found {
				return fmt.Errorf("%s: its start was not acknowledged", c.script)
			}
			o.nonce = nonce
			return nil
		})
	})
}

// finish follows the operation to its end, and stops it if ctx ends first.
func (o *operation) finish(ctx, work context.Context, end context.CancelCauseFunc, c call) (result.Result, error) {
	var stopping sync.WaitGroup
	ended := make(chan struct{})
	stopping.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		if !detached(ctx) {
			o.stop(ctx, work, end, ended)
		}
	})
	a := o.p.parse(o.nonce, c)
	err := o.p.persist(work, c.op, o.p.o.Patience, func() (bool, error) { return o.follow(work, a) })
	close(ended)
	stopping.Wait()
	res, parseErr := a.end()
	return res, errors.Join(err, parseErr)
}

// stop makes the script undo its work, and waits for that for at most RollbackWait.
func (o *operation) stop(ctx, work context.Context, end context.CancelCauseFunc, ended <-chan struct{}) {
	limit := time.NewTimer(o.p.o.RollbackWait)
	defer limit.Stop()
	stopping, done := context.WithTimeout(work, o.p.o.RollbackWait)
	defer done()
	err := o.p.persist(stopping, "stop "+o.name, o.p.o.RollbackWait, func() (bool, error) {
		return false, o.p.command(stopping, "stop "+o.name, o.engine, "stop", o.dir)
	})
	if err != nil {
		o.p.o.Log.WarnContext(ctx, "stopping the script failed", "script", o.name, "err", err)
	}
	select {
	case <-ended:
	case <-limit.C:
		end(context.Cause(ctx))
	}
}

// follow passes on the script's output, from where an earlier follow was interrupted, until the script
// has ended. It returns nil if the script exited with 0.
func (o *operation) follow(ctx context.Context, to *answer) (answered bool, err error) {
	mark := "LINUS_OPERATION:" + o.nonce
	var said bytes.Buffer // bounded by operation.sh
	err = o.p.scripts.use(ctx, []string{"operation"}, func(files []string) error {
		out := &remote.AfterMark{Mark: []byte(mark + "\n"), To: to}
		said.Reset()
		err := o.p.o.Host.Run(ctx, remote.Command{
			Name:   o.name,
			Line:   remote.Quote("bash", files[0], "follow", o.dir, strconv.FormatInt(to.told, 10)),
			Stdout: out, Stderr: &said,
		})
		answered = out.Found
		return err
	})
	if err != nil {
		return answered, err
	}
	_, rest, found := strings.Cut(said.String(), mark+":")
	how, log, _ := strings.Cut(rest, "\n")
	code, isCode := strings.CutPrefix(how, "exit:")
	status, err := strconv.Atoi(code)
	switch {
	case found && how == "lost":
		return answered, errGone
	case !found || !isCode || err != nil:
		return answered, fmt.Errorf("%s: its end was not reported: %q", o.name, said.String())
	case status == 0:
		return answered, nil
	}
	return answered, &remote.ExitError{Name: o.name, Code: status, Stderr: term.Text(log)}
}

// settle stops an operation, waits for its roll-back, and removes its files on the host.
func (p *Provider) settle(ctx context.Context, op, id string) error {
	seconds, engine := strconv.Itoa(int(p.o.RollbackWait/time.Second)), p.o.Engine()
	err := p.persist(ctx, op, p.o.Patience/10, func() (bool, error) {
		return false, p.command(ctx, op, engine, "settle", path.Join(p.operations(), id), seconds)
	})
	var exit *remote.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Code == fencedExit:
		return p.failure(op, job.HostFenced, exit.Stderr, "")
	case errors.As(err, &exit):
		return p.failure(op, job.HostTimeout, "the operation of its job has not ended: "+err.Error(),
			"this is retried; if it persists, check on the host: "+path.Join(p.operations(), id))
	}
	return p.hostError(ctx, op, err)
}

// command runs one of operation.sh's verbs for an engine.
func (p *Provider) command(ctx context.Context, name, engine string, argv ...string) error {
	return p.scripts.use(ctx, []string{"operation"}, func(files []string) error {
		argv := append([]string{"bash", files[0]}, argv...)
		line := remote.Quote(argv...)
		if engine != "" {
			line = remote.EnvLine(map[string]string{"LINUS_ENGINE": engine}, argv...)
		}
		return p.o.Host.Run(ctx, remote.Command{Name: name, Line: line})
	})
}

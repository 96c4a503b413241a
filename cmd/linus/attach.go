package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/executor"
	"linus/internal/job"
)

const (
	startTime  = 30 * time.Second // for an engine to start, or to make room for one
	idleTime   = time.Minute      // after which a background engine ends
	maxLogSize = 10 << 20         // of engine.log, before it is set aside
)

// session is an engine as a verb uses it. When the engine ends under it, it
// attaches to the next one, starting it if need be.
type session struct {
	app    *app
	config config.Config

	mu     sync.Mutex
	client *control.Client
}

var _ job.Engine = (*session)(nil)

// attach connects to the engine of the state directory, which is started in
// the background when there is none. strict refuses an engine whose settings
// are not the ones given here: for verbs that make VMs.
func (a *app) attach(ctx context.Context, strict bool) (*session, error) {
	c, err := a.settings()
	if err != nil {
		return nil, err
	}
	s := &session{app: a, config: c}
	client, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	info := client.Info()
	if diff := c.Differs(info.Settings); strict && len(diff) > 0 {
		s.close()
		return nil, fmt.Errorf("the engine of %s (pid %d) runs with other settings:\n%s\n"+
			"end it with linus serve --stop (tasks in VMs go on, and are taken up again), or choose another LINUS_STATE_DIR",
			c.StateDir, info.PID, strings.Join(diff, "\n"))
	}
	if info.Version != buildVersion() {
		_, _ = fmt.Fprintf(a.stderr, "linus: warning: the engine (pid %d) is version %s, this is %s; linus serve --stop ends it\n", info.PID, info.Version, buildVersion())
	}
	return s, nil
}

// reading makes what a verb that only looks runs out of its work with an engine.
func (a *app) reading(work func(ctx context.Context, e job.Engine, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		e, done, err := a.reader(cmd.Context())
		if err != nil {
			return err
		}
		defer done()
		return work(cmd.Context(), e, args)
	}
}

// reader is attach for verbs that only look: where no engine runs and there is
// no host to start one for, they read the state directory themselves.
func (a *app) reader(ctx context.Context) (job.Engine, func(), error) {
	c, err := a.settings()
	if err != nil {
		return nil, nil, err
	}
	if c.NeedHost() != nil {
		client, err := control.Dial(ctx, control.Socket(c.StateDir))
		if err == nil {
			return client, client.Close, nil
		}
		if !errors.Is(err, control.ErrNoEngine) {
			return nil, nil, err
		}
		e, closeStore, err := offlineEngine(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return offline{Executor: e, config: c}, func() { _ = closeStore() }, nil
	}
	s, err := a.attach(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	return s, s.close, nil
}

// offline is what the state directory tells by itself. What only the host or a
// VM can tell is an error that names the setting that is missing.
type offline struct {
	*executor.Executor
	config config.Config
}

// Output returns what is stored, which of a job that has ended is all.
func (o offline) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	j, err := o.Job(ctx, id)
	if err == nil && !j.Status.Terminal() {
		err = o.config.NeedHost()
	}
	if err != nil {
		return job.Chunk{}, err
	}
	return o.Executor.Output(ctx, id, stream, offset, limit)
}

// VMs are the host's to tell of.
func (o offline) VMs(context.Context) ([]job.VMInfo, error) { return nil, o.config.NeedHost() }

func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

// connect returns the connection there is, or a new one.
func (s *session) connect(ctx context.Context) (*control.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		client, err := control.Dial(ctx, control.Socket(s.config.StateDir))
		if err == nil {
			s.client = client
			return client, nil
		}
		if !errors.Is(err, control.ErrNoEngine) && !errors.Is(err, control.ErrLost) {
			return nil, err
		}
		if err := s.config.NeedHost(); err != nil {
			return nil, err
		}
		said, err := startEngine(ctx, s.config)
		switch {
		case err != nil:
			return nil, err
		case said == readyWord:
		case said == busyWord: // one is starting, or one is ending
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return nil, fmt.Errorf("an engine holds %s and does not answer: %w; see engine.log there", s.config.StateDir, err)
			}
		default:
			return nil, errors.New(said)
		}
	}
}

// startEngine starts an engine in a session of its own and returns what it says
// of its start.
func startEngine(ctx context.Context, c config.Config) (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return "", fmt.Errorf("make the state directory: %w; set LINUS_STATE_DIR to a directory of yours", err)
	}
	logFile, err := openLog(filepath.Join(c.StateDir, "engine.log"))
	if err != nil {
		return "", err
	}
	defer logFile.Close() //nolint:errcheck // the engine has its own
	answer, tell, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	defer answer.Close()                                                               //nolint:errcheck // only read
	cmd := exec.Command(program, "serve", "--background", "--idle", idleTime.String()) //nolint:noctx // it outlives this process
	cmd.Env = c.Environ()
	cmd.Stdout, cmd.Stderr = tell, logFile
	cmd.SysProcAttr = detached()
	err = cmd.Start()
	_ = tell.Close()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	go cmd.Wait() //nolint:errcheck // only lest it stays a zombie while this process lives
	stop := context.AfterFunc(ctx, func() { _ = answer.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(answer, 64<<10))
	switch {
	case err != nil:
		return "", fmt.Errorf("the engine does not start: %w; see %s", errors.Join(ctx.Err(), err), logFile.Name())
	case len(said) == 0:
		return "", fmt.Errorf("the engine ended at once; see %s", logFile.Name())
	}
	return string(said), nil
}

// openLog opens a log for appending; a large one is set aside first.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogSize {
		_ = os.Rename(path, path+".1")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the engine's log: %w", err)
	}
	return f, nil
}

// do calls f with a connection. When the engine has gone before it heard of the
// call, or the call may be repeated, f is called once more with the next engine.
func (s *session) do(ctx context.Context, repeatable bool, f func(*control.Client) error) error {
	for attempt := 0; ; attempt++ {
		client, err := s.connect(ctx)
		if err != nil {
			return err
		}
		err = f(client)
		gone := errors.Is(err, control.ErrNoEngine) || errors.Is(err, control.ErrLost) && repeatable
		if !gone || attempt > 0 || ctx.Err() != nil {
			return err
		}
		s.mu.Lock()
		if s.client == client {
			s.client = nil
			client.Close()
		}
		s.mu.Unlock()
	}
}

func (s *session) Submit(ctx context.Context, sub job.Submission) (j job.Job, err error) {
	err = s.do(ctx, sub.IdempotencyKey != "", func(c *control.Client) (err error) {
		j, err = c.Submit(ctx, sub)
		return err
	})
	return j, err
}

func (s *session) Job(ctx context.Context, id string) (job.Job, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.Job, error) { return c.Job(ctx, id) })
}

func (s *session) Plan(ctx context.Context, sub job.Submission) ([]string, error) {
	return ask(ctx, s, true, func(c *control.Client) ([]string, error) { return c.Plan(ctx, sub) })
}

func (s *session) Result(ctx context.Context, id string) (job.Result, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.Result, error) { return c.Result(ctx, id) })
}

func (s *session) Cancel(ctx context.Context, id string) error {
	return s.do(ctx, true, func(c *control.Client) error { return c.Cancel(ctx, id) })
}

func (s *session) Kill(ctx context.Context, id, signal string) (job.Killed, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.Killed, error) { return c.Kill(ctx, id, signal) })
}

func (s *session) List(ctx context.Context, f job.Filter) (job.Page, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.Page, error) { return c.List(ctx, f) })
}

func (s *session) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return ask(ctx, s, true, func(c *control.Client) (int, error) { return c.Cleanup(ctx, olderThan) })
}

func (s *session) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.Chunk, error) { return c.Output(ctx, id, stream, offset, limit) })
}

// Input is not asked again: what was sent may have arrived.
func (s *session) Input(ctx context.Context, id string, data []byte, closed bool) error {
	return s.do(ctx, false, func(c *control.Client) error { return c.Input(ctx, id, data, closed) })
}

func (s *session) OpenArtifact(ctx context.Context, id, path string) (r io.ReadCloser, about job.Artifact, err error) {
	err = s.do(ctx, true, func(c *control.Client) (err error) {
		r, about, err = c.OpenArtifact(ctx, id, path)
		return err
	})
	return r, about, err
}

func (s *session) VMs(ctx context.Context) ([]job.VMInfo, error) {
	return ask(ctx, s, true, func(c *control.Client) ([]job.VMInfo, error) { return c.VMs(ctx) })
}

func (s *session) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.VMInfo, error) { return c.VM(ctx, ref) })
}

func (s *session) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.VMInfo, error) { return c.StartVM(ctx, ref) })
}

func (s *session) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.VMInfo, error) { return c.StopVM(ctx, ref) })
}

func (s *session) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.VMInfo, error) { return c.DestroyVM(ctx, ref) })
}

// ForgetVM is not asked again: what was forgotten is not found any more.
func (s *session) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask(ctx, s, false, func(c *control.Client) (job.VMInfo, error) { return c.ForgetVM(ctx, ref) })
}

func (s *session) SnapshotVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return ask(ctx, s, false, func(c *control.Client) (job.VMInfo, error) { return c.SnapshotVM(ctx, ref, snapshot) })
}

func (s *session) RevertVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return ask(ctx, s, false, func(c *control.Client) (job.VMInfo, error) { return c.RevertVM(ctx, ref, snapshot) })
}

func (s *session) CheckHost(ctx context.Context) (job.HostReport, error) {
	return ask(ctx, s, true, func(c *control.Client) (job.HostReport, error) { return c.CheckHost(ctx) })
}

func (s *session) Watch(ctx context.Context, id string, after int64) (events []job.Event, j job.Job, err error) {
	err = s.do(ctx, true, func(c *control.Client) (err error) {
		events, j, err = c.Watch(ctx, id, after)
		return err
	})
	return events, j, err
}

// ask is session.do for calls with an answer.
func ask[T any](ctx context.Context, s *session, repeatable bool, call func(*control.Client) (T, error)) (answer T, err error) {
	err = s.do(ctx, repeatable, func(c *control.Client) (err error) {
		answer, err = call(c)
		return err
	})
	return answer, err
}

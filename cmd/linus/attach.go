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
	*control.Client
	config config.Config
}

// attach connects to the engine of the state directory, which is started in
// the background when there is none. strict refuses an engine whose settings
// are not the ones given here: for verbs that make VMs.
func (a *app) attach(ctx context.Context, strict bool) (*session, error) {
	c, err := a.settings()
	if err != nil {
		return nil, err
	}
	client, err := control.NewClient(ctx, func(ctx context.Context) (*control.Conn, error) { return a.dial(ctx, c, strict) })
	if err != nil {
		return nil, err
	}
	return &session{Client: client, config: c}, nil
}

// dial connects to the engine of the state directory, which it starts when there
// is none, and looks whether it is the right one.
func (a *app) dial(ctx context.Context, c config.Config, strict bool) (*control.Conn, error) {
	conn, err := connect(ctx, c)
	if err != nil {
		return nil, err
	}
	info := conn.Info()
	if diff := c.Differs(info.Settings); strict && len(diff) > 0 {
		conn.Close()
		return nil, fmt.Errorf("the engine of %s (pid %d) runs with other settings:\n%s\n"+
			"end it with linus serve --stop (tasks in VMs go on, and are taken up again), or choose another LINUS_STATE_DIR",
			c.StateDir, info.PID, strings.Join(diff, "\n"))
	}
	if info.Version != buildVersion() {
		_, _ = fmt.Fprintf(a.stderr, "linus: warning: the engine (pid %d) is version %s, this is %s; linus serve --stop ends it\n", info.PID, info.Version, buildVersion())
	}
	return conn, nil
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
	return s, s.Close, nil
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

// connect returns a connection to the engine, which it starts when there is none.
func connect(ctx context.Context, c config.Config) (*control.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		conn, err := control.Connect(ctx, control.Socket(c.StateDir))
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, control.ErrNoEngine) && !errors.Is(err, control.ErrLost) {
			return nil, err
		}
		if err := c.NeedHost(); err != nil {
			return nil, err
		}
		said, err := startEngine(ctx, c)
		switch {
		case err != nil:
			return nil, err
		case said == readyWord:
		case said == busyWord: // one is starting, or one is ending
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return nil, fmt.Errorf("an engine holds %s and does not answer: %w; see engine.log there", c.StateDir, err)
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

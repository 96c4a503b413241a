package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/sleep"
)

const (
	startTime = 30 * time.Second // for an engine to start, or for an old one to end

	// How long to wait for an engine to become idle, so that it can be replaced: if its settings
	// differ and it would be refused, and if only its version differs.
	uselessTime  = time.Second
	outdatedTime = 200 * time.Millisecond
	maxReplaced  = 3 // engines replaced for one connection
)

// Attach returns a client of the state directory's engine. It starts an engine in the background if
// there is none, now and whenever the engine has ended. With strict, for verbs that create VMs, it
// returns a *SettingsError for an engine with other settings, unless the engine can be replaced;
// without strict, only for an engine with another database. With LINUS_SERVER set, the engine is
// that server's.
func Attach(ctx context.Context, o Options, strict bool) (*control.Client, error) {
	if o.Config.Server != "" {
		return attachServer(ctx, o.Config)
	}
	return control.NewClient(ctx, func(ctx context.Context) (*control.Conn, error) { return o.dial(ctx, strict) })
}

// AttachLater is a strict Attach for when PROXMOX_HOST is not set yet: each call reads the settings
// again, and fails until they have it.
func AttachLater(o Options, settings func(context.Context) (config.Config, error)) *control.Client {
	return control.Later(func(ctx context.Context) (*control.Conn, error) {
		c, err := settings(ctx)
		if err != nil {
			return nil, err
		}
		now := o
		now.Config = c
		return now.dial(ctx, true)
	})
}

// SettingsError says that the engine's settings differ from the client's.
type SettingsError struct {
	StateDir    string
	PID         int
	Differences []string // one line each
	Service     bool     // systemd runs the engine
}

func (e *SettingsError) Error() string {
	remedy := "end it with linus serve --stop (tasks in VMs keep running, and are followed again)"
	if e.Service {
		remedy = "it is a service: set them where its unit reads them, and run systemctl restart linus (tasks in VMs keep running, and are followed again)"
	}
	return fmt.Sprintf("the engine of %s (pid %d) runs with other settings:\n%s\n%s, or choose another LINUS_STATE_DIR",
		e.StateDir, e.PID, strings.Join(e.Differences, "\n"), remedy)
}

// dial connects to the engine and checks its settings and its version. If they differ, it replaces
// an idle engine, at most maxReplaced times: other clients may be replacing engines, too.
func (o Options) dial(ctx context.Context, strict bool) (*control.Conn, error) {
	for replaced := 0; ; replaced++ {
		conn, err := o.connect(ctx)
		if err != nil {
			return nil, err
		}
		info := conn.Info()
		diff := o.Config.OtherStore(info.Settings)
		if strict {
			diff = o.Config.Differs(info.Settings)
		}
		refused := len(diff) > 0
		if !refused && info.Version == o.Version {
			return conn, nil
		}
		patience := outdatedTime
		if refused {
			patience = uselessTime
		}
		if replaced < maxReplaced && o.replace(ctx, conn, patience) {
			conn.Close()
			continue
		}
		if refused {
			conn.Close()
			return nil, &SettingsError{StateDir: o.Config.StateDir, PID: info.PID, Differences: diff, Service: info.Service}
		}
		if o.OtherVersion != nil {
			o.OtherVersion(info)
		}
		return conn, nil
	}
}

// replace asks the engine to end, and reports whether it does. It waits up to patience for the last
// steps of a job, or of a client that has just exited.
func (o Options) replace(ctx context.Context, conn *control.Conn, patience time.Duration) bool {
	if !conn.Info().Background || o.Config.NeedHost() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ends, err := conn.Yield(ctx)
		if ends || errors.Is(err, control.ErrNoEngine) || errors.Is(err, control.ErrLost) {
			return true // or it has ended on its own
		}
		if err != nil || sleep.For(ctx, 50*time.Millisecond) != nil {
			return false
		}
	}
}

// connect returns a connection to the engine, and starts one if there is none.
func (o Options) connect(ctx context.Context) (*control.Conn, error) {
	c := o.Config
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
		said, err := o.start(ctx)
		switch {
		case err != nil:
			return nil, err
		case said == readyWord:
		case said == busyWord: // an engine is starting or ending
			if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
				return nil, fmt.Errorf("an engine has %s locked and does not respond: %w; see engine.log there", c.StateDir, err)
			}
		default:
			return nil, errors.New(said)
		}
	}
}

// start starts an engine in its own session, and returns what the engine reports about its start.
func (o Options) start(ctx context.Context) (string, error) {
	c := o.Config
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return "", fmt.Errorf("create the state directory: %w; set LINUS_STATE_DIR to a directory you can write to", err)
	}
	logFile, err := openLog(logPath(c.StateDir))
	if err != nil {
		return "", err
	}
	defer logFile.Close() //nolint:errcheck // the engine has its own descriptor
	answer, tell, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	defer answer.Close()                     //nolint:errcheck // opened for reading
	cmd := exec.Command(program, o.Start...) //nolint:noctx // it outlives this process
	cmd.Env = c.Environ()
	cmd.Stdout, cmd.Stderr = tell, logFile
	cmd.SysProcAttr = detached()
	err = slackened(cmd.Start)
	_ = tell.Close()
	if err != nil {
		return "", fmt.Errorf("start the engine: %w", err)
	}
	go cmd.Wait() //nolint:errcheck // only so that it does not remain a zombie while this process lives
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

package daemon

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/sleep"
)

// closeTime bounds how long an engine takes to stop.
const closeTime = 20 * time.Second

// Serving says where a running engine can be reached.
type Serving struct {
	Callback string // address listened on for callbacks
	HTTP     *HTTP  // nil: not served
	E2B      string // URL at which E2B's clients are served; empty: they are not
	Engine   job.Engine
}

// Serve runs the engine until ctx ends, a client asks it to stop, or it has been idle for the given
// time (0: no limit). It returns ErrLocked if an engine is running already.
func Serve(ctx context.Context, o Options, idle time.Duration, ready func(Serving)) error {
	return serve(ctx, o, false, idle, ready)
}

func serve(ctx context.Context, o Options, background bool, idle time.Duration, ready func(Serving)) (err error) {
	c, log := o.Config, o.Log
	if err := c.NeedHost(); err != nil {
		return err
	}
	lock, err := Lock(c.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing to lose
	e, err := openEngine(ctx, o)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	l, err := control.Listen(ctx, c.StateDir)
	if err == nil {
		err = e.start(ctx, end)
	}
	if err != nil {
		return errors.Join(err, e.close(ctx))
	}
	face, err := openHTTP(ctx, o, e, end)
	if err != nil {
		return errors.Join(err, l.Close(), e.close(ctx))
	}
	sandboxes, err := openE2B(ctx, o, e, end)
	if err != nil {
		return errors.Join(err, face.close(ctx), l.Close(), e.close(ctx))
	}
	info := control.Info{Version: o.Version, PID: os.Getpid(), Callback: net.JoinHostPort(c.CallbackHost, strconv.Itoa(e.callbacks.Port())), Settings: c.Effective(), Background: background, Service: c.NotifySocket != "" && !background}
	clients := control.NewServer(e.guarded, control.Options{Info: info, Stop: func() { end(errAsked) }, Drain: func(asked context.Context) error { return e.drain(asked, ctx, end) }, Idle: e.free, Log: log}) //nolint:contextcheck // requests end with Close, after being told why
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := clients.Serve(l); err != nil {
			end(err)
		}
	}()
	log.Info("engine started", "version", info.Version, "state_dir", c.StateDir, "callback", info.Callback)
	serving := Serving{Callback: info.Callback, Engine: e.guarded}
	if face != nil {
		serving.HTTP = &face.HTTP
	}
	serving.E2B = sandboxes.url()
	ready(serving)
	go processors(ctx)
	if idle > 0 {
		go endWhenIdle(ctx, idle, func() bool { return clients.Clients() == 0 && e.Idle() }, func() bool {
			retired := clients.Retire(ctx)
			if retired {
				end(errIdle)
			}
			return retired
		})
	}
	<-ctx.Done()

	why := context.Cause(ctx)
	log.Info("engine stops", "cause", why)
	if o.Stopping != nil {
		o.Stopping()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	err = clients.Close(closing)
	<-served
	err = errors.Join(err, face.close(closing), sandboxes.close(closing), e.close(closing))
	if errors.Is(why, errAsked) || errors.Is(why, errDrained) || errors.Is(why, errIdle) || errors.Is(why, context.Canceled) {
		return err
	}
	return errors.Join(why, err)
}

// Causes for which an engine stops without an error.
var (
	errAsked   = errors.New("a client asked for it")
	errDrained = errors.New("drained")
	errIdle    = errors.New("idle")
)

// endWhenIdle calls end once idle has been true for as long as limit, and repeats it until end
// returns true.
func endWhenIdle(ctx context.Context, limit time.Duration, idle, end func() bool) {
	for busy := time.Now(); sleep.For(ctx, max(limit/20, 10*time.Millisecond)) == nil; {
		if !idle() {
			busy = time.Now()
		} else if time.Since(busy) >= limit && end() {
			return
		}
	}
}

// ServeInBackground is Serve as started by Attach. It writes the outcome of the start to tell,
// which it closes if the engine is ready. told reports whether it was; if not, the error has been
// written to tell.
func ServeInBackground(ctx context.Context, o Options, idle time.Duration, tell io.Writer) (told bool, err error) {
	signal.Ignore(syscall.SIGPIPE) // the process that started it may have exited
	o.Config = o.Config.InBackground()
	err = serve(ctx, o, true, idle, func(Serving) {
		told = true
		_, _ = io.WriteString(tell, readyWord)
		if pipe, ok := tell.(io.Closer); ok {
			_ = pipe.Close()
		}
	})
	if !told {
		text := busyWord
		if err != nil && !errors.Is(err, ErrLocked) {
			text = err.Error()
		}
		_, _ = io.WriteString(tell, text)
	}
	return told, err
}

// Stop stops the engine of the state directory and waits until it has ended. It reports whether
// there was one.
func Stop(ctx context.Context, c config.Config) (stopped bool, err error) {
	pid := 0
	there, err := ask(ctx, c, func(conn *control.Conn) error {
		pid = conn.Info().PID
		return conn.Stop(ctx)
	})
	if !there || err != nil && !errors.Is(err, control.ErrLost) && !errors.Is(err, control.ErrNoEngine) {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, closeTime+5*time.Second)
	defer cancel()
	if err := ended(ctx, c); err != nil {
		return false, fmt.Errorf("the engine (pid %d) does not stop: %w; see engine.log in %s", pid, err, c.StateDir)
	}
	return true, nil
}

// Drain has the engine of the state directory take no more jobs, and waits until its jobs, and then
// the engine, have ended. asked is called when the engine has begun to drain. Drain reports whether
// there was an engine.
func Drain(ctx context.Context, c config.Config, asked func()) (drained bool, err error) {
	there, err := ask(ctx, c, func(conn *control.Conn) error { return conn.Drain(ctx) })
	if !there || err != nil {
		return false, err
	}
	asked()
	return true, ended(ctx, c)
}

// ask calls what with a connection to the state directory's engine, and reports whether there is
// one.
func ask(ctx context.Context, c config.Config, what func(*control.Conn) error) (there bool, err error) {
	conn, err := control.Connect(ctx, control.Socket(c.StateDir))
	if errors.Is(err, control.ErrNoEngine) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer conn.Close()
	return true, what(conn)
}

// ended waits until no engine has the state directory locked.
func ended(ctx context.Context, c config.Config) error {
	for {
		lock, err := Lock(c.StateDir)
		if err == nil {
			return lock.Close()
		}
		if !errors.Is(err, ErrLocked) {
			return err
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// What a background engine writes to the process that started it: one of these words, or the text
// of its error.
const (
	readyWord = "ready"
	busyWord  = "busy"
)

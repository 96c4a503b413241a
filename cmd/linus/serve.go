package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/control"
)

// closeTime bounds the end of an engine.
const closeTime = 20 * time.Second

// What a background engine writes to the process that started it: one of these,
// or the text of the error that ended it.
const (
	readyWord = "ready"
	busyWord  = "busy"
)

func (a *app) serveCommand() *cobra.Command {
	var stop, background, unit bool
	var idle time.Duration
	var httpAddr string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine in the foreground (otherwise it is started on demand)",
		Long: "Runs the engine of the state directory in the foreground until it is interrupted. The other commands attach to it.\n" +
			"Otherwise they start one in the background, which ends when no client is connected and no job is unfinished.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if unit {
				return printUnit(a.stdout)
			}
			c, err := a.settings()
			switch {
			case err != nil:
				return err
			case stop:
				return a.stopEngine(cmd.Context(), c)
			case background:
				c.HTTPAddr = "" // for linus serve, which stays
				return a.serveInBackground(cmd.Context(), c, idle)
			}
			if httpAddr != "" {
				if !config.IsAddress(httpAddr) {
					return usage("--http %q is not an address and port; give one such as 127.0.0.1:8766", httpAddr)
				}
				c.HTTPAddr = httpAddr
			}
			ready := func(e *engine, h *httpFace) {
				_, _ = fmt.Fprintf(a.stderr, "linus serves %s, callbacks on %s\n", c.StateDir, callbackAddress(c, e))
				h.announce(a.stderr)
			}
			err = a.serve(cmd.Context(), c, logger(a.stderr, c), idle, ready)
			if errors.Is(err, errLocked) {
				return fmt.Errorf("%w; linus serve --stop ends it, LINUS_STATE_DIR chooses another directory", err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&stop, "stop", false, "stop the running engine; tasks in VMs go on and the next engine follows them again")
	cmd.Flags().BoolVar(&unit, "systemd-unit", false, "print a systemd unit that keeps an engine running; its header explains how to use it")
	cmd.Flags().StringVar(&httpAddr, "http", "", "also serve MCP, downloads and the web page over HTTP on this address:port (HTTP_ADDR)")
	a.mcpFlags(cmd)
	cmd.Flags().DurationVar(&idle, "idle", 0, "end after this time without clients and unfinished jobs; 0: never")
	cmd.Flags().BoolVar(&background, "background", false, "")
	_ = cmd.Flags().MarkHidden("background")
	return cmd
}

//go:embed linus.service
var unitText string

// printUnit writes the systemd unit with this program's path in it.
func printUnit(w io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of this program: %w", err)
	}
	return template.Must(template.New("unit").Parse(unitText)).Execute(w, self)
}

// serve runs the engine until ctx ends, a client asks it to stop, or it was
// idle for so long.
func (a *app) serve(ctx context.Context, c config.Config, log *slog.Logger, idle time.Duration, ready func(*engine, *httpFace)) (err error) {
	if err := c.NeedHost(); err != nil {
		return err
	}
	lock, err := lockState(c.StateDir)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	e, err := a.openEngine(ctx, c, log)
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
	face, err := openHTTP(ctx, c, e, log, end)
	if err != nil {
		return errors.Join(err, l.Close(), e.close(ctx))
	}
	info := control.Info{Version: buildVersion(), PID: os.Getpid(), Callback: callbackAddress(c, e), Settings: c.Effective()}
	clients := control.NewServer(e, info, func() { end(errAsked) }, log) //nolint:contextcheck // requests end with Close, after they were told why
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := clients.Serve(l); err != nil {
			end(err)
		}
	}()
	log.Info("engine started", "version", info.Version, "state_dir", c.StateDir, "callback", info.Callback)
	ready(e, face)
	if idle > 0 {
		go endWhenIdle(ctx, end, idle, func() bool { return clients.Clients() == 0 && e.Idle() })
	}
	<-ctx.Done()

	why := context.Cause(ctx)
	log.Info("engine ends", "cause", why)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	err = clients.Close(closing)
	<-served
	err = errors.Join(err, face.close(closing), e.close(closing))
	if errors.Is(why, errAsked) || errors.Is(why, errIdle) || errors.Is(why, context.Canceled) {
		return err
	}
	return errors.Join(why, err)
}

// Why an engine ends without being at fault.
var (
	errAsked = errors.New("a client asked for it")
	errIdle  = errors.New("idle")
)

// endWhenIdle calls end when idle has been true for so long.
func endWhenIdle(ctx context.Context, end context.CancelCauseFunc, limit time.Duration, idle func() bool) {
	tick := time.NewTicker(max(limit/20, 10*time.Millisecond))
	defer tick.Stop()
	busy := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !idle() {
				busy = time.Now()
			} else if time.Since(busy) >= limit {
				end(errIdle)
				return
			}
		}
	}
}

// serveInBackground is serve as attach starts it: what becomes of the start is
// written to stdout, which ends with that; all else to the log on stderr.
func (a *app) serveInBackground(ctx context.Context, c config.Config, idle time.Duration) error {
	signal.Ignore(syscall.SIGPIPE) // who started it may be gone by then
	told := false
	err := a.serve(ctx, c, logger(a.stderr, c), idle, func(*engine, *httpFace) {
		told = true
		_, _ = io.WriteString(a.stdout, readyWord)
		if pipe, ok := a.stdout.(io.Closer); ok {
			_ = pipe.Close()
		}
	})
	if !told {
		text := busyWord
		if err != nil && !errors.Is(err, errLocked) {
			text = err.Error()
		}
		_, _ = io.WriteString(a.stdout, text)
		return exitError(exitCode(err))
	}
	return err
}

// stopEngine ends the engine of the state directory and waits until it has gone.
func (a *app) stopEngine(ctx context.Context, c config.Config) error {
	client, err := control.Connect(ctx, control.Socket(c.StateDir))
	if errors.Is(err, control.ErrNoEngine) {
		return a.print(map[string]bool{"stopped": false}, "no engine is running")
	}
	if err != nil {
		return err
	}
	pid := client.Info().PID
	err = client.Stop(ctx)
	client.Close()
	if err != nil && !errors.Is(err, control.ErrLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, closeTime+5*time.Second)
	defer cancel()
	for {
		lock, err := lockState(c.StateDir)
		if err == nil {
			_ = lock.Close()
			return a.print(map[string]bool{"stopped": true}, "engine stopped; tasks in VMs go on, and the next engine takes them up again")
		}
		if !errors.Is(err, errLocked) {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the engine (pid %d) does not end: %w; see engine.log in %s", pid, err, c.StateDir)
		}
	}
}

func callbackAddress(c config.Config, e *engine) string {
	return net.JoinHostPort(c.CallbackHost, strconv.Itoa(e.callbacks.Port()))
}

// pause waits; it is an error when ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

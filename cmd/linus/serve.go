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
	"text/template"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/sleep"
)

func (a *app) serveCommand() *cobra.Command {
	var stop, drain, background, unit bool
	var idle time.Duration
	var httpAddr, waitFor string
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
			c, err := a.localSettings(cmd, "it runs an engine on this machine")
			switch {
			case err != nil:
				return err
			case stop:
				stopped, err := daemon.Stop(cmd.Context(), c)
				return a.engineEnded("stopped", "engine stopped; tasks in VMs keep running, and the next engine follows them again", stopped, err)
			case drain:
				drained, err := daemon.Drain(cmd.Context(), c, func() {
					_, _ = fmt.Fprintln(a.stderr, "the engine takes no more jobs, and stops when its jobs have ended; interrupting this command does not change that")
				})
				return a.engineEnded("drained", "engine drained and stopped", drained, err)
			case background:
				o := a.daemon(c)
				o.Log = logger(daemon.NewEngineLog(c.StateDir, a.stderr), c)
				told, err := daemon.ServeInBackground(cmd.Context(), o, idle, a.stdout)
				if !told {
					err = exitError(exitCode(err)) // stdout is a terminal
				}
				return err
			}
			if httpAddr != "" {
				if !config.IsAddress(httpAddr) {
					return usage("--http %q is not an address and port; give one such as 127.0.0.1:8766", httpAddr)
				}
				c.HTTPAddr = httpAddr
			}
			if c.NeedHost() != nil && waitFor != "" {
				a.tellReady(cmd.Context(), c)
				return a.awaitChange(cmd.Context(), waitFor)
			}
			o, stop := a.daemon(c), func() {}
			h := &hooks{}
			o.Stopping, o.Hooks = func() { stop() }, h.of
			var lines []dispatchLine
			if c.DispatchFile != "" {
				if lines, err = readDispatchFile(c.DispatchFile); err != nil {
					return err
				}
			}
			err = daemon.Serve(cmd.Context(), o, idle, func(s daemon.Serving) {
				stop = a.dispatchers(cmd.Context(), c, s.Engine, h, lines, o.Log)
				_, _ = fmt.Fprintf(a.stderr, "linus serves %s, callbacks on %s\n", c.StateDir, s.Callback)
				announce(a.stderr, s.HTTP)
				if s.E2B != "" {
					_, _ = fmt.Fprintf(a.stderr, "Sandboxes for E2B's clients at %s; linus e2b env NAME prints what they need\n", s.E2B)
				}
				a.tellReady(cmd.Context(), c)
			})
			if errors.Is(err, daemon.ErrLocked) {
				return fmt.Errorf("%w; linus serve --stop ends it, LINUS_STATE_DIR chooses another directory", err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&stop, "stop", false, "stop the running engine; tasks in VMs keep running, and the next engine follows them again")
	cmd.Flags().BoolVar(&drain, "drain", false, "let the running engine take no more jobs, wait until those it has have ended, and stop it")
	cmd.Flags().BoolVar(&unit, "systemd-unit", false, "print a systemd unit that keeps an engine running; its header explains how to use it")
	cmd.Flags().StringVar(&httpAddr, "http", "", "also serve MCP, downloads and the web page over HTTP on this address:port (HTTP_ADDR)")
	a.mcpFlags(cmd)
	cmd.Flags().DurationVar(&idle, "idle", 0, "stop after this time without clients and unfinished jobs; 0: never")
	cmd.Flags().StringVar(&waitFor, "wait-for", "", "without PROXMOX_HOST, say that it is missing in this file, and end only when that changes: for services that are restarted")
	cmd.Flags().BoolVar(&background, "background", false, "")
	_ = cmd.Flags().MarkHidden("background")
	return cmd
}

// tellReady tells systemd that clients can attach, if systemd waits for that (units with
// Type=notify).
func (a *app) tellReady(ctx context.Context, c config.Config) {
	if c.NotifySocket == "" {
		return
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", c.NotifySocket)
	if err == nil {
		_, err = io.WriteString(conn, "READY=1")
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		_, _ = fmt.Fprintf(a.stderr, "linus: systemd cannot be told that the engine is ready: %v\n", err)
	}
}

// awaitChange reports that there is no host and waits until the file that should name it changes.
// Then it returns an error, so that the service is restarted.
func (a *app) awaitChange(ctx context.Context, file string) error {
	before, _ := os.Stat(file) // nil if the file is missing or cannot be read
	_, _ = fmt.Fprintf(a.stderr, "linus: PROXMOX_HOST is not set; put it into %s: linus waits until that file has changed\n", file)
	for sleep.For(ctx, time.Second) == nil {
		now, _ := os.Stat(file)
		if (now == nil) != (before == nil) || now != nil && (now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime())) {
			return fmt.Errorf("%s has changed: exiting, to be restarted with its new settings", file)
		}
	}
	return nil
}

//go:embed linus.service
var unitText string

// printUnit prints the systemd unit, with this program's path in it.
func printUnit(w io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of this program: %w", err)
	}
	return template.Must(template.New("unit").Parse(unitText)).Execute(w, self)
}

// announce prints where MCP and the web page are. Only a terminal gets the link that logs in: other
// output goes to logs and the journal, which are kept.
func announce(w io.Writer, h *daemon.HTTP) {
	if h == nil {
		return
	}
	_, _ = fmt.Fprintf(w, "MCP at %s://%s/mcp, for clients with the token in %s\n", h.Scheme, h.Addr, h.Token)
	if isTerminal(w) {
		_, _ = fmt.Fprintf(w, "Web page at %s\n", h.Login)
		return
	}
	_, _ = fmt.Fprintf(w, "Web page at %s://%s/, to log in with the same token; in a terminal, linus serve shows a link that does\n", h.Scheme, h.Browser)
}

// engineEnded reports how the engine of the state directory ended, if there was one.
func (a *app) engineEnded(how, text string, was bool, err error) error {
	if err != nil {
		return err
	}
	if !was {
		text = "no engine is running"
	}
	return a.print(map[string]bool{how: was}, text)
}

// logger returns a logger to w: JSON if configured, otherwise lines, coloured on a terminal.
func logger(w io.Writer, c config.Config) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(c.LogLevel)) // config has validated it
	switch {
	case c.LogFormat == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	case isTerminal(w):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: config.NoColor()}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/daemon"
	"linus/internal/job"
)

// session is an engine as a verb uses it. If the engine ends meanwhile, the session
// attaches to the next one, starting it if necessary.
type session struct {
	job.Engine // client, with actions named as on the command line
	client     *control.Client
	config     config.Config
}

// Close disconnects from the engine, which keeps running.
func (s *session) Close() { s.client.Close() }

// Caller returns the principal that the engine takes this process for.
func (s *session) Caller(ctx context.Context) (job.Principal, error) { return s.client.Caller(ctx) }

// idleTime is how long an idle background engine keeps running.
const idleTime = time.Minute

// daemon returns the options of the engine to run or attach to.
func (a *app) daemon(c config.Config) daemon.Options {
	return daemon.Options{
		Config: c, Version: buildVersion(), Log: logger(a.stderr, c), Backend: a.backend,
		Start: []string{"serve", "--background", "--idle", idleTime.String()},
		OtherVersion: func(info control.Info) {
			_, _ = fmt.Fprintf(a.stderr, "linus: warning: the engine (pid %d) is version %s, this is %s; linus serve --stop ends it\n", info.PID, info.Version, buildVersion())
		},
	}
}

// attach is daemon.Attach with the settings of this process.
func (a *app) attach(ctx context.Context, strict bool) (*session, error) {
	c, err := a.settings(ctx)
	if err != nil {
		return nil, err
	}
	a.noteService(c)
	client, err := daemon.Attach(ctx, a.daemon(c), strict)
	if err != nil {
		return nil, err
	}
	return &session{Engine: job.Phrased(client, words), client: client, config: c}, nil
}

// noteService reports which engine answers if the packaged service has another one on this machine.
// Only root can see that, and root may confuse the two.
func (a *app) noteService(c config.Config) {
	if c.Server != "" || strings.HasPrefix(c.StateDir, a.service+"/") {
		return
	}
	if dirs, err := os.ReadDir(filepath.Join(a.service, ".local", "state")); err == nil && len(dirs) > 0 {
		a.note("linus: this is your own engine, with its state in %s; the service has another: runuser -u linus -- linus ...", c.StateDir)
	}
}

// remote reports whether the engine is reached through a server.
func (s *session) remote() bool { return s.config.Server != "" }

// localSettings returns the settings of a verb that works on this machine and not through a server.
func (a *app) localSettings(cmd *cobra.Command, instead string) (config.Config, error) {
	c, err := a.settings(cmd.Context())
	if err == nil && c.Server != "" {
		err = usage("%s does not work through a server (--server, LINUS_SERVER): %s", cmd.CommandPath(), instead)
	}
	return c, err
}

// reader is attach for read-only verbs. If no engine runs and none can be started, because no host
// is set, it reads the state directory itself.
func (a *app) reader(ctx context.Context) (job.Engine, func(), error) {
	c, err := a.settings(ctx)
	if err != nil {
		return nil, nil, err
	}
	if c.NeedHost() != nil && c.Server == "" {
		a.noteService(c)
		e, done, err := daemon.Peek(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return job.Phrased(e, words), done, nil
	}
	s, err := a.attach(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// reading makes a read-only verb's RunE from its work with an engine.
func (a *app) reading(work func(ctx context.Context, e job.Engine, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		e, done, err := a.reader(cmd.Context())
		if err != nil {
			return err
		}
		defer done()
		return work(a.telling(cmd.Context()), e, args)
	}
}

// telling returns a context whose calls report on stderr what they wait for.
func (a *app) telling(ctx context.Context) context.Context {
	return job.WithListener(ctx, func(p job.Progress) { a.note("%s", oneLine(p.Line(), 200)) })
}

// attached makes a verb's RunE from its work with an engine.
func (a *app) attached(work func(ctx context.Context, s *session, args []string) error) func(*cobra.Command, []string) error {
	return a.attaching(false, work)
}

// attaching is attached, with strict as in daemon.Attach.
func (a *app) attaching(strict bool, work func(ctx context.Context, s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := a.attach(cmd.Context(), strict)
		if err != nil {
			return err
		}
		defer s.Close()
		return work(a.telling(cmd.Context()), s, args)
	}
}

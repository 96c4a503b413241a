package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/daemon"
	"linus/internal/job"
)

// session is an engine as a verb uses it. When the engine ends under it, it
// attaches to the next one, starting it if need be.
type session struct {
	job.Engine // what client is, in the words of the command line
	client     *control.Client
	config     config.Config
}

// Close lets go of the engine, which goes on.
func (s *session) Close() { s.client.Close() }

// idleTime is how long a background engine stays that nobody needs.
const idleTime = time.Minute

// daemon says which engine is meant.
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
	c, err := a.settings()
	if err != nil {
		return nil, err
	}
	client, err := daemon.Attach(ctx, a.daemon(c), strict)
	if err != nil {
		return nil, err
	}
	return &session{Engine: job.Worded(client, words), client: client, config: c}, nil
}

// reader is attach for verbs that only look: where no engine runs and there is
// no host to start one for, they read the state directory themselves.
func (a *app) reader(ctx context.Context) (job.Engine, func(), error) {
	c, err := a.settings()
	if err != nil {
		return nil, nil, err
	}
	if c.NeedHost() != nil {
		e, done, err := daemon.Peek(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return job.Worded(e, words), done, nil
	}
	s, err := a.attach(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
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

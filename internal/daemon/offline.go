package daemon

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/credential"
	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/hosttest"
	"linus/internal/job"
	"linus/internal/schedule"
	"linus/internal/store"
	"linus/internal/token"
)

// Peek returns the running engine or, if there is none, a read-only view of the state
// directory. It does not start an engine.
func Peek(ctx context.Context, c config.Config) (job.Engine, func(), error) {
	if c.Server != "" {
		client, err := attachServer(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return client, client.Close, nil
	}
	client, err := control.Dial(ctx, control.Socket(c.StateDir))
	switch {
	case err == nil:
		return client, client.Close, nil
	case !errors.Is(err, control.ErrNoEngine):
		return nil, nil, err
	}
	st, err := store.Open(ctx, storeOptions(c, nil))
	if err != nil {
		return nil, nil, err
	}
	return offline(executor.New(executor.Options{Stores: executor.StoresOf(st), Fleet: fleet.New(fleet.Options{Store: st, Jobs: st}), Tokens: token.New(token.Options{Store: st}), Credentials: credential.New(credential.Options{Store: st}), HostTests: hosttest.New(hosttest.Options{Store: st}), Schedules: schedule.New(schedule.Options{Store: st}), Engines: st}), c), func() { _ = st.Close() }, nil
}

// offline reads the state directory without an engine. Verbs that change something, or need the
// host or a VM, return an error that names the missing setting.
func offline(e *executor.Executor, c config.Config) job.Engine {
	missing := cmp.Or(c.NeedHost(), control.ErrNoEngine)
	return job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		if !strings.HasPrefix(v.Route, "GET ") || v.ReadsHost || v.Of == job.OfFile || v == job.VerbNodes.Verb {
			return nil, missing
		}
		if v == job.VerbOutput.Verb { // stored output is complete once the job has ended
			if j, err := e.Job(ctx, v.Ref(in)); err != nil || !j.Status.Terminal() {
				return nil, cmp.Or(err, missing)
			}
		}
		out, err := v.Do(ctx, e, in)
		return job.Offered(out), err
	})
}

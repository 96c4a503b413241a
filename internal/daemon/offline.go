package daemon

import (
	"context"
	"errors"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/store"
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
	return offline{Executor: executor.New(executor.Options{Store: st, Engines: st}), config: c}, func() { _ = st.Close() }, nil
}

// offline reads the state directory without an engine. What needs the host or a VM is
// an error that names the missing setting.
type offline struct {
	*executor.Executor
	config config.Config
}

// Output returns the stored output, which is complete once a job has ended.
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

// VMs needs the host.
func (o offline) VMs(context.Context) ([]job.VMInfo, error) { return nil, o.config.NeedHost() }

// Nodes needs the host.
func (o offline) Nodes(context.Context) ([]job.NodeInfo, error) { return nil, o.config.NeedHost() }

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

// Peek returns the engine that runs or, where there is none, what the state
// directory tells by itself. It starts none.
func Peek(ctx context.Context, c config.Config) (job.Engine, func(), error) {
	client, err := control.Dial(ctx, control.Socket(c.StateDir))
	switch {
	case err == nil:
		return client, client.Close, nil
	case !errors.Is(err, control.ErrNoEngine):
		return nil, nil, err
	}
	st, err := store.Open(ctx, store.Options{Dir: c.StateDir, MaxOutput: int64(c.MaxOutputSize)})
	if err != nil {
		return nil, nil, err
	}
	return offline{Executor: executor.New(executor.Options{Store: st}), config: c}, func() { _ = st.Close() }, nil
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

package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/vm"
)

// workspace holds the connections over which people and agents work on a VM's files and reach its
// ports. They are separate from the connections of the VM's jobs, so that they cannot hold up a
// job, and are closed after workspaceIdle without use.
type workspace struct {
	pooled

	calls chan struct{} // one entry per concurrent call
	conns chan struct{} // one entry per connection to a port
	edits chan struct{} // held while a file is changed: an edit spans a read and a write

	starting chan struct{} // held while starting the program that serves a sandbox

	users int         // guarded by Guest.mu
	idle  *time.Timer // closes the workspace; nil while it is in use
}

const (
	maxCalls      = 6 // sshd allows 10 sessions a connection
	workspaceIdle = time.Minute
	callTime      = 40 * time.Second // for one call, except trees: MCP clients wait for 45 s
)

func (ws *workspace) close() { ws.pool.Close() }

// enter returns the VM's workspace for one call, which ends with leave.
func (g *Guest) enter(ctx context.Context, v vm.VM) (ws *workspace, leave func(), err error) {
	if ws, err = g.workspace(ctx, v); err != nil {
		return nil, nil, err
	}
	select {
	case ws.calls <- struct{}{}:
		return ws, func() {
			<-ws.calls
			g.leave(ws)
		}, nil
	case <-ctx.Done():
		g.leave(ws)
		return nil, nil, fmt.Errorf("wait for other calls about files of VM %d: %w", v.ID, context.Cause(ctx))
	}
}

// workspace returns a VM's workspace, with one more user.
func (g *Guest) workspace(ctx context.Context, v vm.VM) (*workspace, error) {
	host, err := g.host(ctx, v)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	ws := g.workspaces[v.Job]
	if ws == nil || !ws.serves(v, host) {
		p, err := g.connections(v, host, g.o.Log.With("vm_id", v.ID, "for", "files"))
		if err != nil {
			return nil, err
		}
		if ws != nil {
			g.closing.Go(ws.close) // waits for calls in progress there
		}
		ws = &workspace{pooled: pooled{vm: v, host: host, pool: p}, calls: make(chan struct{}, maxCalls), conns: make(chan struct{}, maxConns), edits: make(chan struct{}, 1), starting: make(chan struct{}, 1)}
		g.workspaces[v.Job] = ws
	}
	ws.users++
	if ws.idle != nil {
		ws.idle.Stop()
		ws.idle = nil
	}
	return ws, nil
}

// leave records that a user has left a workspace.
func (g *Guest) leave(ws *workspace) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ws.users--; ws.users > 0 || g.workspaces[ws.vm.Job] != ws {
		return
	}
	ws.idle = time.AfterFunc(workspaceIdle, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if ws.users > 0 || g.workspaces[ws.vm.Job] != ws {
			return
		}
		delete(g.workspaces, ws.vm.Job)
		g.closing.Go(ws.close)
	})
}

// inWorkspace runs work with a VM's files, and with name as a path in the VM. The VM may send at
// most budget bytes. If again is set, work is repeated once after a lost connection.
func (g *Guest) inWorkspace(ctx context.Context, what string, v vm.VM, name string, budget int64, again bool, work func(ctx context.Context, ws *workspace, files *remote.FileSystem, at string) error) error {
	at, err := g.at(name)
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ws, leave, err := g.enter(timed, v)
	if err == nil {
		defer leave()
		once := func() error {
			return ws.pool.WithFiles(timed, budget, func(fs *remote.FileSystem) error { return work(timed, ws, fs, at) })
		}
		if err = once(); again && remote.ClassOf(err) == remote.Lost && timed.Err() == nil {
			err = once()
		}
	}
	return g.workspaceFault(ctx, what, v, err)
}

// ask runs a bash script in a VM, with its arguments, and returns its output. what describes the
// operation in errors, and name the script.
func (g *Guest) ask(ctx context.Context, what string, v vm.VM, name, script string, args ...string) (string, error) {
	timed, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ws, leave, err := g.enter(timed, v)
	var out []byte
	if err == nil {
		defer leave()
		line := remote.Quote(append([]string{"bash", "-c", script, "linus"}, args...)...)
		out, err = ws.pool.Output(timed, remote.Command{Name: name, Line: line}, answers)
	}
	return string(out), g.workspaceFault(ctx, what, v, err)
}

// workspaceFault is fault, but leaves an error about a path as it is.
func (g *Guest) workspaceFault(ctx context.Context, what string, v vm.VM, err error) error {
	var field *job.FieldError
	switch {
	case errors.As(err, &field):
		return field
	case errors.Is(err, remote.ErrTooMuch):
		return fmt.Errorf("%s VM %d: %w", what, v.ID, err)
	case errors.Is(err, remote.ErrNoSFTP):
		return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("VM %d's SSH server has no SFTP subsystem", v.ID), Remedy: "use a command in the VM instead"}
	}
	return g.fault(ctx, what, job.Job{VM: &v}, result.Result{}, err)
}

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/term"
	"linus/internal/vm"
)

// How a tree is packed and unpacked in a VM. tar does not open pipes and devices, it only records
// that they exist, and reports what it cannot read at its end. tar ends with the archive, which may
// be before the end of the stream. unpack succeeds only after syncing the files to the VM's disk,
// so that they survive a power cut.
const (
	pack = `if [ -d "$1" ]; then exec tar -C "$1" -cf - .; fi
[ -f "$1" ] || { [ -e "$1" ] && exit 67; exit 66; }
case $1 in */*) cd -- "${1%/*}/" || exit ;; esac
exec tar -chf - "./${1##*/}"`
	unpack = `[ -d "$1" ] || { [ -e "$1" ] && exit 67; exit 66; }
tar -C "$1" -xof - && cat >/dev/null && { sync -f "$1" 2>/dev/null || sync; }`

	exitMissing = 66
	exitOther   = 67
)

// treeIdle bounds the time in which a VM that packs a tree sends nothing, or one that unpacks a
// tree reads nothing. treeFlush bounds the time in which the VM then writes its data to disk.
const (
	treeIdle  = time.Minute
	treeFlush = 15 * time.Minute
)

// ReadTree implements job.Files.
func (g *Guest) ReadTree(ctx context.Context, v vm.VM, name string) (io.ReadCloser, error) {
	at, err := g.at(name)
	if err != nil {
		return nil, err
	}
	ws, leave, err := g.enter(ctx, v)
	if err != nil {
		return nil, g.workspaceFault(ctx, "read files of", v, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	from, to := io.Pipe()
	context.AfterFunc(ctx, func() { _ = to.CloseWithError(context.Cause(ctx)) }) // otherwise a write would wait for a reader that has left
	g.closing.Go(func() {
		defer leave()
		transfer := watchIdle(cancel, nil, to)
		err := ws.pool.Run(ctx, remote.Command{Name: "tar", Line: remote.Quote("sh", "-c", pack, "tar", at), Stdout: transfer})
		transfer.idle.Stop()
		_ = to.CloseWithError(g.treeFault(ctx, "read files of", v, name, err))
		cancel(nil)
	})
	return &tree{from, cancel}, nil
}

// tree is an archive in transfer.
type tree struct {
	*io.PipeReader

	cancel context.CancelCauseFunc
}

// Close ends the transfer.
func (t *tree) Close() error {
	t.cancel(errors.New("nothing reads the archive any more"))
	return t.PipeReader.Close()
}

// WriteTree implements job.Files.
func (g *Guest) WriteTree(ctx context.Context, v vm.VM, name string, archive io.Reader) error {
	at, err := g.at(name)
	if err != nil {
		return err
	}
	ws, leave, err := g.enter(ctx, v)
	if err != nil {
		return g.workspaceFault(ctx, "write files of", v, err)
	}
	defer leave()
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read := &failing{from: archive}
	transfer := watchIdle(cancel, read, nil)
	defer transfer.idle.Stop()
	p, err := ws.pool.Begin(ctx, remote.Command{Name: "tar", Line: remote.Quote("sh", "-c", unpack, "tar", at)})
	if err == nil {
		defer p.Close()
		if err = p.Send(ctx, transfer); err == nil {
			err = p.Finish(ctx)
		}
		if failed := read.err.Load(); failed != nil {
			return fmt.Errorf("write files of VM %d: the archive ended too early, and may have been unpacked in part: %w", v.ID, *failed)
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && caller.Err() == nil {
		err = cause
	}
	return g.treeFault(caller, "write files of", v, name, err)
}

// failing records the error of a reader.
type failing struct {
	from io.Reader
	err  atomic.Pointer[error]
}

func (f *failing) Read(data []byte) (int, error) {
	n, err := f.from.Read(data)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err.Store(&err)
	}
	return n, err
}

// treeFault turns tar's messages into an error about the path.
func (g *Guest) treeFault(ctx context.Context, what string, v vm.VM, name string, err error) error {
	var exit *remote.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return g.workspaceFault(ctx, what, v, err)
	case exit.Code == exitMissing:
		return pathProblem(name, "does not exist", "list its directory")
	case exit.Code == exitOther:
		return pathProblem(name, "is neither a directory nor a regular file", "give one of them")
	}
	said := strings.TrimSpace(term.Text(exit.Stderr))
	return pathProblem(name, "was not copied completely: "+job.Bounded(said), "what the VM's SSH user may not read or write needs a command with sudo in the VM")
}

// transfer ends when the VM does nothing for a while. Only the VM's time counts, not that of the other end.
type transfer struct {
	from io.Reader // what is sent to the VM
	to   io.Writer // gets what the VM sends
	idle *time.Timer
}

func watchIdle(cancel context.CancelCauseFunc, from io.Reader, to io.Writer) *transfer {
	return &transfer{from, to, time.AfterFunc(treeIdle, func() {
		cancel(fmt.Errorf("the VM has not continued for %s", treeIdle))
	})}
}

func (t *transfer) Read(data []byte) (int, error) {
	t.idle.Stop()
	n, err := t.from.Read(data)
	if err == nil {
		t.idle.Reset(treeIdle)
	} else {
		t.idle.Reset(treeFlush)
	}
	return n, err
}

func (t *transfer) Write(data []byte) (int, error) {
	t.idle.Stop()
	defer t.idle.Reset(treeIdle)
	return t.to.Write(data)
}

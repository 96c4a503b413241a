package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// ListFiles returns a page of a directory in a VM.
func (f *Fleet) ListFiles(ctx context.Context, q job.FileList) (page job.FilePage, err error) {
	if q.Limit == 0 {
		q.Limit = job.MaxFileList
	}
	if err := cmp.Or(job.Within("limit", int64(q.Limit), 1, job.MaxFileList), job.Within("offset", int64(q.Offset), 0, 1<<31)); err != nil {
		return page, err
	}
	return inFiles(ctx, f, q.VM, func(ctx context.Context, v vm.VM) (job.FilePage, error) { return f.o.Guest.ListFiles(ctx, v, q) })
}

// ReadFile returns part of a file in a VM.
func (f *Fleet) ReadFile(ctx context.Context, r job.FileRange) (chunk job.FileChunk, err error) {
	if r.Limit == 0 {
		r.Limit = job.MaxFileChunk
	}
	if err := cmp.Or(job.Needed("path", r.Path), job.Within("limit", r.Limit, 1, job.MaxFileChunk), job.Within("offset", r.Offset, 0, 1<<62)); err != nil {
		return chunk, err
	}
	return inFiles(ctx, f, r.VM, func(ctx context.Context, v vm.VM) (job.FileChunk, error) { return f.o.Guest.ReadFile(ctx, v, r) })
}

// fileMode matches the modes that WriteFile accepts.
var fileMode = lazyregexp.New(`^0?[0-7]{3}$`)

// WriteFile writes a file in a VM.
func (f *Fleet) WriteFile(ctx context.Context, w job.FileWrite) (written job.FileWritten, err error) {
	err = cmp.Or(job.Needed("path", w.Path), job.Within("data", int64(len(w.Data)), 0, job.MaxFileWrite))
	if err == nil && w.Mode != "" && !fileMode.MatchString(w.Mode) {
		err = &job.FieldError{Field: "mode", Problem: fmt.Sprintf("%q is not a file's mode", w.Mode), Remedy: "give octal permissions such as 0644"}
	}
	if err = cmp.Or(err, f.mayWrite(w.Path, false)); err != nil {
		return written, err
	}
	return inFiles(ctx, f, w.VM, func(ctx context.Context, v vm.VM) (job.FileWritten, error) { return f.o.Guest.WriteFile(ctx, v, w) })
}

// EditFile replaces text in a file in a VM.
func (f *Fleet) EditFile(ctx context.Context, edit job.FileEdit) (edited job.FileEdited, err error) {
	err = cmp.Or(job.Needed("path", edit.Path), job.Needed("old", edit.Old))
	if err == nil && edit.Old == edit.New {
		err = &job.FieldError{Field: "new", Problem: "is the same as old", Remedy: "give the text to replace it with"}
	}
	if err = cmp.Or(err, f.mayWrite(edit.Path, false)); err != nil {
		return edited, err
	}
	return inFiles(ctx, f, edit.VM, func(ctx context.Context, v vm.VM) (job.FileEdited, error) { return f.o.Guest.EditFile(ctx, v, edit) })
}

// ReadTree returns a directory or a file of a VM as a tar archive.
func (f *Fleet) ReadTree(ctx context.Context, at job.FileRef) (io.ReadCloser, error) {
	vm, about, done, err := f.fileAt(ctx, at)
	if err == nil && about.Type == job.FileOther {
		done()
		err = &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is neither a directory nor a regular file", at.Path), Remedy: "give one of them"}
	}
	if err != nil {
		return nil, err
	}
	tree, err := f.o.Guest.ReadTree(ctx, vm, at.Path)
	if err != nil {
		done()
		return nil, err
	}
	return usedTree{tree, done}, nil
}

// WriteTree unpacks a tar archive in a directory of a VM.
func (f *Fleet) WriteTree(ctx context.Context, at job.FileRef, archive io.Reader) error {
	if err := f.mayWrite(at.Path, true); err != nil {
		return err
	}
	vm, about, done, err := f.fileAt(ctx, at)
	if err == nil {
		defer done()
	}
	if err == nil && about.Type != job.FileDirectory {
		err = &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is not a directory", at.Path), Remedy: "give the directory to unpack in"}
	}
	if err != nil {
		return err
	}
	return f.o.Guest.WriteTree(ctx, vm, at.Path, archive)
}

// DialVM connects to a port of a VM's loopback.
func (f *Fleet) DialVM(ctx context.Context, ref string, port int) (job.Tunnel, error) {
	if err := job.Within("port", int64(port), 1, 65535); err != nil {
		return nil, err
	}
	return f.tunnel(ctx, ref, func(ctx context.Context, v vm.VM) (job.Tunnel, error) { return f.o.Guest.Dial(ctx, v, port) })
}

// LoginVM connects to a VM's SSH server and authorizes a public key for a limited time.
func (f *Fleet) LoginVM(ctx context.Context, ref, key string) (job.Tunnel, error) {
	if err := job.Needed("key", key); err != nil {
		return nil, err
	}
	if f.mayWrite(".ssh/authorized_keys", false) != nil {
		return nil, &job.FieldError{Field: "vm", Problem: "allows no logins, because ALLOWED_COMMANDS is set and a login's shell runs any command", Remedy: "run commands as jobs instead"}
	}
	return f.tunnel(ctx, ref, func(ctx context.Context, v vm.VM) (job.Tunnel, error) {
		t, err := f.o.Guest.Login(ctx, v, key)
		if err == nil {
			f.observed(ctx, job.Entered{VM: v, How: "login by SSH", By: job.CallerFrom(ctx)})
		}
		return t, err
	})
}

// tunnel returns a connection into a VM, which counts as in use until the connection is closed.
func (f *Fleet) tunnel(ctx context.Context, ref string, dial func(context.Context, vm.VM) (job.Tunnel, error)) (t job.Tunnel, err error) {
	done, err := f.inUse(ctx, ref, func(ctx context.Context, v vm.VM) error {
		t, err = dial(ctx, v)
		return err
	})
	if err != nil && t != nil {
		return nil, errors.Join(err, t.Close())
	}
	if err != nil {
		return nil, err
	}
	return usedTunnel{t, done}, nil
}

// fileAt returns the VM of a path and what is there, so that a stopped VM or a wrong path is
// noticed before a transfer begins. The VM is in use until done is called.
func (f *Fleet) fileAt(ctx context.Context, at job.FileRef) (in vm.VM, about job.FileInfo, done func(), err error) {
	done, err = f.inUse(ctx, at.VM, func(ctx context.Context, v vm.VM) error {
		in = v
		about, err = f.o.Guest.StatFile(ctx, v, at.Path)
		return err
	})
	return in, about, done, err
}

// inFiles runs work on the files of the VM that fileVM finds.
func inFiles[T any](ctx context.Context, f *Fleet, ref string, work func(context.Context, vm.VM) (T, error)) (got T, err error) {
	done, err := f.inUse(ctx, ref, func(ctx context.Context, v vm.VM) (err error) {
		got, err = work(ctx, v)
		return err
	})
	if err == nil {
		done()
	}
	return got, err
}

// inUse is inFiles for a use that lasts until done is called.
func (f *Fleet) inUse(ctx context.Context, ref string, work func(context.Context, vm.VM) error) (done func(), err error) {
	v, err := f.fileVM(ctx, ref)
	if err != nil {
		return nil, err
	}
	return f.inUseOf(ctx, v, work)
}

// inUseOf is inUse for a VM that is already found.
func (f *Fleet) inUseOf(ctx context.Context, v vm.VM, work func(context.Context, vm.VM) error) (done func(), err error) {
	if err := f.runs(ctx, v); err != nil {
		return nil, err
	}
	if v, done, err = f.use(ctx, v, listener(ctx)); err != nil {
		return nil, err
	}
	if err = f.enter(ctx, v, func(ctx context.Context) error { return work(ctx, v) }); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// enter runs work inside a VM. If the VM is not running, it returns the host's error rather than SSH's.
func (f *Fleet) enter(ctx context.Context, v vm.VM, work func(context.Context) error) error {
	var callers *job.FieldError
	err := f.WhileUp(ctx, v, job.NotRunning, func(ctx context.Context) error {
		err := work(ctx)
		if errors.As(err, &callers) { // the VM answers, so the host need not be asked
			return nil
		}
		return err
	})
	if err == nil && callers != nil {
		return callers
	}
	return err
}

// fileVM returns the VM with this name or ID, or the VM of the job with this ID, if its files can
// be worked on and nothing is being done to it. A VM that the caller may not see does not exist.
func (f *Fleet) fileVM(ctx context.Context, ref string) (vm.VM, error) {
	v, err := f.Find(ctx, ref)
	if err != nil {
		j, noJob := f.Known(ctx, ref)
		switch {
		case errors.Is(noJob, job.ErrNotFound):
			return vm.VM{}, err
		case noJob != nil:
			return vm.VM{}, noJob
		case !job.Visible(ctx, j.Principal):
			return vm.VM{}, err
		case j.VM == nil:
			return vm.VM{}, noVM(ref, "is a job that has no VM: its status is "+string(j.Status))
		case j.VM.Job != j.ID && j.Outcome != nil:
			return vm.VM{}, noVM(ref, "is a job that has ended")
		}
		if v, err = f.o.Store.VM(ctx, j.VM.Job); err != nil {
			return vm.VM{}, err
		}
	}
	holder := v.Job // the job that the VM belongs to
	if m := v.Member; m != nil {
		if m.State != vm.MemberClaimed {
			return vm.VM{}, noVM(ref, "is a VM of pool "+m.Pool+" that no job has")
		}
		holder = m.Claimer
	}
	j, err := f.Known(ctx, holder)
	switch {
	case err != nil:
	case v.State == vm.LeftAlone:
		err = noVM(ref, "is left alone: "+v.Reason)
	case v.State == vm.Intended || v.BeingMade():
		err = noVM(ref, "is not ready yet: its job is "+string(j.Status))
	case v.State != vm.Created:
		err = noVM(ref, "is gone")
	case v.Unwanted:
		err = noVM(ref, "is being destroyed")
	case v.Lifecycle != vm.Persistent && j.Outcome != nil:
		err = noVM(ref, "goes with job "+j.ID+", which has ended")
	default:
		err = f.access.usable(ctx, v)
	}
	return v, err
}

func (f *Fleet) mayWrite(path string, tree bool) error {
	if f.o.AllowFile == nil {
		return nil
	}
	return f.o.AllowFile(path, tree)
}

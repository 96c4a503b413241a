package executor

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
func (e *Executor) ListFiles(ctx context.Context, q job.FileList) (page job.FilePage, err error) {
	if q.Limit == 0 {
		q.Limit = job.MaxFileList
	}
	if err := cmp.Or(within("limit", int64(q.Limit), 1, job.MaxFileList), within("offset", int64(q.Offset), 0, 1<<31)); err != nil {
		return page, err
	}
	err = e.inFiles(ctx, q.VM, func(ctx context.Context, v vm.VM) error {
		page, err = e.o.Guest.ListFiles(ctx, v, q)
		return err
	})
	return page, err
}

// ReadFile returns a part of a file in a VM.
func (e *Executor) ReadFile(ctx context.Context, r job.FileRange) (chunk job.FileChunk, err error) {
	if r.Limit == 0 {
		r.Limit = job.MaxFileChunk
	}
	if err := cmp.Or(needed("path", r.Path), within("limit", r.Limit, 1, job.MaxFileChunk), within("offset", r.Offset, 0, 1<<62)); err != nil {
		return chunk, err
	}
	err = e.inFiles(ctx, r.VM, func(ctx context.Context, v vm.VM) error {
		chunk, err = e.o.Guest.ReadFile(ctx, v, r)
		return err
	})
	return chunk, err
}

// fileMode is what WriteFile takes as a mode.
var fileMode = lazyregexp.New(`^0?[0-7]{3}$`)

// WriteFile writes a file in a VM.
func (e *Executor) WriteFile(ctx context.Context, w job.FileWrite) (written job.FileWritten, err error) {
	err = cmp.Or(needed("path", w.Path), within("data", int64(len(w.Data)), 0, job.MaxFileWrite))
	if err == nil && w.Mode != "" && !fileMode.MatchString(w.Mode) {
		err = &job.FieldError{Field: "mode", Problem: fmt.Sprintf("%q is not a file's mode", w.Mode), Remedy: "give octal permissions such as 0644"}
	}
	if err = cmp.Or(err, e.mayWrite(w.Path, false)); err != nil {
		return written, err
	}
	err = e.inFiles(ctx, w.VM, func(ctx context.Context, v vm.VM) error {
		written, err = e.o.Guest.WriteFile(ctx, v, w)
		return err
	})
	return written, err
}

// EditFile replaces text in a file in a VM.
func (e *Executor) EditFile(ctx context.Context, edit job.FileEdit) (edited job.FileEdited, err error) {
	err = cmp.Or(needed("path", edit.Path), needed("old", edit.Old))
	if err == nil && edit.Old == edit.New {
		err = &job.FieldError{Field: "new", Problem: "is the same as old", Remedy: "give the text that is to be there"}
	}
	if err = cmp.Or(err, e.mayWrite(edit.Path, false)); err != nil {
		return edited, err
	}
	err = e.inFiles(ctx, edit.VM, func(ctx context.Context, v vm.VM) error {
		edited, err = e.o.Guest.EditFile(ctx, v, edit)
		return err
	})
	return edited, err
}

// ReadTree returns a directory or a file of a VM as a tar archive.
func (e *Executor) ReadTree(ctx context.Context, f job.FileRef) (io.ReadCloser, error) {
	vm, about, err := e.fileAt(ctx, f)
	if err == nil && about.Type == job.FileOther {
		err = &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is neither a directory nor a regular file", f.Path), Remedy: "give one of them"}
	}
	if err != nil {
		return nil, err
	}
	return e.o.Guest.ReadTree(ctx, vm, f.Path)
}

// WriteTree unpacks a tar archive in a directory of a VM.
func (e *Executor) WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error {
	if err := e.mayWrite(f.Path, true); err != nil {
		return err
	}
	vm, about, err := e.fileAt(ctx, f)
	if err == nil && about.Type != job.FileDirectory {
		err = &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is not a directory", f.Path), Remedy: "give the directory to unpack in"}
	}
	if err != nil {
		return err
	}
	return e.o.Guest.WriteTree(ctx, vm, f.Path, archive)
}

// fileAt returns the VM of a path and what is there. So a stopped VM and a wrong path are
// known before a transfer begins.
func (e *Executor) fileAt(ctx context.Context, f job.FileRef) (at vm.VM, about job.FileInfo, err error) {
	err = e.inFiles(ctx, f.VM, func(ctx context.Context, v vm.VM) error {
		at = v
		about, err = e.o.Guest.StatFile(ctx, v, f.Path)
		return err
	})
	return at, about, err
}

// inFiles runs work on the files of a VM, which fileVM finds.
func (e *Executor) inFiles(ctx context.Context, ref string, work func(context.Context, vm.VM) error) error {
	v, err := e.fileVM(ctx, ref)
	if err != nil {
		return err
	}
	return e.inside(ctx, v, func(ctx context.Context) error { return work(ctx, v) })
}

// inside runs work inside a VM. If the VM is not running, it returns the host's error
// rather than SSH's.
func (e *Executor) inside(ctx context.Context, v vm.VM, work func(context.Context) error) error {
	visitor := job.Job{VM: &v, Manifest: job.Manifest{VM: v.Name}} // as a job that shares the VM
	var callers *job.FieldError
	err := e.whileUp(ctx, visitor, func(ctx context.Context) error {
		err := work(ctx)
		if errors.As(err, &callers) { // the VM answers, the host need not be asked
			return nil
		}
		return err
	})
	if err == nil && callers != nil {
		return callers
	}
	return err
}

// fileVM returns the VM with this name or ID, or in which the job with this ID runs, if it
// is one whose files can be worked on, and nothing is being done to it. What the caller may
// not see does not exist.
func (e *Executor) fileVM(ctx context.Context, ref string) (vm.VM, error) {
	v, err := e.find(ctx, ref)
	if err != nil {
		j, noJob := e.o.Jobs.Job(ctx, ref)
		switch {
		case errors.Is(noJob, job.ErrNotFound):
			return vm.VM{}, err
		case noJob != nil:
			return vm.VM{}, noJob
		case !visible(ctx, j.Principal):
			return vm.VM{}, err
		case j.VM == nil:
			return vm.VM{}, noVM(ref, "is a job that has no VM: its status is "+string(j.Status))
		case j.VM.Job != j.ID && j.Outcome != nil:
			return vm.VM{}, noVM(ref, "is a job that has ended")
		}
		if v, err = e.o.VMs.VM(ctx, j.VM.Job); err != nil {
			return vm.VM{}, err
		}
	}
	holder := v.Job // that the VM goes with
	if m := v.Member; m != nil {
		if m.State != vm.MemberClaimed {
			return vm.VM{}, noVM(ref, "is a VM of pool "+m.Pool+" that no job has")
		}
		holder = m.Claimer
	}
	j, err := e.o.Jobs.Job(ctx, holder)
	switch {
	case err != nil:
	case v.State == vm.LeftAlone:
		err = noVM(ref, "is left alone: "+v.Reason)
	case v.State == vm.Intended:
		err = noVM(ref, "is not ready yet: its job is "+string(j.Status))
	case v.State != vm.Created:
		err = noVM(ref, "is gone")
	case v.Unwanted:
		err = noVM(ref, "is being destroyed")
	case j.Manifest.Lifecycle != vm.Persistent && j.Outcome != nil:
		err = noVM(ref, "goes with job "+j.ID+", which has ended")
	default:
		err = e.access.free(ctx, v)
	}
	return v, err
}

// mayWrite returns the policy's error.
func (e *Executor) mayWrite(path string, tree bool) error {
	if e.o.AllowFile == nil {
		return nil
	}
	return e.o.AllowFile(path, tree)
}

// within checks that a number is in a range.
func within(field string, n, least, most int64) error {
	if n < least || n > most {
		return &job.FieldError{Field: field, Problem: fmt.Sprintf("%d is out of range", n), Remedy: fmt.Sprintf("give %d to %d", least, most)}
	}
	return nil
}

// needed checks that a text is there.
func needed(field, text string) error {
	if text == "" {
		return &job.FieldError{Field: field, Problem: "is required", Remedy: "give one"}
	}
	return nil
}

package providertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// A fake VM's files have a path and a content; directories exist only as prefixes of paths.

// filesOf returns a VM's files, or the error of a VM that does not answer. The caller holds f.mu.
func (f *Fake) filesOf(ctx context.Context, op string, v vm.VM) (map[string]string, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s VM %d: %w", op, v.ID, context.Cause(ctx))
	}
	there := f.vms[v.ID]
	if there == nil || there.stopped || there.suspended || there.Job != v.Job || there.IP != v.IP {
		return nil, fault(fmt.Sprintf("%s VM %d", op, v.ID), job.HostUnreachable, "no route to host "+v.IP, "check that the VM runs")
	}
	if there.files == nil {
		there.files = map[string]string{}
	}
	return there.files, nil
}

func noPath(path string) error {
	return &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q does not exist", path), Remedy: "list its directory"}
}

// StatFile describes a file or a directory.
func (f *Fake) StatFile(ctx context.Context, v vm.VM, path string) (job.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, err := f.filesOf(ctx, "look at a file of", v)
	if err != nil {
		return job.FileInfo{}, err
	}
	if content, ok := files[path]; ok {
		return job.FileInfo{Name: path, Type: job.FileRegular, Size: int64(len(content)), Mode: "0644"}, nil
	}
	for name := range files {
		if strings.HasPrefix(name, path+"/") {
			return job.FileInfo{Name: path, Type: job.FileDirectory, Mode: "0755"}, nil
		}
	}
	return job.FileInfo{}, noPath(path)
}

// ListFiles returns every file below a path.
func (f *Fake) ListFiles(ctx context.Context, v vm.VM, q job.FileList) (job.FilePage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, err := f.filesOf(ctx, "list files of", v)
	page := job.FilePage{Type: job.FileDirectory, Entries: []job.FileInfo{}}
	for name, content := range files {
		if below, ok := strings.CutPrefix(name, q.Path+"/"); ok {
			page.Entries = append(page.Entries, job.FileInfo{Name: below, Type: job.FileRegular, Size: int64(len(content)), Mode: "0644"})
		}
	}
	page.Total = len(page.Entries)
	return page, err
}

// ReadFile returns a part of a file.
func (f *Fake) ReadFile(ctx context.Context, v vm.VM, r job.FileRange) (job.FileChunk, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, err := f.filesOf(ctx, "read a file of", v)
	if err != nil {
		return job.FileChunk{}, err
	}
	content, ok := files[r.Path]
	if !ok {
		return job.FileChunk{}, noPath(r.Path)
	}
	size := int64(len(content))
	from := min(r.Offset, size)
	to := min(from+r.Limit, size)
	return job.FileChunk{Data: []byte(content[from:to]), Next: to, End: to == size, Size: size, Mode: "0644"}, nil
}

// WriteFile writes a file.
func (f *Fake) WriteFile(ctx context.Context, v vm.VM, w job.FileWrite) (job.FileWritten, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, err := f.filesOf(ctx, "write a file of", v)
	if err != nil {
		return job.FileWritten{}, err
	}
	_, was := files[w.Path]
	files[w.Path] = string(w.Data)
	return job.FileWritten{Created: !was, Size: int64(len(w.Data)), Mode: "0644"}, nil
}

// EditFile replaces every occurrence.
func (f *Fake) EditFile(ctx context.Context, v vm.VM, e job.FileEdit) (job.FileEdited, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, err := f.filesOf(ctx, "edit a file of", v)
	if err != nil {
		return job.FileEdited{}, err
	}
	content, ok := files[e.Path]
	if !ok {
		return job.FileEdited{}, noPath(e.Path)
	}
	files[e.Path] = strings.ReplaceAll(content, e.Old, e.New)
	return job.FileEdited{Replaced: strings.Count(content, e.Old), Line: 1, Size: int64(len(files[e.Path]))}, nil
}

// errTree is returned because a fake VM has no archives.
var errTree = errors.New("a fake VM has no tar")

// ReadTree fails.
func (f *Fake) ReadTree(context.Context, vm.VM, string) (io.ReadCloser, error) { return nil, errTree }

// WriteTree fails.
func (f *Fake) WriteTree(context.Context, vm.VM, string, io.Reader) error { return errTree }

package executor

import (
	"context"
	"io"

	"linus/internal/job"
)

// ListFiles implements job.Files.
func (g *guard) ListFiles(ctx context.Context, q job.FileList) (job.FilePage, error) {
	return guarded(ctx, g, "ListFiles", q.VM, func() (job.FilePage, error) { return g.e.ListFiles(ctx, q) })
}

// ReadFile implements job.Files.
func (g *guard) ReadFile(ctx context.Context, r job.FileRange) (job.FileChunk, error) {
	return guarded(ctx, g, "ReadFile", r.VM, func() (job.FileChunk, error) { return g.e.ReadFile(ctx, r) })
}

// WriteFile implements job.Files.
func (g *guard) WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error) {
	return guarded(ctx, g, "WriteFile", w.VM, func() (job.FileWritten, error) { return g.e.WriteFile(ctx, w) })
}

// EditFile implements job.Files.
func (g *guard) EditFile(ctx context.Context, edit job.FileEdit) (job.FileEdited, error) {
	return guarded(ctx, g, "EditFile", edit.VM, func() (job.FileEdited, error) { return g.e.EditFile(ctx, edit) })
}

// ReadTree implements job.Files.
func (g *guard) ReadTree(ctx context.Context, f job.FileRef) (io.ReadCloser, error) {
	return guarded(ctx, g, "ReadTree", f.VM, func() (io.ReadCloser, error) { return g.e.ReadTree(ctx, f) })
}

// WriteTree implements job.Files.
func (g *guard) WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error {
	if err := g.may(ctx, "WriteTree", f.VM); err != nil {
		return err
	}
	return g.e.WriteTree(ctx, f, archive)
}

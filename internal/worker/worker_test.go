package worker_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"linus/internal/worker"
)

// The rest is tested with the dispatcher that hands the work over: internal/dispatch.
func TestServe_TakesItsWorkOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "work")
	if err := worker.Serve(t.Context(), file, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without work: %v", err)
	}
	if err := os.WriteFile(file, []byte("no JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := worker.Serve(t.Context(), file, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("what is no work is no error")
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the work, with its secret, is still there: %v", err)
	}
}

package systemd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab/nspawn"
	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// container is a real systemd as process 1 of a container: what runs a Proxmox
// host's units.
type container struct {
	nspawn.Container
	shared string
}

// TestContainer holds systemd itself to what the work-alike is held to.
func TestContainer(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	if missing := nspawn.Missing(); len(missing) > 0 {
		t.Skipf("no container here: %s", strings.Join(missing, " "))
	}
	h := container{shared: t.TempDir()}
	dir := t.TempDir()
	h.Container = nspawn.Container{
		Name: fmt.Sprintf("pvelab-test-%d", os.Getpid()), Root: filepath.Join(dir, "root"), Log: filepath.Join(dir, "console"),
		Binds: []string{h.shared}, Tied: true,
	}
	t.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Errorf("the container does not go: %v", err)
		}
	})
	// Tied to us, it goes on without the thread that has started it.
	if err := sys.OnThreadOfItsOwn(func() error { return h.Start(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	suite(t, h)
}

func (h container) bash(ctx context.Context, script string) *exec.Cmd {
	cmd, err := h.Command(ctx, "bash", "-c", script)
	if err != nil {
		return exec.CommandContext(ctx, "false") // the script fails: the test sees it
	}
	return cmd
}

func (h container) dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.shared, "")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (h container) reboot(t *testing.T) {
	t.Helper()
	if err := h.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

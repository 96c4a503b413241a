package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInUse_WhoIsLoggedIn(t *testing.T) {
	t.Parallel()
	type process struct {
		pid, parent int
		name        string
	}
	kept := []process{{1, 0, "systemd"}, {20, 1, "sshd"}, {31, 20, "sshd-session"}, {32, 31, "sshd-session"}, {33, 32, "sftp-server"}, {40, 1, "bash"}, {41, 40, "sleep"}}
	for _, tt := range []struct {
		name string
		more []process
		want string
	}{
		{"an engine's connections and a task that runs on", nil, "free"},
		{"a shell by SSH", []process{{52, 20, "sshd"}, {53, 52, "bash"}}, "used"},
		{"a copy by rsync", []process{{53, 32, "rsync"}}, "used"},
		{"on the console", []process{{60, 1, "login"}, {61, 60, "bash"}}, "used"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proc := t.TempDir()
			for _, p := range append(kept, tt.more...) {
				dir := filepath.Join(proc, fmt.Sprint(p.pid))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "status"), fmt.Appendf(nil, "Name:\t%s\nUmask:\t0022\nPid:\t%d\nPPid:\t%d\nTracerPid:\t0\n", p.name, p.pid, p.parent), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.CommandContext(t.Context(), "bash", "-c", inUse, "linus", proc).Output()
			if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

//go:build unix

package git

import (
	"os/exec"
	"syscall"
)

// together makes the end of cmd's context kill all that cmd has started, too. Otherwise ssh would keep
// running, and a push would still write its pack to it.
func together(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

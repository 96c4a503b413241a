//go:build unix

package git

import (
	"os/exec"
	"syscall"
)

// together has what a command has started end with it: ssh would go on, and what packs a push would
// still write to that.
func together(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

package git

import "os/exec"

// together does nothing: engines do not run on Windows.
func together(*exec.Cmd) {}

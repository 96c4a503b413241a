package git

import "os/exec"

// together is for systems where an engine runs.
func together(*exec.Cmd) {}

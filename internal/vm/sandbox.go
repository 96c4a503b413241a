package vm

import "strings"

// Sandbox is what is stored of a VM that a program uses as a sandbox. None of it is ever on the
// host. It is replaced, never changed.
type Sandbox struct {
	Metadata map[string]string `json:"metadata,omitempty"` // texts by which the program finds it
	Env      []string          `json:"env,omitempty"`      // names of the variables that its commands get; their values are only in the VM
	Public   bool              `json:"public,omitempty"`   // its ports may be reached without a token, if the server allows that
	Host     string            `json:"host,omitempty"`     // the host that programs at its ports see; ${PORT} in it is the port's number, empty: localhost
	Forgets  bool              `json:"forgets,omitempty"`  // at its end it is stopped, not suspended: what runs in it is lost
	Wakes    int               `json:"wakes,omitempty"`    // seconds it gets when a request starts it again; 0: requests do not start it
	Build    bool              `json:"build,omitempty"`    // a template is being built in it: programs do not see it
}

// SandboxID returns the ID by which programs know a sandbox: the ID in the VM's marker, without
// dashes, since E2B's clients make it part of host names.
func SandboxID(marker string) string { return strings.ReplaceAll(marker, "-", "") }

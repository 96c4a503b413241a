package vm

import "strings"

// Sandbox is what is kept of a VM that a program uses as a sandbox, beside the rest of it: none of
// it is ever on the host. It is replaced, never changed.
type Sandbox struct {
	Metadata map[string]string `json:"metadata,omitempty"` // texts that the program finds it by
	Env      []string          `json:"env,omitempty"`      // names of the variables that its commands are given; their values are in the VM alone
	Public   bool              `json:"public,omitempty"`   // its ports may be reached without a token, where the server allows that
	Host     string            `json:"host,omitempty"`     // that programs at its ports see; ${PORT} in it is the port's number, empty: localhost
	Forgets  bool              `json:"forgets,omitempty"`  // at its end it is stopped, and not suspended: what runs in it is lost
	Wakes    int               `json:"wakes,omitempty"`    // seconds that it has when it was off and is asked for something; 0: that does not start it
	Build    bool              `json:"build,omitempty"`    // a template is being built in it: programs do not know of it
}

// SandboxID returns the ID by which programs know the sandbox that is a VM with an ID in its marker:
// that without dashes, since E2B's clients make it part of host names.
func SandboxID(marker string) string { return strings.ReplaceAll(marker, "-", "") }

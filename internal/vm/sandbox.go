package vm

// Sandbox is what is kept of a VM that a program uses as a sandbox, beside the rest of it: none of
// it is ever on the host. It is replaced, never changed.
type Sandbox struct {
	Metadata map[string]string `json:"metadata,omitempty"` // texts that the program finds it by
	Env      []string          `json:"env,omitempty"`      // names of the variables that its commands are given; their values are in the VM alone
}

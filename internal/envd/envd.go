// Package envd is what the engine and linus-sandbox, its program in a sandbox's VM, agree on.
// It knows neither.
package envd

// Version is what clients of E2B are told to expect in a sandbox: they leave out what a version
// does not have. Everything that this one has is there; it is the last that they ask about.
const Version = "0.6.4"

// Port is where clients look for it, by the name of a host or by a header.
const Port = 49983

// Init is what the engine says to POST /init, which is its own: what is missing stays as it is. It
// is answered when the template's start command has started, and its ready command said so.
type Init struct {
	EnvVars  map[string]string `json:"envVars,omitempty"`    // in the place of all that were there
	Change   map[string]string `json:"changeVars,omitempty"` // of them; those that are empty here go
	Template *Template         `json:"template,omitempty"`   // of sandboxes that are made of this VM
}

// Template is what the sandboxes of a template begin with, in a file that the template has.
type Template struct {
	User    string            `json:"user,omitempty"`    // of calls that name none
	Workdir string            `json:"workdir,omitempty"` // where a path is empty; unset: the user's home
	Env     map[string]string `json:"env,omitempty"`
	Start   string            `json:"start,omitempty"` // a command that runs in each of them
	Ready   string            `json:"ready,omitempty"` // one that succeeds once that has started
}

// Step is a step of a template's build, a line of JSON that the engine says to POST /build; behind
// it is the archive of a COPY. Template is what the steps before have made; nil: what the VM's
// template had.
type Step struct {
	Type     string    `json:"type"` // RUN, COPY, ENV, WORKDIR, USER; empty: none
	Args     []string  `json:"args,omitempty"`
	Template *Template `json:"template,omitempty"`
}

// Said is a line of the answer: what a step says, and at last the template with it, or why it failed.
type Said struct {
	Text     string    `json:"text,omitempty"`
	Stderr   bool      `json:"stderr,omitempty"`
	Template *Template `json:"template,omitempty"`
	Error    string    `json:"error,omitempty"`
}

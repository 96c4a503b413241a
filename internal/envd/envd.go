// Package envd is the contract between the engine and linus-sandbox, its program in a sandbox's VM.
// It knows neither of them.
package envd

// Version is the version of envd that E2B's clients are told. They do not use what a version lacks.
// Sandboxes have everything of this version, which is the last one that clients check for.
const Version = "0.6.4"

// Port is the port under which clients reach linus-sandbox, by the name of a host or by a header.
const Port = 49983

// Init is the body of POST /init, which only the engine sends. Missing fields stay unchanged. The
// answer comes once the template's start command has started and its ready command has succeeded.
type Init struct {
	EnvVars  map[string]string `json:"envVars,omitempty"`    // replaces all variables
	Change   map[string]string `json:"changeVars,omitempty"` // changes some variables; an empty value removes one
	Template *Template         `json:"template,omitempty"`   // of sandboxes that are made of this VM
}

// Template is what the sandboxes of a template begin with. The template has it in a file.
type Template struct {
	User    string            `json:"user,omitempty"`    // of calls that name none
	Workdir string            `json:"workdir,omitempty"` // used for an empty path; unset: the user's home
	Env     map[string]string `json:"env,omitempty"`
	Start   string            `json:"start,omitempty"` // a command that runs in each sandbox
	Ready   string            `json:"ready,omitempty"` // a command that succeeds once Start has started
}

// Step is a step of a template's build: the line of JSON that the engine sends to POST /build,
// followed by the archive of a COPY. Template is the result of the previous steps; nil: the
// settings of the VM's template.
type Step struct {
	Type     string    `json:"type"` // RUN, COPY, ENV, WORKDIR, USER; empty: none
	Args     []string  `json:"args,omitempty"`
	Template *Template `json:"template,omitempty"`
}

// Said is a line of the answer to a step: output or, at last, the template after it, or its error.
type Said struct {
	Text     string    `json:"text,omitempty"`
	Stderr   bool      `json:"stderr,omitempty"`
	Template *Template `json:"template,omitempty"`
	Error    string    `json:"error,omitempty"`
}

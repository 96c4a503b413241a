// Package envd is what the engine and linus-sandbox, its program in a sandbox's VM, agree on.
// It knows neither.
package envd

// Version is what clients of E2B are told to expect in a sandbox: they leave out what a version
// does not have. Everything that this one has is there; it is the last that they ask about.
const Version = "0.6.4"

// Port is where clients look for it, by the name of a host or by a header.
const Port = 49983

// Init is what the engine says to POST /init, which is its own: what is missing stays as it is,
// and EnvVars takes the place of all that were there.
type Init struct {
	EnvVars        map[string]string `json:"envVars,omitempty"`
	DefaultUser    string            `json:"defaultUser,omitempty"`    // of calls that name none
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"` // where a path is empty; unset: the user's home
}

package job

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"linus/internal/vm"
)

// Bounds of what is stored for a sandbox.
const (
	maxMetadata      = 64       // texts
	maxMetadataBytes = 16 << 10 // of all keys and values
	maxSandboxEnv    = 256      // names
)

// checkSandbox returns a *FieldError if s cannot be stored. Metadata may be any text of the
// client's: whatever displays it must escape it.
func checkSandbox(s *vm.Sandbox) error {
	if s == nil {
		return nil
	}
	size := 0
	for _, key := range sortedKeys(s.Metadata) {
		value := s.Metadata[key]
		size += len(key) + len(value)
		switch {
		case key == "":
			return field("metadata", "give each text a key", "has an empty key")
		case !utf8.ValidString(key) || !utf8.ValidString(value):
			return field("metadata", "send text in UTF-8", "%.80q is not text", key)
		}
	}
	switch {
	case len(s.Metadata) > maxMetadata:
		return field("metadata", fmt.Sprintf("give at most %d", maxMetadata), "are %d", len(s.Metadata))
	case size > maxMetadataBytes:
		return field("metadata", "put large content into a file of the sandbox", "are %d bytes, the limit is %d", size, maxMetadataBytes)
	case len(s.Env) > maxSandboxEnv:
		return field("env", fmt.Sprintf("give at most %d", maxSandboxEnv), "are %d variables", len(s.Env))
	}
	if at := slices.IndexFunc(s.Env, func(name string) bool { return !fits(envName, name, 200) }); at >= 0 {
		return field("env", "use letters, digits and _, not starting with a digit", "%.80q is not a variable's name", s.Env[at])
	}
	return nil
}

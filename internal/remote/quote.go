package remote

import (
	"maps"
	"slices"

	"al.essio.dev/pkg/shellescape"
)

// Quote turns argv into one line that a POSIX shell splits into exactly those
// arguments. They must not contain NUL, which no command line can.
func Quote(argv ...string) string { return shellescape.QuoteCommand(argv) }

// EnvLine is Quote of argv run with env added to its environment. Others on the machine can read the
// variables in the command line while it runs: they must not be secret.
func EnvLine(env map[string]string, argv ...string) string {
	words := []string{"env"}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		words = append(words, name+"="+env[name])
	}
	return Quote(append(words, argv...)...)
}

package remote

import (
	"maps"
	"slices"

	"al.essio.dev/pkg/shellescape"
)

// Quote makes one line of argv that a POSIX shell reads back as exactly those
// words. Arguments must not hold NUL, which no command line can.
func Quote(argv ...string) string { return shellescape.QuoteCommand(argv) }

// EnvLine is Quote of argv run with env added to its environment. The
// variables stand in the command line, which others on the machine can read
// while it runs: nothing secret belongs there.
func EnvLine(env map[string]string, argv ...string) string {
	words := []string{"env"}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		words = append(words, name+"="+env[name])
	}
	return Quote(append(words, argv...)...)
}

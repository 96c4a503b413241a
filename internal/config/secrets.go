package config

import (
	"maps"
	"slices"
	"strings"

	"linus/internal/envfile"
)

// secretPrefix is the prefix of the variables that hold secrets of manifests.
const secretPrefix = "LINUS_SECRET_"

// minSecret is the length in bytes below which a value cannot be masked in output; package secret
// applies it to every source.
const minSecret = 4

// takeSecrets moves the manifests' secrets out of the given settings, and returns the problems with them.
func (c *Config) takeSecrets() []Problem {
	var problems []Problem
	for _, variable := range slices.Sorted(maps.Keys(c.given)) {
		name, ok := strings.CutPrefix(variable, secretPrefix)
		value := c.given[variable]
		switch {
		case !ok:
			continue
		case !envfile.IsName(name):
			problems = append(problems, Problem{variable, "does not name a secret", "write LINUS_SECRET_ and a name of letters, digits and _ that a manifest can have", value.from})
		case len(value.text) < minSecret:
			problems = append(problems, Problem{variable, "is shorter than 4 bytes and could not be masked in output", "give a longer value, or use the manifest's env", value.from})
		}
		c.Secrets[name] = Secret{value.text}
		c.given[variable] = entry{redacted, value.from}
	}
	return problems
}

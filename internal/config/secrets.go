package config

import (
	"regexp"
	"strings"
)

// secretPrefix begins the variables that hold secrets of manifests.
const secretPrefix = "LINUS_SECRET_"

var secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// minSecret is the length in bytes below which a value could not be masked in
// output; package secret holds every source to it.
const minSecret = 4

// readSecrets takes the secrets out of the environment's entries and answers
// what is wrong with them.
func (c *Config) readSecrets(environ []string) []Problem {
	var problems []Problem
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		name, ok := strings.CutPrefix(variable, secretPrefix)
		switch {
		case !ok:
			continue
		case !secretName.MatchString(name):
			problems = append(problems, Problem{variable, "does not name a secret", "write LINUS_SECRET_ and a name of letters, digits and _ that a manifest can have"})
		case len(value) < minSecret:
			problems = append(problems, Problem{variable, "is shorter than 4 bytes and could not be masked in output", "give a longer value, or use the manifest's env"})
		}
		c.Secrets[name] = Secret{value}
		c.given[variable] = true
	}
	return problems
}

package policy

import (
	"fmt"
	"slices"
	"strings"

	"linus/internal/lazyregexp"
)

// reserved are the words with which the shell begins more than a simple command.
var reserved = []string{
	"!", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time", "until", "while",
}

// evaluating are builtins that run text, set variables or change what later commands mean. A rule
// allows one only with all of its words: printf -v 'a[$(reboot)]' x runs reboot.
var evaluating = []string{
	".", "[", "alias", "bind", "builtin", "command", "compgen", "complete", "compopt", "declare", "enable", "eval", "exec", "export", "fc", "getopts",
	"hash", "history", "jobs", "let", "local", "mapfile", "printf", "read", "readarray", "readonly", "set", "shopt", "source", "test", "trap", "typeset",
	"unalias", "unset", "wait",
}

// harmless are builtins that need no rule.
var harmless = []string{":", "true", "false", "echo", "pwd", "cd", "exit"}

// usualSet matches the options of set with which scripts usually begin.
var usualSet = lazyregexp.New(`^(-[eux]+|(-[eux]*o pipefail))( -[eux]+| -[eux]*o pipefail)*$`)

// isHarmless reports whether a builtin's words change nothing but the shell's own state.
func isHarmless(words []string) bool {
	switch name, rest := words[0], words[1:]; name {
	case "set":
		return usualSet.MatchString(strings.Join(rest, " "))
	case "wait":
		return len(rest) == 0
	case "test", "[": // except -v and -R, which evaluate a subscript
		return !slices.Contains(rest, "-v") && !slices.Contains(rest, "-R")
	default:
		return slices.Contains(harmless, name)
	}
}

// script judges the commands of a task, or of a job's own command.
func (f *findings) script(text string) {
	const remedy = "write commands whose words are literal, in pipes and lists (; && ||), with special characters in quotes, or have ALLOWED_COMMANDS widened"
	commands, problem := readScript(text)
	for _, c := range commands {
		refuse := func(format string, args ...any) {
			f.add(f.field, fmt.Sprintf("line %d: ", c.line)+fmt.Sprintf(format, args...), f.policy.remedy())
		}
		switch name := c.words[0]; {
		case c.bare && slices.Contains(reserved, name):
			f.add(f.field, more(c.line, name), remedy)
			return // what follows belongs to that construct
		case strings.Contains(name, "="):
			f.add(f.field, fmt.Sprintf("line %d: %q may set a variable", c.line, c.text), "use the manifest's env")
		case isHarmless(c.words):
		case slices.Contains(evaluating, name) && !f.policy.names(c.words):
			refuse("%q is not allowed: %s can run what its words say, or change what commands mean, so it needs a rule with all of its words", c.text, name)
		case !f.policy.allows(c.words):
			refuse("%q is not allowed: %s", c.text, f.policy.reason(c.words))
		}
	}
	if problem != "" {
		f.add(f.field, problem, remedy)
	}
}

// names reports whether a rule has exactly these words, without wildcards.
func (p *Policy) names(words []string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return slices.Equal(r.words, words) && !strings.ContainsAny(r.text, "*?[") })
}

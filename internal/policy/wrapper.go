package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wrapper is a program that runs the command at the end of its arguments. That
// command is judged as if it stood alone; an option that is not listed is
// refused.
type wrapper struct {
	flags    string   // one-letter options
	valued   string   // one-letter options with a value
	long     []string // long options; those that end in = have a value
	operands int      // words before the command
	assigns  bool     // NAME=VALUE before the command
	alone    bool     // harmless without a command
}

var wrappers = map[string]wrapper{
	"builtin": {},
	"command": {flags: "p", alone: true},
	"env":     {flags: "i0v", valued: "uC", long: []string{"ignore-environment", "unset=", "chdir="}, assigns: true},
	"exec":    {flags: "cl", valued: "a", alone: true},
	"ionice":  {flags: "t", valued: "cn"},
	"nice":    {valued: "n", long: []string{"adjustment="}},
	"nohup":   {},
	"setsid":  {flags: "cfw", long: []string{"ctty", "fork", "wait"}},
	"stdbuf":  {valued: "ioe", long: []string{"input=", "output=", "error="}},
	"sudo":    {flags: "nEHkb", valued: "ug", long: []string{"non-interactive", "preserve-env", "set-home", "user=", "group="}, assigns: true},
	"time":    {flags: "apv", valued: "fo"},
	"timeout": {flags: "v", valued: "ks", long: []string{"foreground", "preserve-status", "verbose", "kill-after=", "signal="}, operands: 1},
	// xargs runs echo when there is no command.
	"xargs": {flags: "0rtx", valued: "nPLdsIE", long: []string{"null", "no-run-if-empty", "max-args=", "max-procs=", "delimiter="}, alone: true},
}

// wrapped judges the command that a wrapper runs.
func (c *checker) wrapped(at syntax.Node, name string, w wrapper, words []word) {
	if name == "command" && len(words) > 1 && words[1].literal && strings.Trim(words[1].text, "-pvV") == "" && strings.ContainsAny(words[1].text, "vV") {
		return // asks what a name means
	}
	rest, replaced, ok := c.unwrap(at, w, words[1:])
	switch {
	case !ok:
		return
	case len(rest) == 0 && w.alone:
		return
	case len(rest) == 0:
		c.refuse(at, "%q is not allowed: %s", c.text(at), c.policy.reason(words))
		return
	}
	if name == "xargs" {
		rest = withInput(rest, replaced)
	}
	c.command(at, rest, false)
}

// unwrap removes a wrapper's own words; replaced is the value of xargs -I. If
// it cannot, it reports why and returns false.
func (c *checker) unwrap(at syntax.Node, w wrapper, words []word) (rest []word, replaced string, ok bool) {
	for len(words) > 0 && strings.HasPrefix(words[0].text, "-") {
		option, value, length := w.option(words)
		if length == 0 {
			c.refuse(at, "%q: the option %s cannot be judged", c.text(at), shorten(words[0].text))
			return nil, "", false
		}
		switch option {
		case "I":
			replaced = value
		case "C", "chdir":
			c.changesDir([]word{literal(value)})
		}
		if words = words[length:]; option == "--" {
			break
		}
	}
	for range w.operands {
		if len(words) == 0 || !words[0].single {
			c.refuse(at, "%q: where its command begins is only known when it runs", c.text(at))
			return nil, "", false
		}
		words = words[1:]
	}
	for w.assigns && len(words) > 0 && words[0].single {
		name, _, found := strings.Cut(words[0].text, "=")
		if !found {
			break
		}
		c.set(at, name, false)
		words = words[1:]
	}
	return words, replaced, true
}

// option reads the option that words start with: its name, its value, and how
// many words it takes; 0 if it is not one of w's, or not known for certain.
func (w wrapper) option(words []word) (name, value string, length int) {
	first := words[0]
	if !first.literal {
		return "", "", 0
	}
	if long, ok := strings.CutPrefix(first.text, "--"); ok {
		name, value, attached := strings.Cut(long, "=")
		switch {
		case long == "":
			return "--", "", 1
		case attached && slices.Contains(w.long, name+"="):
			return name, value, 1
		case !attached && slices.Contains(w.long, name+"=") && len(words) > 1 && words[1].literal:
			return name, words[1].text, 2
		case !attached && slices.Contains(w.long, name):
			return name, "", 1
		}
		return "", "", 0
	}
	for i := 1; i < len(first.text); i++ {
		letter := first.text[i : i+1]
		switch {
		case strings.Contains(w.flags, letter):
			continue
		case !strings.Contains(w.valued, letter):
			return "", "", 0
		case i+1 < len(first.text): // -n5
			return letter, first.text[i+1:], 1
		case len(words) > 1 && words[1].literal:
			return letter, words[1].text, 2
		}
		return "", "", 0
	}
	if first.text == "-" {
		return "", "", 0
	}
	return first.text, "", 1
}

// withInput returns the command xargs runs: words of its input replace replaced
// or, without it, are appended.
func withInput(words []word, replaced string) []word {
	if replaced == "" {
		return append(slices.Clone(words), word{})
	}
	words = slices.Clone(words)
	for i, w := range words {
		if before, _, ok := strings.Cut(w.text, replaced); ok {
			words[i] = word{text: before, single: true}
		}
	}
	return words
}

// find judges the commands find runs. A word that is not known may be one of
// its options, and what follows it a command.
func (c *checker) find(at syntax.Node, words []word) {
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case isWord(w, "-exec", "-execdir", "-ok", "-okdir"):
			end := i + 1
			for end < len(words) && !isWord(words[end], ";", "+") {
				end++
			}
			if end == i+1 || end == len(words) {
				c.refuse(at, "%q: where the command of %s ends is only known when it runs", c.text(at), w.text)
				return
			}
			if c.nesting >= maxNesting {
				c.refuse(at, "%q is run by more than %d others", c.text(at), maxNesting)
				return
			}
			c.nesting++
			c.command(at, withInput(words[i+1:end], "{}"), false)
			c.nesting--
			i = end
		case isWord(w, "-fprint", "-fprint0", "-fprintf", "-fls", "-files0-from"):
			c.refuse(at, "%q: %s is not judged", c.text(at), w.text)
		case !w.literal && (w.text == "" || w.text[0] == '-') && (!w.single || i > 0):
			c.refuse(at, "%q: an option of find may be in a word that is only known when it runs; only its first may be", c.text(at))
			return
		case !w.literal && i+1 < len(words) && !(words[i+1].literal && strings.HasPrefix(words[i+1].text, "-")):
			c.refuse(at, "%q: a word that is only known when it runs must be followed by an option", c.text(at))
			return
		}
	}
}

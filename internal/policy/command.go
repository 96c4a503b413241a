package policy

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// harmless are builtins that need no rule: they run nothing and change nothing
// but the shell's own state. What they may say is checked in builtin.
var harmless = []string{
	":", "true", "false", "echo", "printf", "test", "[", "pwd", "cd", "pushd", "popd", "dirs", "exit", "return",
	"break", "continue", "shift", "umask", "times", "type", "jobs", "wait", "read", "getopts", "unset", "set", "shopt", "trap",
}

// unjudged are builtins and reserved names that change what later commands
// mean, or run text. They need a rule; a function may not take their names.
var unjudged = []string{
	"alias", "unalias", "bind", "builtin", "caller", "complete", "compgen", "compopt", "declare", "enable", "eval",
	"export", "fc", "hash", "history", "let", "local", "mapfile", "readarray", "readonly", "source", ".", "typeset",
}

// shells run the text behind -c.
var shells = map[string][]syntax.LangVariant{
	"bash": {syntax.LangBash},
	// Which shell sh is depends on the system: both readings must pass.
	"sh":   {syntax.LangPOSIX, syntax.LangBash},
	"dash": {syntax.LangPOSIX, syntax.LangBash},
}

func isSpecial(name string) bool {
	_, wraps := wrappers[name]
	_, shell := shells[name]
	return wraps || shell || slices.Contains(harmless, name) || slices.Contains(unjudged, name)
}

// command judges one simple command. inShell says that the shell itself looks
// for it, so that it may be a function.
func (c *checker) command(at syntax.Node, words []word, inShell bool) {
	name := words[0]
	if !name.literal {
		c.refuse(at, "%q: the command's name is only known when it runs", c.text(at))
		return
	}
	if all := c.functions[name.text]; inShell && len(all) > 0 {
		c.enter(all)
		return
	}
	if c.policy.allows(words) {
		return
	}
	if slices.Contains(harmless, name.text) {
		c.builtin(at, name.text, words[1:])
		return
	}
	dir, base := path.Split(name.text)
	if dir != "" && dir != "/bin/" && dir != "/usr/bin/" {
		base = "" // not what the plain name means
	}
	languages, isShell := shells[base]
	w, isWrapper := wrappers[base]
	isEval := name.text == "eval" && inShell
	switch {
	case (isShell || isWrapper || isEval) && c.nesting >= maxNesting:
		c.refuse(at, "%q is run by more than %d others", c.text(at), maxNesting)
	case isShell:
		c.shell(at, words, languages)
	case isWrapper:
		c.nesting++
		c.wrapped(at, base, w, words)
		c.nesting--
	case isEval:
		c.eval(at, words[1:])
	default:
		c.refuse(at, "%q is not allowed: %s", c.text(at), c.policy.reason(words))
	}
}

// text is the command as it is written.
func (c *checker) text(at syntax.Node) string {
	return shorten(c.source[at.Pos().Offset():at.End().Offset()])
}

// builtin checks the arguments of a harmless builtin.
func (c *checker) builtin(at syntax.Node, name string, words []word) {
	switch name {
	case "read", "getopts", "wait":
		c.settings(at, words)
	case "printf":
		if len(words) > 1 && strings.HasPrefix(words[0].text, "-v") {
			c.settings(at, words[:2])
		}
	case "unset":
		c.settings(at, words)
		for _, w := range words {
			if !w.literal || (strings.HasPrefix(w.text, "-") && w.text != "-v") || len(c.functions[w.text]) > 0 {
				c.refuse(at, "%q may unset a function; only variables, named literally, may be unset", c.text(at))
				return
			}
		}
	case "set", "shopt":
		c.options(at, words)
	case "trap":
		c.trap(at, words)
	}
}

// shellOptions change nothing that this package relies on.
var shellOptions = []string{
	"errexit", "nounset", "pipefail", "xtrace", "verbose", "noglob", "noclobber", "errtrace", "functrace", "allexport", "monitor", "noexec", "notify", "braceexpand",
	"nullglob", "failglob", "globstar", "dotglob", "nocaseglob", "nocasematch", "inherit_errexit", "lastpipe", "extglob",
}

// options allows the usual options of set and shopt. Others make the shell read
// its text in another way (posix, histexpand), or take arguments for
// assignments (keyword).
func (c *checker) options(at syntax.Node, words []word) {
	for i, w := range words {
		switch {
		case w.literal && (w.text == "--" || w.text == "-"):
			return // what follows are values
		case w.literal && (w.text == "-s" || w.text == "-u" || w.text == "-q" || w.text == "-p") && i == 0:
		case w.literal && slices.Contains(shellOptions, w.text):
		case w.literal && len(w.text) > 1 && (w.text[0] == '-' || w.text[0] == '+') && strings.Trim(w.text[1:], "aefuxvnbmBCETo") == "":
		default:
			c.refuse(at, "%q: only the usual options may be set, and values behind --", c.text(at))
			return
		}
	}
}

// trap checks the text a trap runs.
func (c *checker) trap(at syntax.Node, words []word) {
	if len(words) > 0 && words[0].literal && words[0].text == "--" {
		words = words[1:]
	}
	switch {
	case len(words) < 2: // shows or resets
	case words[0].literal && (words[0].text == "-p" || words[0].text == "-l"):
	case words[0].literal && words[0].text == "-":
	default:
		c.eval(at, words[:1])
	}
}

// eval checks text that this very shell runs.
func (c *checker) eval(at syntax.Node, words []word) {
	texts := make([]string, len(words))
	for i, w := range words {
		if !w.literal {
			c.refuse(at, "%q runs text that is only known when it runs", c.text(at))
			return
		}
		texts[i] = w.text
	}
	inner := checker{findings: c.findings, line: c.lineOf(at), functions: c.functions, inner: true, nesting: c.nesting + 1}
	inner.check(strings.Join(texts, " "), syntax.LangBash)
}

// shell checks bash -c and its like. What a shell reads from a file or its
// input is not known, and needs a rule of its own.
func (c *checker) shell(at syntax.Node, words []word, languages []syntax.LangVariant) {
	hasScript := false
	i := 1
	for ; i < len(words) && words[i].literal && words[i].text != "" && strings.Contains("-+", words[i].text[:1]); i++ {
		option := words[i].text
		if option == "--norc" || option == "--noprofile" {
			continue
		}
		if option == "--" {
			i++
			break
		}
		hasScript = hasScript || strings.Contains(option, "c")
		if len(option) == 1 || option[0] == '+' || strings.Trim(option[1:], "ceuxlvpo") != "" || strings.Count(option, "o") > 1 {
			c.refuse(at, "%q: the option %s cannot be judged", c.text(at), option)
			return
		}
		if strings.Contains(option, "o") {
			if i++; i == len(words) || !words[i].literal || !slices.Contains(shellOptions, words[i].text) {
				c.refuse(at, "%q: only the usual options may be set", c.text(at))
				return
			}
		}
	}
	switch {
	case !hasScript:
		c.refuse(at, "%q runs a script that is only known when it runs, and no rule of ALLOWED_COMMANDS is for it", c.text(at))
	case i == len(words) || !words[i].literal:
		c.refuse(at, "%q runs text that is only known when it runs", c.text(at))
	default:
		for _, language := range languages {
			inner := checker{findings: c.findings, line: c.lineOf(at), functions: map[string][]*function{}, nesting: c.nesting + 1}
			inner.check(words[i].text, language)
		}
	}
}

package policy

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shells run the text after -c.
var shells = map[string][]syntax.LangVariant{
	"bash": {syntax.LangBash},
	// Which shell sh is depends on the system: it must pass as both.
	"sh":   {syntax.LangPOSIX, syntax.LangBash},
	"dash": {syntax.LangPOSIX, syntax.LangBash},
}

func isSpecial(name string) bool {
	_, wraps := wrappers[name]
	_, shell := shells[name]
	return wraps || shell || slices.Contains(harmless, name) || slices.Contains(unjudged, name)
}

// command judges one simple command. inShell says that the shell itself looks
// it up, so that it may be a function.
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
		if path.Base(name.text) == "find" {
			c.find(at, words[1:])
		}
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

// text is the command as written.
func (c *checker) text(at syntax.Node) string {
	return shorten(c.source[at.Pos().Offset():at.End().Offset()])
}

// eval checks text that this same shell runs.
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

// shell checks bash -c and the like. What a shell reads from a file or its
// input is not known, and needs its own rule.
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
		c.refuse(at, "%q runs a script that is only known when it runs, and no rule of ALLOWED_COMMANDS matches it", c.text(at))
	case i == len(words) || !words[i].literal:
		c.refuse(at, "%q runs text that is only known when it runs", c.text(at))
	default:
		for _, language := range languages {
			inner := checker{findings: c.findings, line: c.lineOf(at), functions: map[string][]*function{}, nesting: c.nesting + 1}
			inner.check(words[i].text, language)
		}
	}
}

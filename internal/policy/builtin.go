package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"linus/internal/lazyregexp"
)

// harmless are builtins that need no rule: they run nothing and change only the
// shell's own state, as long as builtin finds nothing in their words that would
// be evaluated.
var harmless = []string{
	":", "true", "false", "echo", "printf", "test", "[", "pwd", "cd", "pushd", "popd", "dirs", "exit", "return",
	"break", "continue", "shift", "umask", "times", "type", "jobs", "wait", "read", "getopts", "unset", "set", "shopt", "trap",
}

// unjudged are builtins and reserved names that change what later commands
// mean, or run text. They need a rule; a function may not have their names.
var unjudged = []string{
	"alias", "unalias", "bg", "bind", "builtin", "caller", "complete", "compgen", "compopt", "declare", "disown", "enable", "eval",
	"export", "fc", "fg", "hash", "help", "history", "kill", "let", "local", "logout", "mapfile", "readarray", "readonly", "source", ".",
	"suspend", "typeset", "ulimit",
}

var elementName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*(\[[0-9]+\])?$`)

// builtin checks the words of a harmless builtin.
func (c *checker) builtin(at syntax.Node, name string, words []word) {
	switch name {
	case "read":
		c.read(at, words)
	case "getopts":
		if len(words) < 2 || !words[0].single {
			c.refuse(at, "%q: which variable is set is only known when it runs", c.text(at))
			return
		}
		c.setWord(at, words[1])
	case "wait":
		c.wait(at, words)
	case "jobs":
		// -x runs a command.
		for _, w := range words {
			if !w.literal || (strings.HasPrefix(w.text, "-") && strings.Trim(w.text, "-lnprs") != "") {
				c.refuse(at, "%q: only -l, -n, -p, -r and -s, and jobs by their numbers, can be judged", c.text(at))
			}
		}
	case "printf":
		c.printf(at, words)
	case "test":
		c.test(at, words)
	case "[":
		if n := len(words); n == 0 || !words[n-1].literal || words[n-1].text != "]" {
			c.refuse(at, "%q has no closing ]", c.text(at))
		} else {
			c.test(at, words[:n-1])
		}
	case "unset":
		for _, w := range words {
			switch {
			case w.literal && w.text == "-v":
			case !w.literal || !elementName.MatchString(w.text) || len(c.functions[w.text]) > 0:
				c.refuse(at, "%q may unset a function; only variables, named literally, may be unset", c.text(at))
				return
			case isGuarded(w.text):
				c.refuse(at, "%s may not be unset", w.text)
			}
		}
	case "set", "shopt":
		c.options(at, words)
	case "trap":
		c.trap(at, words)
	case "cd", "pushd", "popd":
		c.changesDir(words)
	}
}

// setWord notes that a builtin sets the variable a word names.
func (c *checker) setWord(at syntax.Node, w word) {
	if !w.literal {
		c.refuse(at, "%q: which variable is set is only known when it runs", c.text(at))
		return
	}
	c.set(at, w.text, false)
}

func (c *checker) read(at syntax.Node, words []word) {
	known := wrapper{flags: "rs", valued: "adnNptu"}
	for len(words) > 0 && (!words[0].literal || strings.HasPrefix(words[0].text, "-")) {
		option, value, length := known.option(words)
		if length == 0 {
			c.refuse(at, "%q: only -r, -s, -a, -d, -n, -N, -p, -t and -u of read, with literal values, can be judged", c.text(at))
			return
		}
		if option == "a" {
			c.vars.arrays[value] = true
			c.set(at, value, false)
		}
		if words = words[length:]; option == "--" {
			break
		}
	}
	for _, w := range words {
		c.setWord(at, w)
	}
}

// wait checks for -p, which sets a variable whose subscript is evaluated.
func (c *checker) wait(at syntax.Node, words []word) {
	for i, w := range words {
		switch {
		case w.literal && w.text == "--":
			return
		case w.literal && (w.text == "-n" || w.text == "-f"):
		case w.literal && strings.HasPrefix(w.text, "-p"):
			name := strings.TrimPrefix(w.text, "-p")
			if name == "" && i+1 < len(words) && words[i+1].literal {
				name = words[i+1].text
			}
			c.set(at, name, true)
		case w.literal && !strings.HasPrefix(w.text, "-"):
		case isCount(w.param):
		case plainName.MatchString(w.param):
			c.needNumber(at, w.param)
		default:
			c.refuse(at, "%q: what it waits for is only known when it runs; put -- before it", c.text(at))
		}
	}
}

// printf checks for -v, which sets a variable whose subscript is evaluated.
func (c *checker) printf(at syntax.Node, words []word) {
	if len(words) == 0 {
		return
	}
	first := words[0]
	switch {
	case first.literal && first.text == "-v" && len(words) > 1:
		c.setWord(at, words[1])
	case first.literal && strings.HasPrefix(first.text, "-v"):
		c.set(at, first.text[len("-v"):], false)
	case first.literal:
	case !first.single || first.text == "" || first.text[0] == '-':
		c.refuse(at, "%q: its first word may be -v; put -- before it", c.text(at))
	}
}

// Operators of test and [ that use nothing but their operands.
var (
	unaryTests  = []string{"-a", "-b", "-c", "-d", "-e", "-f", "-g", "-G", "-h", "-k", "-L", "-n", "-N", "-o", "-O", "-p", "-r", "-s", "-S", "-t", "-u", "-w", "-x", "-z"}
	binaryTests = []string{"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "-a", "-o"}
)

// test judges the words of test and [ by their number, as the shell does. -v
// evaluates the subscript of a name, so the operator must certainly be another.
func (c *checker) test(at syntax.Node, words []word) {
	for _, w := range words {
		switch {
		case w.single || isCount(w.param):
		case plainName.MatchString(w.param):
			c.needNumber(at, w.param)
		default:
			c.refuse(at, "%q: put quotes around what is expanded, so that it stays one word", c.text(at))
			return
		}
	}
	if len(words) > 2 && isWord(words[0], "!") {
		words = words[1:]
	}
	ok := false
	switch len(words) {
	case 0, 1:
		ok = true
	case 2:
		ok = isWord(words[0], append([]string{"!"}, unaryTests...)...) ||
			(isWord(words[0], "-v") && words[1].literal && plainName.MatchString(words[1].text))
	case 3:
		ok = isWord(words[1], binaryTests...)
	}
	if !ok {
		c.refuse(at, "%q cannot be judged; write tests of at most three words, joined by && and ||, or [[ ]]", c.text(at))
	}
}

// isWord reports whether a word is certain to be one of texts.
func isWord(w word, texts ...string) bool { return w.literal && slices.Contains(texts, w.text) }

// shellOptions change nothing that this package relies on.
var shellOptions = []string{
	"errexit", "nounset", "pipefail", "xtrace", "verbose", "noglob", "noclobber", "errtrace", "functrace", "allexport", "monitor", "noexec", "notify", "braceexpand",
	"nullglob", "failglob", "globstar", "dotglob", "nocaseglob", "nocasematch", "inherit_errexit", "lastpipe", "extglob",
}

// options allows the usual options of set and shopt. Others make the shell read
// its text differently (posix, histexpand), or treat arguments as assignments
// (keyword).
func (c *checker) options(at syntax.Node, words []word) {
	for i, w := range words {
		switch {
		case w.literal && (w.text == "--" || w.text == "-"):
			return // what follows are values
		case w.literal && (w.text == "-s" || w.text == "-u" || w.text == "-q" || w.text == "-p") && i == 0:
		case w.literal && slices.Contains(shellOptions, w.text):
		case w.literal && len(w.text) > 1 && (w.text[0] == '-' || w.text[0] == '+') && strings.Trim(w.text[1:], "aefuxvnbmBCETo") == "":
		default:
			c.refuse(at, "%q: only the usual options may be set, and values after --", c.text(at))
			return
		}
	}
}

// trap checks the text a trap runs.
func (c *checker) trap(at syntax.Node, words []word) {
	if i := slices.IndexFunc(words, func(w word) bool { return !w.literal }); i >= 0 {
		c.refuse(at, "%q: what a trap runs is only known when it runs", c.text(at))
		return
	}
	if len(words) > 0 && words[0].text == "--" {
		words = words[1:]
	}
	switch {
	case len(words) < 2: // shows or resets
	case words[0].text == "-p" || words[0].text == "-l" || words[0].text == "-":
	default:
		c.eval(at, words[:1])
	}
}

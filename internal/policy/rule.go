package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// rule allows the commands whose words match its own.
type rule struct {
	text  string   // as it was given, blanks evened out
	words []string // patterns of path.Match, one a word
	rest  bool     // any words may follow
}

func parseRule(text string) (rule, error) {
	words := strings.Fields(text)
	r := rule{text: strings.Join(words, " "), words: words, rest: len(words) == 1}
	if len(words) > 1 && words[len(words)-1] == "*" {
		r.words, r.rest = words[:len(words)-1], true
	}
	for _, w := range words {
		// What means something to the shell would be taken for it by a reader, too.
		if _, err := path.Match(w, ""); err != nil || strings.ContainsAny(w, "\"'`$\\;|&<>(){}#!~") {
			return rule{}, fmt.Errorf("ALLOWED_COMMANDS: %q is not a rule; write a command and its arguments as plain words with * and ? in them, as in: git, npm test, go test *", r.text)
		}
	}
	return r, nil
}

// matches compares position by position; a word that may become several, or
// none, makes all positions behind it uncertain.
func (r rule) matches(words []word) bool {
	if len(words) < len(r.words) || (len(words) > len(r.words) && !r.rest) {
		return false
	}
	for i, pattern := range r.words {
		if !words[i].literal {
			if i == 0 || pattern != "*" || !words[i].single {
				return false
			}
			continue
		}
		if ok, err := path.Match(pattern, words[i].text); err != nil || !ok {
			return false
		}
	}
	return true
}

func (p *Policy) allows(words []word) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.matches(words) })
}

// reason says why no rule allows words, by the rules that come nearest.
func (p *Policy) reason(words []word) string {
	var near []string
	for _, r := range p.rules {
		if ok, err := path.Match(r.words[0], words[0].text); err == nil && ok {
			near = append(near, r.text)
		}
	}
	if len(near) == 0 {
		return fmt.Sprintf("no rule of ALLOWED_COMMANDS is for %s", shorten(words[0].text))
	}
	return fmt.Sprintf("of %s ALLOWED_COMMANDS allows only: %s", shorten(words[0].text), strings.Join(near, ", "))
}

// remedy says what is allowed.
func (p *Policy) remedy() string {
	var texts []string
	for _, r := range p.rules {
		if texts = append(texts, r.text); len(texts) == 20 && len(p.rules) > 20 {
			texts = append(texts, "...")
			break
		}
	}
	return "allowed are: " + strings.Join(texts, ", ")
}

// isProgram reports whether a file of this path is a program or a library that
// a rule may mean: writing it would change what the rule allows.
func (p *Policy) isProgram(file string) bool {
	file = path.Clean(file)
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr"} {
		if file == dir || strings.HasPrefix(file, dir+"/") {
			return true
		}
	}
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		if !strings.Contains(r.words[0], "/") {
			return false
		}
		ok, err := path.Match(path.Clean(r.words[0]), file)
		return err == nil && ok
	})
}

// guardedNames are variables that decide which program a name means, or that
// hold code the shell runs by itself.
var guardedNames = []string{
	"PATH", "ENV", "BASH_ENV", "BASH_CMDS", "BASH_ALIASES", "BASH_LOADABLES_PATH",
	"BASHOPTS", "SHELLOPTS", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS3", "PS4", "POSIXLY_CORRECT",
}

func isGuarded(name string) bool {
	return slices.Contains(guardedNames, name) || strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "BASH_FUNC_")
}

// shorten makes text fit into a message: one line, 80 characters.
func shorten(text string) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > 80 {
		return string(r[:77]) + "..."
	}
	return string(r)
}

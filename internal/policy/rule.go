package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// rule allows the commands whose words match its own.
type rule struct {
	text  string   // as given, with blanks normalized
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
		// Characters that are special to the shell are refused, because a reader would take them as
		// special here, too.
		if _, err := path.Match(w, ""); err != nil || strings.ContainsAny(w, "\"'`$\\;|&<>(){}#!~") {
			return rule{}, setting("ALLOWED_COMMANDS", "%q is not a rule", r.text, "write a command and its arguments as plain words with * and ? in them, as in: git, npm test, go test *")
		}
	}
	return r, nil
}

// matches compares words position by position.
func (r rule) matches(words []string) bool {
	if len(words) < len(r.words) || (len(words) > len(r.words) && !r.rest) {
		return false
	}
	for i, pattern := range r.words {
		if ok, err := path.Match(pattern, words[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func (p *Policy) allows(words []string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.matches(words) })
}

// reason says why no rule allows words, and cites the nearest rules.
func (p *Policy) reason(words []string) string {
	var near []string
	for _, r := range p.rules {
		if ok, err := path.Match(r.words[0], words[0]); err == nil && ok {
			near = append(near, r.text)
		}
	}
	if len(near) == 0 {
		return fmt.Sprintf("no rule of ALLOWED_COMMANDS matches %s", shorten(words[0]))
	}
	return fmt.Sprintf("for %s, ALLOWED_COMMANDS allows only: %s", shorten(words[0]), strings.Join(near, ", "))
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

// guardedNames are variables that decide which program a name means, or that contain code or
// options which the shell or a common program uses implicitly.
var guardedNames = []string{
	"PATH", "ENV", "CDPATH", "EXECIGNORE", "BASHOPTS", "SHELLOPTS", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS3", "PS4", "POSIXLY_CORRECT", "INPUTRC",
	"HOME", "SHELL", "ZDOTDIR", "FPATH", "TEXTDOMAIN", "TEXTDOMAINDIR", "GCONV_PATH", "LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "HOSTALIASES",
	"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "SSH_ASKPASS", "SUDO_ASKPASS", "SUDO_EDITOR",
	"NODE_OPTIONS", "NODE_PATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "MAVEN_OPTS", "GRADLE_OPTS",
	"GOFLAGS", "GOENV", "GOROOT", "GOPATH", "GOTOOLCHAIN", "CC", "CXX", "AR", "MAKEFLAGS", "MFLAGS", "MAKEFILES", "GNUMAKEFLAGS",
	"RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "RSYNC_RSH", "CVS_RSH", "SVN_SSH", "TAR_OPTIONS", "AWKPATH", "AWKLIBPATH", "LUA_INIT", "LUA_PATH", "LUA_CPATH",
	"PHPRC", "PHP_INI_SCAN_DIR", "R_PROFILE", "R_PROFILE_USER", "R_ENVIRON", "R_ENVIRON_USER", "COMPOSER_HOME", "DOCKER_HOST", "DOCKER_CONFIG", "KUBECONFIG",
}

// guardedPrefixes are the prefixes of families of such variables.
var guardedPrefixes = []string{
	"LD_", "DYLD_", "BASH_", "GIT_", "PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "CARGO_", "CGO_", "XDG_", "PIP_", "UV_", "NPM_CONFIG_", "npm_config_", "COMP_", "READLINE_", "HIST",
}

func isGuarded(name string) bool {
	return slices.Contains(guardedNames, name) || slices.ContainsFunc(guardedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// shorten makes text fit into a message: one line, 80 characters.
func shorten(text string) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > 80 {
		return string(r[:77]) + "..."
	}
	return string(r)
}

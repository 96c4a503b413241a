package capture

import (
	"fmt"
	"regexp"
	"strings"

	"linus/internal/job"
)

// asked says which names of files a manifest asks for. The VM looks for them, by the same
// rules (scripts/lib/artifacts.sh), and is not to be believed.
type asked struct {
	patterns []*regexp.Regexp
	bundle   bool
}

func askedBy(m job.Manifest) (a asked) {
	a.bundle = m.Repository.Given()
	for _, pattern := range m.Artifacts {
		for _, text := range []string{pattern, bytewise(pattern)} {
			if compiled, err := regexp.Compile(expression(text)); err == nil { // [z-a] matches nothing
				a.patterns = append(a.patterns, compiled)
			}
		}
	}
	return a
}

func (a asked) names(name string) bool {
	if a.bundle && name == job.BundleArtifact {
		return true
	}
	for _, p := range a.patterns {
		if p.MatchString(name) || p.MatchString(bytewise(name)) {
			return true
		}
	}
	return false
}

// bytewise has a character for each byte: where a VM has no UTF-8, ? is one of them.
func bytewise(text string) string {
	runes := make([]rune, len(text))
	for i := range len(text) {
		runes[i] = rune(text[i])
	}
	return string(runes)
}

// expression is the regular expression of a pattern, as bash takes it with globstar and
// dotglob.
func expression(pattern string) string {
	for strings.Contains(pattern, "//") {
		pattern = strings.ReplaceAll(pattern, "//", "/")
	}
	for strings.Contains(pattern, "/./") {
		pattern = strings.ReplaceAll(pattern, "/./", "/")
	}
	pattern = strings.Trim(strings.TrimPrefix(pattern, "./"), "/")
	literal := !strings.ContainsAny(pattern, "*?[")
	pattern = strings.ReplaceAll(pattern, `\`, `[\\]`)
	parts := strings.Split(pattern, "/")
	var out strings.Builder
	out.WriteString(`\A`)
	for i, part := range parts {
		last := i == len(parts)-1
		switch {
		case part == "**" && last:
			out.WriteString(`(?s:.+)`)
		case part == "**":
			out.WriteString(`(?:[^/]+/)*`)
		default:
			out.WriteString(partExpression(part))
			if !last {
				out.WriteByte('/')
			}
		}
	}
	if literal { // a directory is all that is in it
		out.WriteString(`(?s:/.+)?`)
	}
	out.WriteString(`\z`)
	return out.String()
}

func partExpression(part string) string {
	var out strings.Builder
	for part != "" {
		one, rest := part[:1], part[1:]
		switch one {
		case "*":
			out.WriteString("[^/]*")
		case "?":
			out.WriteString("[^/]")
		case "[":
			if class, after, ok := classExpression(rest); ok {
				out.WriteString(class)
				rest = after
				break
			}
			fallthrough
		default:
			out.WriteString(regexp.QuoteMeta(one))
		}
		part = rest
	}
	return out.String()
}

// classExpression returns the class that a text begins with, after its [, and what follows its
// ]; false if it has no end, and the bracket is one like any other.
func classExpression(text string) (class, rest string, ok bool) {
	in, class, i := []rune(text), "[", 0
	if strings.HasPrefix(text, "!") || strings.HasPrefix(text, "^") {
		class, i = "[^/", 1
	}
	for begin := i; i < len(in); i++ {
		c := in[i]
		name, _, named := strings.Cut(strings.TrimPrefix(string(in[i:]), "[:"), ":]")
		switch {
		case c == ']' && i > begin:
			return class + "]", string(in[i+1:]), true
		case c == '[' && named && strings.HasPrefix(string(in[i:]), "[:"):
			class += "[:" + name + `:]\x{80}-\x{10FFFF}` // which of these are letters is the VM's to know
			i += len([]rune(name)) + 3
		case c == '-' && i > begin && i+1 < len(in) && in[i+1] != ']':
			class += "-"
		default:
			if c == '\\' && i+1 < len(in) {
				i++
			}
			class += fmt.Sprintf(`\x{%x}`, in[i])
		}
	}
	return "", "", false
}

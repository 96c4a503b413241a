package capture

import (
	"fmt"
	"regexp"
	"strings"

	"linus/internal/job"
)

// asked tells which file names a manifest asks for. The VM searches by the same rules
// (scripts/lib/artifacts.sh), but is not trusted.
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

// bytewise returns one character for each byte: without UTF-8 in the VM, ? matches one byte.
func bytewise(text string) string {
	runes := make([]rune, len(text))
	for i := range len(text) {
		runes[i] = rune(text[i])
	}
	return string(runes)
}

// expression returns a pattern's regular expression, as bash matches it with globstar and dotglob.
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
	if literal { // a directory stands for everything in it
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

// classExpression returns the class at the beginning of text, which starts after its [, and the
// text after its ]. It returns false if the class has no end: the bracket is then a literal.
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
			class += "[:" + name + `:]\x{80}-\x{10FFFF}` // only the VM knows which of these are letters
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

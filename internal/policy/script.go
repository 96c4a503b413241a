package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"linus/internal/lazyregexp"
)

const maxScript = 256 << 10 // bytes

// command is one simple command of a script.
type command struct {
	line  int
	text  string   // as written
	words []string // without their quotes
	bare  bool     // its first word is not quoted, so the shell's reserved words count
}

// redirection matches redirections that neither write nor read a file.
var redirection = lazyregexp.New(`^((?:&>>?|[012]?>>?|0?<)[ \t]*/dev/null|[12]?>&[12])(?:[ \t\n;&|]|$)`)

// readScript splits a script into its commands, as long as it has only literal commands, in pipes
// and lists; problem says where it has more.
func readScript(text string) (commands []command, problem string) {
	if problem := unreadable(text); problem != "" {
		return nil, problem
	}
	var c command
	line, first, last := 1, 0, 0
	end := func() {
		if len(c.words) > 0 {
			c.text = shorten(text[first:last])
			commands = append(commands, c)
		}
		c = command{}
	}
	for i := 0; i < len(text); {
		rest, length := text[i:], 1
		redirected := redirection.FindStringSubmatch(rest)
		switch {
		case rest[0] == ' ' || rest[0] == '\t':
		case strings.HasPrefix(rest, "\\\n"):
			length = 2
		case rest[0] == '#':
			if length = strings.IndexByte(rest, '\n'); length < 0 {
				length = len(rest)
			}
		case redirected != nil:
			length = len(redirected[1])
		case isEnd(rest[0]): // of && and |&, only the commands between them count
			end()
		default:
			w, problem := readWord(rest)
			if problem != "" {
				return commands, more(line, problem)
			}
			if len(c.words) == 0 {
				c.line, c.bare, first = line, !w.quoted, i
			}
			length = w.length
			c.words, last = append(c.words, w.text), i+length
		}
		line += strings.Count(rest[:length], "\n")
		i += length
	}
	end()
	return commands, ""
}

// more returns the problem of a script that has more than literal commands.
func more(line int, what string) string {
	return fmt.Sprintf("line %d: %s cannot be judged: with ALLOWED_COMMANDS a script may contain only literal commands", line, what)
}

func isEnd(c byte) bool { return strings.IndexByte("\n;&|", c) >= 0 }

// unreadable returns why text is not even read, or "" if it is.
func unreadable(text string) string {
	if len(text) > maxScript {
		return fmt.Sprintf("is %d bytes; with ALLOWED_COMMANDS a script may have %d", len(text), maxScript)
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\n' && c != '\t' || c == 0x7f {
			return fmt.Sprintf("line %d: has the control character 0x%02x", 1+strings.Count(text[:i], "\n"), c)
		}
	}
	if !utf8.ValidString(text) {
		return "is not valid UTF-8"
	}
	return ""
}

type word struct {
	text   string // without quotes
	length int    // in the script
	quoted bool
}

// computed are the characters that, without quotes, make a word more than literal.
var computed = map[byte]string{
	'$': "an expansion ($)", '`': "a substitution (`)", '(': "a parenthesis", ')': "a parenthesis", '{': "a brace", '}': "a brace",
	'<': "a redirection other than 2>&1 and those to /dev/null", '>': "a redirection other than 2>&1 and those to /dev/null",
	'*': "a pattern (*)", '?': "a pattern (?)", '[': "a pattern ([)",
}

// readWord reads the word at the start of text; problem says what in it is not literal.
func readWord(text string) (w word, problem string) {
	var b strings.Builder
	for i := 0; ; {
		if i == len(text) || text[i] == ' ' || text[i] == '\t' || isEnd(text[i]) {
			return word{text: b.String(), length: i, quoted: w.quoted}, ""
		}
		rest := text[i:]
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "\\\n"):
			i += 2
		case c == '\\' && len(rest) > 1:
			b.WriteByte(rest[1])
			w.quoted = true
			i += 2
		case c == '\'':
			inner, _, closed := strings.Cut(rest[1:], "'")
			if !closed {
				return w, "a quote that is not closed"
			}
			b.WriteString(inner)
			w.quoted = true
			i += len(inner) + 2
		case c == '"':
			length, problem := readQuoted(rest, &b)
			if problem != "" {
				return w, problem
			}
			w.quoted = true
			i += length
		case c == '[' && i == 0 && (len(rest) == 1 || rest[1] == ' ' || rest[1] == '\t'): // the command [
			b.WriteByte(c)
			i++
		case computed[c] != "":
			return w, computed[c]
		case c == '~' && (i == 0 || text[i-1] == '=' || text[i-1] == ':'):
			return w, "a home directory (~)"
		case c == '\\':
			return w, "a backslash at the end"
		default:
			b.WriteByte(c)
			i++
		}
	}
}

// readQuoted appends the contents of the double quotes at the start of text, and returns their length.
func readQuoted(text string, b *strings.Builder) (length int, problem string) {
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i + 1, ""
		case c == '$' || c == '`':
			return 0, computed[c]
		case c == '\\' && i+1 < len(text) && strings.IndexByte("$`\"\\\n", text[i+1]) >= 0:
			if i++; text[i] != '\n' {
				b.WriteByte(text[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return 0, "a quote that is not closed"
}

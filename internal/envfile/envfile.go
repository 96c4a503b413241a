// Package envfile parses files of NAME=value lines: the env file with linus's settings, and the file
// with the secrets of manifests. It owns their grammar and knows neither what the names mean nor
// where the files are. It imports the standard library only.
//
// The grammar, without any expansion:
//
//   - A line is blank, a comment that begins with #, or NAME=value. A name has
//     letters, digits and _, and does not begin with a digit. "export " before
//     it, and blanks around it and around the value, do not count.
//   - A value without quotes goes up to its line's end, or up to the # of a
//     comment: one after a blank, or between the equals sign and a blank.
//     Everything else in it stands for itself: A=x # y is "x", A=x#y is "x#y",
//     A=#y is "#y", A=# y is empty.
//   - A value in single quotes is what is between them.
//   - In double quotes \n, \t, \", \$, \` and \\ mean what they mean in C; any
//     other backslash stands for itself.
//   - A value in quotes may have several lines. Behind the closing quote only a
//     comment may stand.
//   - Line ends are \n or \r\n, and \n in a value; a byte order mark at the
//     beginning does not count.
package envfile

import (
	"regexp"
	"strings"
)

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// IsName reports whether name can be a variable's name: letters, digits and _, not beginning with a digit.
func IsName(name string) bool { return nameForm.MatchString(name) }

// Line is one line that is neither blank nor a comment; a quoted value may span several lines of the file.
type Line struct {
	Number int    // of its first line, from 1
	Name   string // empty if Problem is about the name
	Value  string
	// Problem is what is wrong with the line, or empty; it never contains any part of a value.
	// Parsing resumes with the next line.
	Problem string
}

// Parse returns the lines of a file in order, including those with problems. A name may occur
// several times: callers decide what that means.
func Parse(data []byte) []Line {
	var lines []Line
	rest := strings.TrimPrefix(string(data), "\xef\xbb\xbf")
	rest = strings.ReplaceAll(rest, "\r\n", "\n")
	for number := 1; rest != ""; {
		text, after, _ := strings.Cut(rest, "\n")
		if t := strings.TrimSpace(text); t != "" && t[0] != '#' {
			l := Line{Number: number}
			after = l.read(rest)
			lines = append(lines, l)
		}
		number += strings.Count(rest[:len(rest)-len(after)], "\n")
		rest = after
	}
	return lines
}

// read parses the line that text begins with, and returns the text after it.
func (l *Line) read(text string) (after string) {
	line, after, _ := strings.Cut(text, "\n")
	name, value, ok := strings.Cut(line, "=")
	name = strings.TrimSpace(name)
	if exported, ok := strings.CutPrefix(name, "export"); ok && strings.TrimLeft(exported, " \t") != exported {
		name = strings.TrimLeft(exported, " \t")
	}
	if !ok || !IsName(name) {
		l.Problem = "is not NAME=value"
		return after
	}
	l.Name = name
	value = strings.TrimLeft(value, " \t")
	if value == "" || value[0] != '"' && value[0] != '\'' {
		l.Value = withoutComment(line[strings.IndexByte(line, '=')+1:])
		return after
	}
	// The value may span more lines than this one.
	quoted, behind, ok := unquote(text[len(line)-len(value):])
	if !ok {
		l.Problem = "has a quote that does not end"
		return after
	}
	behind, beyond, _ := strings.Cut(behind, "\n")
	if behind = strings.TrimSpace(behind); behind != "" && behind[0] != '#' {
		l.Problem = "has text after its closing quote"
		return beyond
	}
	l.Value = quoted
	return beyond
}

// withoutComment returns an unquoted value: text, which follows the equals sign, up to a comment.
func withoutComment(text string) string {
	isBlank := func(i int) bool { return i == len(text) || text[i] == ' ' || text[i] == '\t' }
	for i := range len(text) {
		if text[i] == '#' && (i > 0 && isBlank(i-1) || i == 0 && isBlank(1)) {
			text = text[:i]
			break
		}
	}
	return strings.TrimSpace(text)
}

// escapes are the characters that a backslash in double quotes changes, and what they become.
var escapes = map[byte]byte{'n': '\n', 't': '\t', '"': '"', '$': '$', '`': '`', '\\': '\\'}

// unquote returns the quoted value that text begins with, and the text after its closing quote;
// false if there is no closing quote.
func unquote(text string) (value, behind string, ok bool) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		c := text[i]
		if c == quote {
			return b.String(), text[i+1:], true
		}
		if c == '\\' && quote == '"' && i+1 < len(text) && escapes[text[i+1]] != 0 {
			i++
			c = escapes[text[i]]
		}
		b.WriteByte(c)
	}
	return "", "", false
}

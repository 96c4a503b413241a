package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// maxEnvFile is what is read of an env file, in bytes.
const maxEnvFile = 1 << 20

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// envLine is one line of an env file that is neither blank nor a comment.
type envLine struct {
	number      int // from 1
	name, value string
	problem     string // what is wrong with it; it never holds a value
}

// readEnvFile reads an env file. One that holds a secret must be closed to
// everybody else.
func readEnvFile(path string) ([]envLine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	if len(data) > maxEnvFile {
		return nil, fmt.Errorf("the env file %s is larger than 1 MiB", path)
	}
	lines := parseEnvFile(data)
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	for _, l := range lines {
		if isSecret(l.name) && l.value != "" && othersMayRead(info) {
			return nil, fmt.Errorf("the env file %s holds a secret (%s) and others can read it (mode %04o): chmod 600 it", path, l.name, info.Mode().Perm())
		}
	}
	return lines, nil
}

// parseEnvFile reads lines NAME=value as shells and systemd do, without any
// expansion: blanks around a value do not count, nor does what follows " #"; in
// single quotes all counts as it is; in double quotes \n, \", \$, \` and \\ do
// what they do in C, and a value may go over several lines. A leading "export"
// is passed over.
func parseEnvFile(data []byte) []envLine {
	var lines []envLine
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // an editor's byte order mark
	rest := strings.ReplaceAll(string(data), "\r\n", "\n")
	for number := 1; rest != ""; {
		line, after, _ := strings.Cut(rest, "\n")
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' {
			rest, number = after, number+1
			continue
		}
		l := envLine{number: number}
		text = strings.TrimLeft(strings.TrimPrefix(text, "export "), " \t")
		name, value, ok := strings.Cut(text, "=")
		if ok && envName.MatchString(name) {
			l.name = name
			if value = strings.TrimLeft(value, " \t"); value != "" && (value[0] == '"' || value[0] == '\'') {
				// From the quote in the file itself: the value may have more lines.
				_, quoted, _ := strings.Cut(rest, "=")
				quoted = strings.TrimLeft(quoted, " \t")
				l.value, after, ok = unquote(quoted)
				if !ok {
					l.problem = "has a quote that does not end, or text behind it"
					_, after, _ = strings.Cut(rest, "\n")
				}
			} else {
				l.value = withoutComment(value)
			}
		} else {
			l.problem = "is not NAME=value"
		}
		lines = append(lines, l)
		number += strings.Count(rest[:len(rest)-len(after)], "\n")
		rest = after
	}
	return lines
}

// withoutComment ends an unquoted value where a blank and # begin a comment.
func withoutComment(value string) string {
	for i := range len(value) {
		if value[i] == '#' && (i == 0 || value[i-1] == ' ' || value[i-1] == '\t') {
			value = value[:i]
			break
		}
	}
	return strings.TrimRight(value, " \t\r")
}

// unquote reads the quoted value at the start of text and returns what comes
// after its line. Behind the closing quote only a comment may stand.
func unquote(text string) (value, after string, ok bool) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == quote:
			behind, after, _ := strings.Cut(text[i+1:], "\n")
			behind = strings.TrimSpace(behind)
			return b.String(), after, behind == "" || behind[0] == '#'
		case c == '\\' && quote == '"' && i+1 < len(text) && strings.IndexByte("n\"$`\\", text[i+1]) >= 0:
			i++
			if c = text[i]; c == 'n' {
				c = '\n'
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// execLine is one command of a unit.
type execLine struct {
	Argv    []string
	MayFail bool // written with a leading "-"
}

// parseExec reads a command line of a unit property.
func parseExec(text string) (execLine, error) {
	var e execLine
	text, e.MayFail = strings.CutPrefix(text, "-")
	words, err := splitWords(text)
	if err != nil {
		return e, err
	}
	if len(words) == 0 {
		return e, errors.New("Failed to parse command line: Invalid argument")
	}
	if strings.ContainsAny(words[0][:1], "@:+!") {
		return e, fmt.Errorf("the lab's systemd-run knows no prefix but \"-\" before a command: %s", text)
	}
	if strings.Contains(words[0], "/") && !filepath.IsAbs(words[0]) {
		return e, fmt.Errorf("Failed to start transient service unit: %q is neither a valid executable name nor an absolute path", words[0])
	}
	e.Argv = words
	return e, nil
}

// splitWords parts a command line as systemd does: quotes anywhere in a word,
// backslash escapes of C.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\':
			if i++; i == len(text) {
				return nil, errors.New("Failed to parse command line: Invalid argument")
			}
			plain := strings.IndexByte(`ntrs\"'`, text[i])
			if plain < 0 {
				return nil, fmt.Errorf("the lab's systemd-run does not know the escape \\%c", text[i])
			}
			word.WriteByte("\n\t\r \\\"'"[plain])
			inWord = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errors.New("Failed to parse command line: Invalid argument")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// expand puts variables in: ${NAME} anywhere, $NAME where it is a whole word,
// which may become several or none; $$ is a dollar sign. The program's own name
// stays as it is.
func expand(argv, env []string) []string {
	value := func(name string) string {
		for i := len(env) - 1; i >= 0; i-- {
			if v, ok := strings.CutPrefix(env[i], name+"="); ok {
				return v
			}
		}
		return ""
	}
	out := []string{argv[0]}
	for _, word := range argv[1:] {
		if name, ok := strings.CutPrefix(word, "$"); ok && variableName(name) {
			out = append(out, strings.Fields(value(name))...)
			continue
		}
		var b strings.Builder
		for i := 0; i < len(word); i++ {
			if word[i] != '$' || i+1 == len(word) {
				b.WriteByte(word[i])
				continue
			}
			if word[i+1] == '$' {
				b.WriteByte('$')
				i++
				continue
			}
			end := strings.IndexByte(word[i:], '}')
			if word[i+1] == '{' && end > 0 && variableName(word[i+2:i+end]) {
				b.WriteString(value(word[i+2 : i+end]))
				i += end
				continue
			}
			b.WriteByte('$')
		}
		out = append(out, b.String())
	}
	return out
}

func variableName(name string) bool {
	for i, c := range name {
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// findProgram looks a program up where a unit's are.
func findProgram(name, path string) (string, error) {
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return name, err
	}
	if !strings.Contains(name, "/") {
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", os.ErrNotExist
}

package systemd

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"linus/internal/lazyregexp"
)

// parseExec reads a command line of a unit property.
func parseExec(text string) ([]string, error) {
	words, err := splitWords(text)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return nil, fmt.Errorf("the lab's systemd wants a program's absolute path, and no prefix, in the command %q", text)
	}
	return words, checkVariables(words)
}

// splitWords parts a command line as systemd does: quotes anywhere in a word.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	for _, c := range text {
		switch {
		case c == '\\':
			return nil, fmt.Errorf("the lab's systemd knows no escapes: %s", text)
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case quote == 0 && strings.ContainsRune(" \t\n", c):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
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

// variable is what systemd itself puts something in for: $NAME where it is a whole
// word, ${NAME} anywhere, and $$.
var variable = lazyregexp.New(`^\$[A-Za-z_][A-Za-z0-9_]*$|\$\{|\$\$`)

func checkVariables(words []string) error {
	if i := slices.IndexFunc(words, variable.MatchString); i >= 0 {
		return fmt.Errorf("the lab's systemd puts no variables in a command line: %s", words[i])
	}
	return nil
}

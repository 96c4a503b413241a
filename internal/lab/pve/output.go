package pve

import (
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"linus/internal/lazyregexp"
)

var jsonKey = lazyregexp.New(`(?m)^( *"(?:[^"\\]|\\.)*"):`)

// printPretty writes JSON as Perl's pretty, canonical JSON does: sorted keys, indented by three
// blanks, ` : ` between key and value.
func printPretty(w io.Writer, value any) error {
	var b strings.Builder
	if err := printJSON(&b, value, "   "); err != nil {
		return err
	}
	_, err := io.WriteString(w, jsonKey.ReplaceAllString(b.String(), "$1 :"))
	return err
}

// printJSON writes JSON with sorted keys, on one line if indent is empty.
func printJSON(w io.Writer, value any, indent string) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	return encoder.Encode(value)
}

// perlText returns a text as Perl's JSON shows it: in a text that is not valid UTF-8, each byte
// becomes the character of the same number.
func perlText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	runes := make([]rune, 0, len(text))
	for _, c := range []byte(text) {
		runes = append(runes, rune(c))
	}
	return string(runes)
}

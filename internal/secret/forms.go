package secret

import (
	"bytes"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// pattern is a text that is searched for in every way that programs escape it. Each character may
// be literal, escaped as in JSON strings (\n, \", \/, \u00e4, with upper or lower case digits, and
// surrogate pairs), or as in URLs (each byte as %2F or %2f, a space as +). A program chooses which
// characters it escapes, so each may have any form.
//
// Where escaping is in use, the escape character itself is escaped, too. So a text with a % or a \
// is searched for in several readings, each with a fixed meaning of % and \. A match never needs to
// be tried in two ways.
type pattern struct {
	text []byte
	// Whether the text's own % and \ are literal, not escaped.
	plainPercent, plainBackslash bool
}

// readings returns the patterns that find a text.
func readings(text []byte) []pattern {
	all := []pattern{{text: text, plainPercent: true, plainBackslash: true}}
	if bytes.IndexByte(text, '%') >= 0 {
		all = append(all, pattern{text: text, plainBackslash: true})
	}
	if bytes.IndexByte(text, '\\') >= 0 {
		for _, p := range all {
			all = append(all, pattern{text: text, plainPercent: p.plainPercent})
		}
	}
	return all
}

// longestForm returns the largest number of bytes that a text can have after escaping.
func longestForm(text []byte) int {
	n := 0
	for len(text) > 0 {
		_, size := utf8.DecodeRune(text)
		n += max(len(`\u0000`), len("%00")*size)
		text = text[size:]
	}
	return n
}

func (p pattern) plain(c byte) bool {
	return (c != '%' || p.plainPercent) && (c != '\\' || p.plainBackslash)
}

// match checks whether the text is at data[i:]. It returns the text's end, or 0 if it is not there,
// and open if data ends too early to tell.
func (p pattern) match(data []byte, i int) (end int, open bool) {
	for k := 0; k < len(p.text); {
		if i == len(data) {
			return 0, true
		}
		switch c, d := p.text[k], data[i]; {
		case c == d && p.plain(c), c == ' ' && d == '+':
			k, i = k+1, i+1
		case d == '%':
			n := hexAt(data[i+1:], rune(c), 2)
			if n < 2 {
				return 0, i+1+n == len(data)
			}
			k, i = k+1, i+3
		case d == '\\':
			taken, used, more := p.escape(k, data[i:])
			if taken == 0 {
				return 0, more
			}
			k, i = k+taken, i+used
		default:
			return 0, false
		}
	}
	return i, false
}

// escape reads the JSON escape at the beginning of data. It returns how much of the text from k on
// the escape represents, 0 for anything else, and open if data ends too early to tell.
func (p pattern) escape(k int, data []byte) (taken, used int, open bool) {
	if len(data) == 1 {
		return 0, 0, true
	}
	if data[1] != 'u' {
		if data[1] == shortEscape(p.text[k]) {
			return 1, 2, false
		}
		return 0, 0, false
	}
	r, size := utf8.DecodeRune(p.text[k:])
	units := []rune{r}
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		units = []rune{high, low}
	}
	for _, unit := range units {
		for _, c := range []byte(`\u`) {
			if used == len(data) || data[used] != c {
				return 0, 0, used == len(data)
			}
			used++
		}
		if n := hexAt(data[used:], unit, 4); n < 4 {
			return 0, 0, used+n == len(data)
		}
		used += 4
	}
	return size, used, false
}

// shortEscape returns the letter that represents c after a backslash, or 0.
func shortEscape(c byte) byte {
	if i := strings.IndexByte("\"\\/\b\f\n\r\t", c); i >= 0 {
		return `"\/bfnrt`[i]
	}
	return 0
}

// hexAt returns how many of the hexadecimal digits of value, in either case, data begins with.
// value is written with the given number of digits.
func hexAt(data []byte, value rune, digits int) int {
	for n := range digits {
		if n == len(data) {
			return n
		}
		c := data[n]
		if c >= 'A' && c <= 'F' {
			c += 'a' - 'A'
		}
		if c != "0123456789abcdef"[value>>(4*(digits-1-n))&15] {
			return n
		}
	}
	return digits
}

// begins yields the pairs of bytes, as one number each, that an occurrence can begin with. It may
// yield pairs more than once, and pairs that cannot occur.
func (p pattern) begins() func(yield func(uint16) bool) {
	return func(yield func(uint16) bool) {
		c := p.text[0]
		high := "0123456789abcdef"[c>>4]
		all := []uint16{pair('%', high), pair('%', high-'a'+'A'), pair('\\', 'u'), pair('\\', shortEscape(c))}
		if high < 'a' {
			all[1] = all[0]
		}
		var firsts []byte
		if p.plain(c) {
			firsts = append(firsts, c)
		}
		if c == ' ' {
			firsts = append(firsts, '+')
		}
		for _, first := range firsts {
			all = append(all, pair(first, '%'), pair(first, '\\'))
			if p.plain(p.text[1]) {
				all = append(all, pair(first, p.text[1]))
			}
			if p.text[1] == ' ' {
				all = append(all, pair(first, '+'))
			}
		}
		for _, both := range all {
			if !yield(both) {
				return
			}
		}
	}
}

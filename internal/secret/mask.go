package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
)

// Mask answers the beginning of data in which every byte of every occurrence
// of secrets is a '*', and its length n. Length and place of all other bytes
// are kept, so that offsets mean the same before and after.
//
// When final is false, more data may follow: what could be the beginning of a
// secret is held back, and the caller gives data[n:] again, more behind it.
// However a stream is cut, the parts together are what Mask makes of it whole;
// a byte of a secret never gets through. Less than twice the longest secret is
// held back. Secrets are given as Forms makes them; data is not changed.
func Mask(secrets [][]byte, data []byte, final bool) (masked []byte, n int) {
	n = len(data)
	if !final {
		for _, s := range secrets {
			n = min(n, len(data)-unfinished(s, data))
		}
	}
	// An occurrence that was cut at n would not be recognised in data[n:]. One
	// step back is enough: the occurrence that reaches farthest beyond n covers
	// whatever else was cut.
	type span struct{ start, end int }
	var found []span
	cut := span{n, n}
	for _, s := range secrets {
		for at := range occurrences(s, data) {
			o := span{at, at + len(s)}
			found = append(found, o)
			if o.start < n && o.end > n && (o.end > cut.end || (o.end == cut.end && o.start > cut.start)) {
				cut = o
			}
		}
	}
	n = cut.start
	masked = bytes.Clone(data[:n])
	for _, o := range found {
		for i := o.start; i < min(o.end, n); i++ {
			masked[i] = '*'
		}
	}
	return masked, n
}

// occurrences yields where s begins in data, overlapping ones too.
func occurrences(s, data []byte) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for from := 0; len(s) > 0; {
			i := bytes.Index(data[from:], s)
			if i < 0 || !yield(from+i) {
				return
			}
			from += i + 1
		}
	}
}

// unfinished is the length of the longest suffix of data that is a beginning
// of s, but not all of it.
func unfinished(s, data []byte) int {
	for k := min(len(s)-1, len(data)); k > 0; k-- {
		if bytes.HasSuffix(data, s[:k]) {
			return k
		}
	}
	return 0
}

// minBase64 is how long an encoded form must be to be looked for: short ones
// occur by chance.
const minBase64 = 8

// Forms answers what to look for in output to find values: each value itself;
// each of its lines, where there are several (terminals and indentation change
// what is between lines); and, where they differ from it, the value as it
// stands in JSON, in a URL, and in base64 at any place within a longer text.
// Lines shorter than MinValue are not looked for, nor is base64 that was broken
// into lines, nor any other encoding (hex, compression, reversal).
func Forms(values []Value) [][]byte {
	var forms [][]byte
	add := func(f []byte) {
		if len(f) >= MinValue && !slices.ContainsFunc(forms, func(g []byte) bool { return bytes.Equal(f, g) }) {
			forms = append(forms, f)
		}
	}
	for _, v := range values {
		add(v.value)
		for line := range bytes.Lines(v.value) {
			add(bytes.TrimSpace(line))
		}
		add(inJSON(v.value))
		add([]byte(url.QueryEscape(string(v.value))))
		add([]byte(url.PathEscape(string(v.value))))
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for shift := range 3 {
				if f := inBase64(encoding, v.value, shift); len(f) >= minBase64 {
					add(f)
				}
			}
		}
	}
	return forms
}

// inJSON is value as encoders write it into a JSON string, without the quotes.
func inJSON(value []byte) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(string(value)); err != nil {
		return nil // a string can always be encoded
	}
	return b.Bytes()[len(`"`) : b.Len()-len("\"\n")]
}

// inBase64 is what of base64 text depends on value alone, when shift bytes of
// something else (modulo 3) stand before it: a character holds 6 bits.
func inBase64(encoding *base64.Encoding, value []byte, shift int) []byte {
	text := encoding.AppendEncode(nil, append(make([]byte, shift), value...))
	first, last := (8*shift+5)/6, 8*(shift+len(value))/6
	return text[first:last]
}

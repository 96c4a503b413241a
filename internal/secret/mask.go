package secret

import (
	"bytes"
	"encoding/base64"
	"slices"
)

// Masker replaces the values of secrets in text by stars, in every form that linus help guarantees
// names: literal, escaped as in JSON and URLs, and in base64. The nil Masker has no secrets. It is
// safe for concurrent use.
type Masker struct {
	patterns []pattern
	longest  int
	pairs    [1 << 10]uint64  // a bit for each pair of bytes that a pattern can begin with
	begins   map[uint16][]int // the patterns that can begin with a pair
}

// NewMasker returns a Masker for values. It searches for each value; for each line of a value with
// several (terminals and indentation change what is between lines); and for the base64 form of
// both, at any offset within a longer text. It does not search for lines shorter than MinValue, for
// base64 that is broken into lines, or for any other encoding (hex, compression, reversal).
func NewMasker(values []Value) *Masker {
	m := &Masker{begins: map[uint16][]int{}}
	var texts [][]byte
	add := func(text []byte, least int) {
		if len(text) >= least && !slices.ContainsFunc(texts, func(other []byte) bool { return bytes.Equal(text, other) }) {
			texts = append(texts, text)
			m.add(text)
		}
	}
	for _, v := range values {
		lines := [][]byte{v.value}
		for line := range bytes.Lines(v.value) {
			lines = append(lines, bytes.TrimSpace(line))
		}
		for _, text := range lines {
			if len(text) < MinValue {
				continue
			}
			add(text, MinValue)
			for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				for shift := range 3 {
					add(inBase64(encoding, text, shift), minBase64)
				}
			}
		}
	}
	return m
}

// minBase64 is the minimum length of an encoded form to search for: shorter ones occur by chance.
const minBase64 = 8

// inBase64 returns the part of the base64 text that depends on value alone, if shift other bytes
// (modulo 3) precede it: a character encodes 6 bits.
func inBase64(encoding *base64.Encoding, value []byte, shift int) []byte {
	text := encoding.AppendEncode(nil, append(make([]byte, shift), value...))
	first, last := (8*shift+5)/6, 8*(shift+len(value))/6
	return text[first:last]
}

// add makes m search for text, which must have at least two bytes.
func (m *Masker) add(text []byte) {
	m.longest = max(m.longest, longestForm(text))
	for _, p := range readings(text) {
		m.patterns = append(m.patterns, p)
		for pair := range p.begins() {
			if all := m.begins[pair]; !slices.Contains(all, len(m.patterns)-1) {
				m.begins[pair] = append(all, len(m.patterns)-1)
			}
			m.pairs[pair>>6] |= 1 << (pair & 63)
		}
	}
}

// Empty reports whether there is nothing to mask.
func (m *Masker) Empty() bool { return m == nil || len(m.patterns) == 0 }

// Longest returns the length in bytes of the longest form of any secret.
func (m *Masker) Longest() int {
	if m == nil {
		return 0
	}
	return m.longest
}

// Mask returns the beginning of data, with every byte of every occurrence of a secret replaced by
// '*', and its length n. All other bytes keep their value and position, so offsets mean the same
// before and after.
//
// If final is false, more data may follow: Mask does not return what could be the beginning of a
// secret, and the caller passes data[n:] again, followed by more. However a stream is split, the
// parts together equal Mask of the whole, and no byte of a secret is ever returned. Mask withholds
// less than twice Longest. It does not change data.
func (m *Masker) Mask(data []byte, final bool) (masked []byte, n int) {
	masked, n = bytes.Clone(data), len(data)
	if m.Empty() {
		return masked, n
	}
	// An occurrence that was cut at n would not be recognised in data[n:]. One step back is enough:
	// the occurrence that reaches farthest beyond n covers any other that was cut.
	farStart, farEnd, starred := 0, 0, 0
	for i := range data {
		if i+1 < len(data) && !m.canBegin(data[i], data[i+1]) {
			continue
		}
		end, open := m.at(data, i)
		if open && !final {
			n = i
			break
		}
		if end == 0 {
			continue
		}
		if end >= farEnd {
			farStart, farEnd = i, end
		}
		for j := max(i, starred); j < end; j++ {
			masked[j] = '*'
		}
		starred = max(starred, end)
	}
	if farEnd > n {
		n = farStart
	}
	return masked[:n], n
}

func pair(a, b byte) uint16 { return uint16(a)<<8 | uint16(b) }

// canBegin reports whether an occurrence can begin with these two bytes.
func (m *Masker) canBegin(a, b byte) bool { return m.pairs[pair(a, b)>>6]&(1<<(b&63)) != 0 }

// at returns the end of the longest occurrence that begins at i, or 0, and whether data ends too
// early to tell whether another one begins there.
func (m *Masker) at(data []byte, i int) (end int, open bool) {
	if i+1 == len(data) {
		for k := range m.patterns {
			_, more := m.patterns[k].match(data, i)
			open = open || more
		}
		return 0, open
	}
	for _, k := range m.begins[pair(data[i], data[i+1])] {
		e, more := m.patterns[k].match(data, i)
		end, open = max(end, e), open || more
	}
	return end, open
}

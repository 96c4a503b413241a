package term

import (
	"bytes"
	"strings"
	"testing"
)

func TestHarmless_KeepsColoursAndProgressAndNothingElse(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"plain":              {"a\tb\nc", "a\tb\nc"},
		"colours":            {"\x1b[1;31mred\x1b[0m \x1b[38:5:9mx\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38:5:9mx\x1b[m\x1b[m"},
		"colour left on":     {"\x1b[8mhidden", "\x1b[8mhidden\x1b[m"},
		"progress":           {"10%\r\x1b[K20%\b1", "10%\r\x1b[K20%\b1"},
		"title":              {"a\x1b]0;title\ab", "ab"},
		"clipboard":          {"a\x1b]52;c;aGk=\x1b\\b", "ab"},
		"link":               {"\x1b]8;;http://x\atext\x1b]8;;\a", "text"},
		"cursor":             {"a\x1b[2J\x1b[H\x1b[3Ab\x1b7\x1b8", "ab"},
		"modes":              {"\x1b[?1049ha\x1b[?2004h", "a"},
		"questions":          {"\x1b[c\x1b[6n\x1b[>c\x1bZa", "a"},
		"not a colour":       {"\x1b[>4;1ma\x1b[?4m", "a"},
		"device control":     {"\x1bP$q\"p\x1b\\a", "a"},
		"reset":              {"\x1bca", "a"},
		"C1":                 {"\u009b2Ja\u009d0;t\ab\u009b31mc", "abc"},
		"bell, bidi, nul":    {"\aa\u202eb\x00c\x7f", "abc"},
		"invalid":            {"a\xffb", "a\ufffdb"},
		"unfinished":         {"a\x1b]0;title", "a]0;title"},
		"unfinished and cut": {"a\xe2\x82", "a\ufffd\ufffd"},
	} {
		for _, size := range []int{1, 2, 3, 1 << 10} {
			var out bytes.Buffer
			h := Harmless{To: &out}
			for in := tt.in; in != ""; {
				n := min(size, len(in))
				if got, err := h.Write([]byte(in[:n])); got != n || err != nil {
					t.Fatal(got, err)
				}
				in = in[n:]
			}
			if err := h.Close(); err != nil || out.String() != tt.want {
				t.Errorf("%s, by %d: %q, want %q (%v)", name, size, out.String(), tt.want, err)
			}
		}
	}
}

// What never ends is not held for ever.
func TestHarmless_HoldsLittle(t *testing.T) {
	var out bytes.Buffer
	h := Harmless{To: &out}
	for range 100 {
		_, _ = h.Write([]byte(strings.Repeat("\x1b]0;", 100)))
		_, _ = h.Write([]byte(strings.Repeat("x", 1000)))
		if len(h.held) > 2*maxSequence {
			t.Fatalf("%d bytes are held", len(h.held))
		}
	}
}

func FuzzHarmless(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\x1b]0;x\a"), 3)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		var out bytes.Buffer
		h := Harmless{To: &out}
		at = max(0, min(at, len(data)))
		_, _ = h.Write(data[:at])
		_, _ = h.Write(data[at:])
		_ = h.Close()
		// What is left of sequences is colours and the end of a line.
		rest := out.Bytes()
		for len(rest) > 0 {
			i := bytes.IndexByte(rest, '\x1b')
			if i < 0 {
				break
			}
			n := sequence(rest[i:])
			if s := rest[i : i+max(n, 1)]; !isColour(s) && string(s) != "\x1b[K" {
				t.Fatalf("%q of %q", s, out.Bytes())
			}
			rest = rest[i+n:]
		}
	})
}

package term_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"linus/internal/term"
)

func TestText_LeavesNothingThatATerminalObeys(t *testing.T) {
	tests := []struct{ name, in, text, line string }{
		{"plain", "a b\tc\nd", "a b\tc\nd", "a b c d"},
		{"letters of all kinds", "żółć 日本 é́ 👩\u200d💻", "żółć 日本 é́ 👩\u200d💻", "żółć 日本 é́ 👩\u200d💻"},
		{"colours", "\x1b[1;31mred\x1b[0m", "red", "red"},
		{"the screen cleared", "\x1b[2J\x1b[Hroot@pve:~# ", "root@pve:~# ", "root@pve:~# "},
		{"a title", "a\x1b]0;owned\x07b\x1b]2;owned\x1b\\c", "abc", "abc"},
		{"the clipboard", "\x1b]52;c;cm0gLXJm\x07x", "x", "x"},
		{"a device asked", "\x1bP$q\"p\x1b\\x\x1b[c\x1b_a\x1b\\\x1b^b\x1b\\\x1bXc\x1b\\", "x", "x"},
		{"character set and keypad", "\x1b(0x\x1b=\x1b#8\x1bc", "x", "x"},
		{"C1 in UTF-8", "\u009b31mred\u009d0;t\u009cx\u0085y\u008dz", "redxyz", "redxyz"},
		{"C1 as bytes", "\x9b31mred\x9d0;t\x9c", "\uFFFD31mred\uFFFD0;t\uFFFD", "\uFFFD31mred\uFFFD0;t\uFFFD"},
		{"controls", "a\x00\a\b\v\f\x0e\x7fb\r\nc\rd", "ab\ncd", "ab cd"},
		{"direction", "a\u202eb\u202cc\u2066d\u2069\u200e\u200f\u061c", "abcd", "abcd"},
		{"what shows nothing", "a\u200bb\ufeffc\u2060d\U000e0041e\u00ad", "abcde", "abcde"},
		{"separators of lines", "a\u2028b\u2029c", "abc", "a b c"},
		{"an unended sequence", "a\x1b[31", "a[31", "a[31"},
		{"an unended string hides nothing", "a\x1b]0;" + strings.Repeat("x", 5000), "a]0;" + strings.Repeat("x", 5000), "a]0;" + strings.Repeat("x", 5000)},
		{"a string longer than any", "\x1b]0;" + strings.Repeat("x", 5000) + "\x07y", "]0;" + strings.Repeat("x", 5000) + "y", "]0;" + strings.Repeat("x", 5000) + "y"},
		{"a sequence in a sequence", "\x1b[3\x1b[1mx\x1b\x1b[31my", "xy", "xy"},
		{"a C1 sequence in a string", "\u009d0;a\u009b31mb\x07c", "bc", "bc"},
		{"a sequence that a newline ends", "\x1b[31\nx", "\nx", " x"},
		{"what is left does not make one", "\x1b\x1b[m[31mx\xc2\u009b\x9b", "[31mx\uFFFD\uFFFD", "[31mx\uFFFD\uFFFD"},
		{"ESC at the end", "a\x1b", "a", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := term.Text(tt.in); got != tt.text {
				t.Errorf("Text(%q) = %q, want %q", tt.in, got, tt.text)
			}
			if got := term.Line(tt.in); got != tt.line {
				t.Errorf("Line(%q) = %q, want %q", tt.in, got, tt.line)
			}
		})
	}
}

func TestName_LosesNoCharacter(t *testing.T) {
	for name, want := range map[string]string{
		"dist/a b.txt": "dist/a b.txt", "ü/日本": "ü/日本", "a\nb\tc": "a_b_c", "\x1b[31mred": "_[31mred", "\u009b\u202e\x7f": "___", "\xff\x9bx": "__x",
	} {
		if got := term.Name(name); got != want {
			t.Errorf("Name(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestVisible_LeavesNothingOut(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\nc": "a\tb\nc", "a\r\nb\r\n": "a\nb\n", "10%\r20%": `10%\x0d20%`, "żółć 日本": "żółć 日本",
		"\x1b[31mred\x00": `\x1b[31mred\x00`, "a\u202eb\u009b\ufeff": `a\u202eb\u009b\ufeff`, "\U000e0041": `\U000e0041`, "\xff": "\uFFFD",
	} {
		if got := term.Visible(text); got != want {
			t.Errorf("Visible(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestJSON_MeansTheSameAndIsSafeToShow(t *testing.T) {
	const value = "\u009b31m \u202e \x7f \U000e0041 \x1b[0m <&> ü\n"
	data, err := json.MarshalIndent(map[string]string{"text": value}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	shown := term.JSON(data)
	var back map[string]string
	if err := json.Unmarshal(shown, &back); err != nil || back["text"] != value {
		t.Errorf("%s means %q, %v", shown, back, err)
	}
	if !harmless(string(shown)) {
		t.Errorf("%q", shown)
	}
}

func TestWhole_CutsBeforeWhatIsNotComplete(t *testing.T) {
	for in, want := range map[string]string{
		"abc": "abc", "ab\xe2\x82": "ab", "a\x1b[31mb": "a\x1b[31mb", "a\x1b[31": "a", "a\x1b": "a", "a\x1b]0;t": "a", "a\x1b]0;t\x1b": "a", "a\x1b]0;t\x1b\\b": "a\x1b]0;t\x1b\\b",
		"a\u009b31": "a", "a\xc2": "a", "a\x1b]0;" + strings.Repeat("x", 5000): "a\x1b]0;" + strings.Repeat("x", 5000),
	} {
		if got := in[:term.Whole([]byte(in))]; got != want {
			t.Errorf("of %q %q is whole, want %q", in, got, want)
		}
	}
}

// harmless reports whether text has nothing that a terminal obeys, said in
// another way than the filter does.
func harmless(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029')
	})
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{"\x1b[31mred", "\u009b\x9b\xc2\x1b]0;t\a", "\x1b\x1b[m[m", "a\u202eb", "\x1bP\x1bP\x1b\\"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		text, line := term.Text(in), term.Line(in)
		if !harmless(text) || !harmless(line) || strings.ContainsAny(line, "\n\t") || !harmless(strings.NewReplacer("\n", "", "\t", "").Replace(term.Name(in))) {
			t.Errorf("%q becomes %q, %q, %q", in, text, line, term.Name(in))
		}
		if term.Text(text) != text || term.Line(line) != line {
			t.Errorf("%q is not the same twice: %q", text, term.Text(text))
		}
	})
}

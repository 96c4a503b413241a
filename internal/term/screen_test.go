package term_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"linus/internal/term"
)

func TestScreen_ShowsWhatATerminalWould(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"plain text, blanks at the end and all", "a b  \n\tc\n", "a b  \n\tc\n"},
		{"colours", "\x1b[1;31mred\x1b[0m text\n", "red text\n"},
		{"progress bar", " 10%\r 50%\r100%\ndone\n", "100%\ndone\n"},
		{"progress bar that stands", "10%\r20%\r", "20%"},
		{"shorter over longer", "abcdef\rxy\n", "xycdef\n"},
		{"line erased before it is written anew", "downloading\r\x1b[Kok\n", "ok\n"},
		{"whole line erased", "downloading\x1b[2K\rok\n", "ok\n"},
		{"CRLF", "a\r\nb\r\n", "a\nb\n"},
		{"backspace", "passwort\bd\n", "password\n"},
		{"title of the window", "\x1b]0;root@vm: ~\a# ls\n", "# ls\n"},
		{"title ended by ST", "\x1b]0;t\x1b\\# \n", "# \n"},
		{"character set", "\x1b(Bx\x1b=y\n", "xy\n"},
		{"bell and delete", "a\ab\x7f\n", "ab\n"},
		{"cut off", "a\x1b[1", "a"},
		{"written over in part", "100% done\rX\n", "X00% done\n"},
		{"C1 introduces as ESC [ does", "\u009b31mred\u009b0m\n", "red\n"},
		{"a title of C1", "\u009d0;t\u009c# \n", "# \n"},
		{"moves in the line", "abcdef\x1b[3GX\x1b[1CY\x1b[2DZ\n", "abXZYf\n"},
		{"a move beyond the end", "ab\x1b[3Cc\n", "abc\n"},
		{"a move beyond all bounds", "a\x1b[999999999999Cb\x1b[Gc\n", "cb\n"},
		{"direction turned", "a\u202eb\u2066c\n", "abc\n"},
		{"bytes that are no text", "\xff\x9b31m\n", "\uFFFD\uFFFD31m\n"},
		{"wide characters written over", "日本\rü\n", "ü本\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := term.Plain(nil, []byte(tt.text)); got != tt.want {
				t.Errorf("Plain(%q) = %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

// However text is cut into pieces, the same is shown.
func FuzzScreen(f *testing.F) {
	f.Add("\x1b[2K\ra\bb\x1b]x")
	f.Add("\u009b31mred\xc2")
	f.Fuzz(func(t *testing.T, text string) {
		got := term.Plain(nil, []byte(text))
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\r\b\u009b") || strings.Count(got, "\n") > strings.Count(text, "\n") {
			t.Errorf("Plain(%q) = %q", text, got)
		}
		var s term.Screen
		for rest := text; rest != ""; {
			n := 1 + rand.IntN(len(rest))
			_, _ = s.Write([]byte(rest[:n]))
			rest = rest[n:]
		}
		var b strings.Builder
		for _, row := range s.Take() {
			b.WriteString(row.String() + "\n")
		}
		if b.WriteString(s.Current().String()); b.String() != got && !strings.Contains(got, "\uFFFD") {
			t.Errorf("in pieces %q, whole %q", b.String(), got)
		}
	})
}

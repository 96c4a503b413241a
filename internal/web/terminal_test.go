package web

import (
	"html"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestTerminal_ShowsWhatAScreenWould(t *testing.T) {
	tests := []struct{ name, in, done, current string }{
		{"lines", "a\nb\n", "a\nb\n", ""},
		{"a line under way", "a\nb", "a\n", "b"},
		{"markup is text", "<b>&\"'\n", "&lt;b&gt;&amp;&#34;&#39;\n", ""},
		{"CR LF", "a\r\nb\r\n", "a\nb\n", ""},
		{"a progress bar", "10%\r20%\r100%\n", "100%\n", ""},
		{"a shorter text over a longer", "downloading\rdone\x1b[K\n", "done\n", ""},
		{"erased whole", "downloading\r\x1b[2Kok\n", "ok\n", ""},
		{"backspace", "ab\bc\n", "ac\n", ""},
		{"colour", "\x1b[31mred\x1b[0m plain\n", "<span class=\"f1\">red</span> plain\n", ""},
		{"reset without a number", "\x1b[1;32mgo\x1b[m!\n", "<span class=\"f2 bold\">go</span>!\n", ""},
		{"bright on a ground", "\x1b[97;44mx\x1b[39;49my\n", "<span class=\"f15 b4\">x</span>y\n", ""},
		{"of 256", "\x1b[38;5;196mx\x1b[38;5;2my\x1b[0m\n", "<span class=\"f9\">x</span><span class=\"f2\">y</span>\n", ""},
		{"of all", "\x1b[38;2;0;0;255;1mx\x1b[0m\n", "<span class=\"f12 bold\">x</span>\n", ""},
		{"out of range", "\x1b[38;5;999mx\x1b[38;5mx\x1b[38mx\n", "xxx\n", ""},
		{"styles", "\x1b[2;3;4;7mx\x1b[22;23;24;27my\n", "<span class=\"dim italic underline inverse\">x</span>y\n", ""},
		{"a title and a link", "\x1b]0;title\ax\x1b]8;;http://a\x1b\\y\n", "xy\n", ""},
		{"moves of the cursor", "\x1b[2J\x1b[H\x1b[?25lx\x1b(By\n", "xy\n", ""},
		{"written over in part, as MCP and the command line have it", "100% done\rX\n", "X00% done\n", ""},
		{"C1 and direction", "\u009b31mred\u202e\n", "<span class=\"f1\">red</span>\n", ""},
		{"bell, NUL and C1", "a\a\x00\u0085b\n", "ab\n", ""},
		{"no UTF-8", "a\xffb\n", "a\uFFFDb\n", ""},
		{"an escape that never ends", "\x1b[" + strings.Repeat("1", 3000), "", "[" + strings.Repeat("1", 3000)},
		{"tab", "a\tb", "", "a\tb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var whole, pieces terminal
			_, _ = whole.Write([]byte(tt.in))
			for _, c := range []byte(tt.in) {
				_, _ = pieces.Write([]byte{c})
			}
			for how, term := range map[string]*terminal{"whole": &whole, "byte by byte": &pieces} {
				if done, current := term.take(), term.current(); done != tt.done || current != tt.current {
					t.Errorf("%s: %q and %q, want %q and %q", how, done, current, tt.done, tt.current)
				}
			}
		})
	}
}

func TestTerminal_BreaksALineWithoutEnd(t *testing.T) {
	var term terminal
	_, _ = term.Write([]byte(strings.Repeat("x", 3*maxLine+5)))
	if done := term.take(); strings.Count(done, "\n") != 3 || term.current() != "xxxxx" {
		t.Errorf("%d lines, then %q", strings.Count(done, "\n"), term.current())
	}
}

// Whatever a task writes, the HTML contains our spans and text only.
func FuzzTerminal(f *testing.F) {
	f.Add([]byte("a\x1b[31mb<script>\x1b[0K\r\b\n\x1b]0;t\a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var whole, pieces terminal
		_, _ = whole.Write(data)
		for rest := data; len(rest) > 0; {
			n := 1 + rand.IntN(len(rest))
			_, _ = pieces.Write(rest[:n])
			rest = rest[n:]
		}
		out := whole.take() + whole.current()
		if len(data) < 256 && out != pieces.take()+pieces.current() {
			t.Fatal("the pieces matter")
		}
		for text := out; ; {
			before, after, tag := strings.Cut(text, "<")
			if html.EscapeString(html.UnescapeString(before)) != before && strings.Contains(before, "<") {
				t.Fatalf("text %q", before)
			}
			if !tag {
				break
			}
			if !strings.HasPrefix(after, `span class="`) && !strings.HasPrefix(after, "/span>") {
				t.Fatalf("tag %.40q", after)
			}
			text = after
		}
	})
}

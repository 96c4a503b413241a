package mcptool

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"linus/internal/job"
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
		{"wide characters written over", "日本\rü\n", "ü本\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := screen(tt.text); got != tt.want {
				t.Errorf("screen(%q) = %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

func TestRead_NeverCutsACharacterOrAnEscapeSequence(t *testing.T) {
	const all = "aüb\x1b[31m日本\x1b]0;title\a\xff end"
	for limit := 1; limit <= len(all)+1; limit++ {
		for _, plain := range []bool{false, true} {
			e := &engine{out: all, job: job.Job{Status: job.Success}}
			var text strings.Builder
			invalid := 0
			for at := int64(0); ; {
				p, err := read(context.Background(), e, knownID, job.Stdout, at, limit, plain)
				if err != nil {
					t.Fatal(err)
				}
				if p.next == at && !p.whole {
					t.Fatalf("limit %d: nothing comes from %d on", limit, at)
				}
				if at, invalid = p.next, invalid+strings.Count(p.text, "\uFFFD"); p.invalid != strings.Contains(p.text, "\uFFFD") {
					t.Errorf("limit %d: %q is marked invalid: %v", limit, p.text, p.invalid)
				}
				text.WriteString(p.text)
				if p.whole {
					break
				}
			}
			want := "aüb\x1b[31m日本\x1b]0;title\a\uFFFD end"
			if plain {
				want = "aüb日本\uFFFD end"
			}
			if limit >= 10 && (text.String() != want || invalid != 1) { // less cannot hold the longest sequence
				t.Errorf("limit %d, plain %v: %q", limit, plain, text.String())
			}
		}
	}
}

func TestRead_WaitsForTheRestOfACharacter(t *testing.T) {
	e := &engine{out: "pay 5 \xe2\x82", job: job.Job{Status: job.Running}}
	p, err := read(t.Context(), e, knownID, job.Stdout, 0, 100, false)
	if err != nil || p.text != "pay 5 " || p.next != 6 || p.invalid {
		t.Errorf("first %+v, %v", p, err)
	}
	e.out += "\xac"
	if p, err = read(t.Context(), e, knownID, job.Stdout, p.next, 100, false); err != nil || p.text != "€" {
		t.Errorf("then %+v, %v", p, err)
	}
}

func TestLastLines(t *testing.T) {
	tests := []struct {
		name, text string
		n          int
		amid       bool
		want       string
		cut        bool
	}{
		{"fewer than asked for", "a\nb\n", 5, false, "a\nb\n", false},
		{"as many", "a\nb\n", 2, false, "a\nb\n", false},
		{"more", "a\nb\nc\n", 2, false, "b\nc\n", true},
		{"a prompt is a line", "a\nb\n> ", 2, false, "b\n> ", true},
		{"nothing", "", 3, false, "", false},
		{"empty lines count", "a\n\n\n", 2, false, "\n\n", true},
		{"began amid a line", "lf\nb\n", 5, true, "b\n", false},
		{"one endless line", "xxxx", 5, true, "xxxx", false},
		{"endless line with its end", "xxxx\n", 5, true, "xxxx\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, cut := lastLines(tt.text, tt.n, tt.amid); got != tt.want || cut != tt.cut {
				t.Errorf("lastLines = %q, %v; want %q, %v", got, cut, tt.want, tt.cut)
			}
		})
	}
}

func FuzzScreen(f *testing.F) {
	f.Add("\x1b[2K\ra\bb\x1b]x")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		got := screen(text)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\r\b") || strings.Count(got, "\n") > strings.Count(text, "\n") {
			t.Errorf("screen(%q) = %q", text, got)
		}
	})
}

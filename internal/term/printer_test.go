package term_test

import (
	"strings"
	"testing"

	"linus/internal/term"
)

func TestPrinter_LeavesWhatATerminalShows(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain text", "a\tb\n\nc\n", "a\tb\n\nc\n"},
		{"a prompt without an end of line", ">>> ", ">>> "},
		{"colours", "\x1b[1;31mred\x1b[0m\n", "red\n"},
		{"a progress bar", "10 %\r50 %\r100 %\ndone\n", "100 %\ndone\n"},
		{"lines that end as on a terminal", "a\r\nb\r\n", "a\nb\n"},
		{"a return at the end shows the line", "100 %\r", "100 %"},
		{"a title and a link", "\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\n", "ab\n"},
		{"a character set", "\x1b(Bx\n", "x\n"},
		{"a bell and a step back", "ab\a\bc\n", "ac\n"},
		{"bytes that are no text", "\xff\xfe\n", "\uFFFD\uFFFD\n"},
		{"written over in part, as MCP and the page have it", "100% done\rX\n", "X00% done\n"},
		{"C1 and direction", "\u009b31mred\u202e\n", "red\n"},
		{"an unended sequence", "a\x1b[12", "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var whole, bytewise strings.Builder
			s := &term.Printer{To: &whole}
			if _, err := s.Write([]byte(tt.in)); err != nil {
				t.Fatal(err)
			}
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			if whole.String() != tt.want {
				t.Errorf("got %q, want %q", whole.String(), tt.want)
			}
			s = &term.Printer{To: &bytewise}
			for _, c := range []byte(tt.in) {
				_, _ = s.Write([]byte{c})
			}
			_ = s.Flush()
			if bytewise.String() != tt.want {
				t.Errorf("byte by byte: got %q, want %q", bytewise.String(), tt.want)
			}
		})
	}
}

func TestPrinter_WhatHasGoneOutIsNotWrittenOver(t *testing.T) {
	var out strings.Builder
	s := &term.Printer{To: &out}
	for _, part := range []string{"10 %", "\r50 %", "\r\n"} {
		_, _ = s.Write([]byte(part))
		_ = s.Flush()
	}
	if got := out.String(); got != "10 %\n50 %\n" {
		t.Errorf("got %q", got)
	}
}

// What comes in pieces, each with what was before it of its line, is printed as
// it is by a printer that remembers.
func TestPlain_GoesOnWhereALineWasCut(t *testing.T) {
	for _, pieces := range [][]string{
		{"100% done", "\rX", "Y\n", "next"},
		{"10 %", "\r50 %", "\r\n", "> "},
		{"\x1b[31mred", " and\x1b[0m plain", "\b\bN\n"},
		{"a", "b\n", "c", "d"},
	} {
		var whole, parts strings.Builder
		p := &term.Printer{To: &whole}
		written := ""
		for _, piece := range pieces {
			_, _ = p.Write([]byte(piece))
			_ = p.Flush()
			parts.WriteString(term.Plain([]byte(written[strings.LastIndex(written, "\n")+1:]), []byte(piece)))
			written += piece
		}
		if parts.String() != whole.String() {
			t.Errorf("%q: in parts %q, whole %q", pieces, parts.String(), whole.String())
		}
	}
}

package main

import (
	"io"
	"strings"

	"linus/internal/term"
)

// stripper passes text on as a terminal would leave it on the screen: without
// escape sequences, and of a line that was written over (\r) what came last. A
// line goes out when it ends, or with flush.
type stripper struct {
	to     io.Writer
	screen term.Screen
	shown  string // what has gone out of the line under way
}

func (s *stripper) Write(p []byte) (int, error) {
	_, _ = s.screen.Write(p)
	for _, line := range s.screen.Take() {
		if err := s.show(line.String()); err != nil {
			return 0, err
		}
		if _, err := io.WriteString(s.to, "\n"); err != nil {
			return 0, err
		}
		s.shown = ""
	}
	return len(p), nil
}

// flush lets out what there is of a line: a prompt.
func (s *stripper) flush() error { return s.show(s.screen.Current().String()) }

// show lets out what of a line has not gone out; what has gone out cannot be
// taken back, so that a line that was written over comes once more.
func (s *stripper) show(line string) error {
	more, goesOn := strings.CutPrefix(line, s.shown)
	if !goesOn {
		more = "\n" + line
	}
	s.shown = line
	_, err := io.WriteString(s.to, more)
	return err
}

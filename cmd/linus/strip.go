package main

import (
	"bytes"
	"io"
)

// stripper passes text on as a terminal would leave it on the screen: without
// escape sequences, and of a line that was written over (\r) only what came
// last. A line goes out when it ends, or with flush.
type stripper struct {
	to    io.Writer
	line  []byte // of the line under way, what has not gone out
	shown bool   // a part of it has gone out
	over  bool   // a \r came last
	state escape
}

// escape is where in an escape sequence a stripper is.
type escape int

const (
	noEscape     escape = iota
	afterEsc            // ESC
	inCSI               // ESC [ ... a byte from @ to ~
	inString            // ESC ] ... BEL or ESC \, and its like
	inStringEsc         // the ESC that may end a string
	inDesignator        // ESC ( X, and its like
)

func (s *stripper) Write(p []byte) (int, error) {
	for _, c := range p {
		if s.escape(c) {
			continue
		}
		switch {
		case c == '\n':
			s.over = false
			s.line = append(s.line, '\n')
			if err := s.flush(); err != nil {
				return 0, err
			}
			s.shown = false
		case c == '\r':
			s.over = true
		case c == '\b':
			s.line = s.line[:max(0, len(s.line)-1)]
		case c < ' ' && c != '\t' || c == 0x7f: // a bell and its like
		default:
			if s.over && s.shown {
				s.line = append(s.line[:0], '\n') // what has gone out cannot be taken back
				s.shown = false
			} else if s.over {
				s.line = s.line[:0]
			}
			s.over = false
			s.line = append(s.line, c)
		}
	}
	return len(p), nil
}

// flush lets out what there is of a line: a prompt.
func (s *stripper) flush() error {
	if len(s.line) == 0 {
		return nil
	}
	_, err := s.to.Write(s.line)
	s.line, s.shown = s.line[:0], true
	return err
}

// escape reports whether c belongs to an escape sequence.
func (s *stripper) escape(c byte) bool {
	switch s.state {
	case noEscape:
		if c != 0x1b {
			return false
		}
		s.state = afterEsc
	case afterEsc:
		switch {
		case c == '[':
			s.state = inCSI
		case bytes.IndexByte([]byte("]PX^_"), c) >= 0:
			s.state = inString
		case c >= ' ' && c <= '/':
			s.state = inDesignator
		default:
			s.state = noEscape
		}
	case inCSI:
		if c >= '@' && c <= '~' {
			s.state = noEscape
		}
	case inString:
		switch c {
		case 0x07:
			s.state = noEscape
		case 0x1b:
			s.state = inStringEsc
		}
	case inStringEsc, inDesignator:
		s.state = noEscape
	}
	return true
}

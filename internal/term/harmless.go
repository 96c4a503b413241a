package term

import (
	"bytes"
	"io"
)

// Harmless writes a task's output to a terminal as it comes, with its colours and with progress
// bars that are drawn over, but without everything else that a terminal obeys: its title, the
// clipboard, the cursor's place, answers that it would type.
type Harmless struct {
	To io.Writer

	held    []byte // an incomplete character or sequence, whose rest follows
	painted bool
}

// Write passes on what is harmless. Its errors are the writer's.
func (h *Harmless) Write(data []byte) (int, error) {
	h.held = append(h.held, data...)
	whole := Whole(h.held)
	err := h.show(h.held[:whole])
	h.held = append(h.held[:0], h.held[whole:]...)
	return len(data), err
}

// Close passes on the rest, and resets the terminal's colours.
func (h *Harmless) Close() error {
	err := h.show(h.held)
	h.held = nil
	if h.painted && err == nil {
		h.painted = false
		_, err = io.WriteString(h.To, "\x1b[m")
	}
	return err
}

func (h *Harmless) show(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	text := filter(string(data), false, func(sequence []byte) bool {
		colour := isColour(sequence)
		h.painted = h.painted || colour
		return colour || bytes.Equal(sequence, []byte("\x1b[K")) // erases the rest of a line
	})
	_, err := io.WriteString(h.To, text)
	return err
}

// isColour reports whether a sequence sets how the characters after it look.
func isColour(sequence []byte) bool {
	args, ok := bytes.CutPrefix(sequence, []byte("\x1b["))
	if !ok || !bytes.HasSuffix(args, []byte("m")) {
		return false
	}
	return len(bytes.Trim(args[:len(args)-1], "0123456789;:")) == 0
}

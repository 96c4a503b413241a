package term

import (
	"io"
	"strings"
)

// Printer writes a task's output as a Screen shows it, without colours, to a writer whose output
// cannot be changed later. A line is written when it ends, in its last state if it was overwritten
// (\r), or in its current state by Flush.
type Printer struct {
	To io.Writer

	screen Screen
	shown  string // the part of the current line that has been written
}

// Write prints the lines that data completes. Its errors are the writer's.
func (p *Printer) Write(data []byte) (int, error) {
	_, _ = p.screen.Write(data)
	for _, line := range p.screen.Take() {
		if err := p.show(line.String()); err != nil {
			return 0, err
		}
		if _, err := io.WriteString(p.To, "\n"); err != nil {
			return 0, err
		}
		p.shown = ""
	}
	return len(data), nil
}

// Flush prints the current line as it is, such as a prompt.
func (p *Printer) Flush() error { return p.show(p.screen.Current().String()) }

// show prints the new part of a line; a line that was overwritten since it was printed is printed
// again.
func (p *Printer) show(line string) error {
	more, goesOn := strings.CutPrefix(line, p.shown)
	if !goesOn {
		more = "\n" + line
	}
	p.shown = line
	_, err := io.WriteString(p.To, more)
	return err
}

// Plain returns what a Printer prints for text. before is the part of its first line that was
// already written and printed. Invalid UTF-8 becomes U+FFFD.
func Plain(before, text []byte) string {
	var out strings.Builder
	p := Printer{To: &out}
	_, _ = p.Write(before) // a strings.Builder never fails
	_ = p.Flush()
	out.Reset()
	_, _ = p.Write(text)
	_ = p.Flush()
	return out.String()
}

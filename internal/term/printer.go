package term

import (
	"io"
	"strings"
)

// Printer passes a task's output on as a Screen shows it, without colours, to
// where what has gone out cannot be changed: a line goes out when it ends, with
// what was written over it (\r) last, or as far as it is with Flush.
type Printer struct {
	To io.Writer

	screen Screen
	shown  string // what has gone out of the line under way
}

// Write prints the lines that p ends. Its errors are the writer's.
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

// Flush prints what there is of a line: a prompt.
func (p *Printer) Flush() error { return p.show(p.screen.Current().String()) }

// show prints what of a line has not gone out; a line that was written over
// since it went out comes once more.
func (p *Printer) show(line string) error {
	more, goesOn := strings.CutPrefix(line, p.shown)
	if !goesOn {
		more = "\n" + line
	}
	p.shown = line
	_, err := io.WriteString(p.To, more)
	return err
}

// Plain returns what a Printer prints of text, where before is what was written,
// and printed, of its line until then. Bytes that are no UTF-8 become U+FFFD.
func Plain(before, text []byte) string {
	var out strings.Builder
	p := Printer{To: &out}
	_, _ = p.Write(before) // a strings.Builder fails never
	_ = p.Flush()
	out.Reset()
	_, _ = p.Write(text)
	_ = p.Flush()
	return out.String()
}

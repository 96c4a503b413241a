package mcptool

import (
	"context"
	"strings"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Bounds of lines, and the bytes read of each stream: at least 16 KiB.
const (
	defaultLines = 50
	mostLines    = 1000
	bytesPerLine = 256
)

type tailInput struct {
	JobID     string `json:"job_id" jsonschema_description:"The job's ID."`
	Lines     *int   `json:"lines,omitempty" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Lines per stream, 1 to 1000. Default 50."`
	StripANSI bool   `json:"strip_ansi,omitempty" jsonschema_description:"Strip colours, escape sequences and all but the last state of progress bars."`
}

type tailOutput struct {
	JobID       string     `json:"job_id"`
	Status      job.Status `json:"status"`
	Stdout      string     `json:"stdout"`
	Stderr      string     `json:"stderr"`
	StdoutNext  int64      `json:"stdout_next" jsonschema_description:"Offset from which get_job_output continues."`
	StderrNext  int64      `json:"stderr_next"`
	Truncated   bool       `json:"truncated" jsonschema_description:"There is earlier output."`
	InvalidUTF8 bool       `json:"invalid_utf8,omitempty" jsonschema_description:"Bytes that are not UTF-8 were replaced."`
}

func tailJobOutput(e job.Engine) server.ServerTool {
	return define("tail_job_output", "Last lines of a job's output",
		"The last lines of a job's output, while it runs and after, including a prompt without a newline. "+
			"Very long lines count as several.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in tailInput) (tailOutput, error) {
			if err := (jobArg{in.JobID}).check(); err != nil {
				return tailOutput{}, err
			}
			var bad faults
			lines := bad.number("lines", in.Lines, defaultLines, 1, mostLines)
			if err := bad.err(); err != nil {
				return tailOutput{}, err
			}
			limit := max(lines*bytesPerLine, defaultBytes)
			out := tailOutput{JobID: in.JobID}
			var texts [2]string
			var at position
			for i, stream := range streams {
				p, err := read(ctx, e, in.JobID, stream, -int64(limit), limit, in.StripANSI)
				if err != nil {
					return tailOutput{}, err
				}
				var cut bool
				texts[i], cut = lastLines(p.text, lines, p.offset > 0)
				at[i] = p.next
				out.Truncated = out.Truncated || cut || p.offset > 0
				out.InvalidUTF8 = out.InvalidUTF8 || p.invalid
			}
			j, err := e.Job(ctx, in.JobID)
			if err != nil {
				return tailOutput{}, err
			}
			out.Status, out.Stdout, out.Stderr, out.StdoutNext, out.StderrNext = j.Status, texts[0], texts[1], at[0], at[1]
			return out, nil
		})
}

// lastLines returns the end of text from its n-th last line on, and whether
// anything is left out. If text starts within a line, that line is dropped,
// unless it is the only one.
func lastLines(text string, n int, amid bool) (string, bool) {
	if amid {
		if _, rest, ok := strings.Cut(text, "\n"); ok && rest != "" {
			text = rest
		}
	}
	at := len(strings.TrimSuffix(text, "\n"))
	for range n {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			return text, false
		}
	}
	return text[at+1:], true
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) inputCommand() *cobra.Command {
	var closed bool
	cmd := &cobra.Command{
		Use:   "input ID [LINE]",
		Short: "Send a line, or stdin, to a running task's stdin",
		Long: "Sends the line with a newline; without a line, all of stdin, byte for byte. The task's stdin stays open; --close closes\n" +
			"it. Waits for a job that is not running yet. The job must have been submitted with --stdin, or by linus job exec.",
		Example: "  linus job input ID 'print(6 * 7)'\n  linus job input ID <answers.txt\n  linus job input ID --close",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usage("%s takes the job's ID and optionally a line to send", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, err := a.attach(ctx, false)
			if err != nil {
				return err
			}
			defer s.Close()
			if _, err := a.follow(ctx, s, args[0], following{quiet: true, until: job.Job.Begun}); err != nil {
				return err
			}
			var from io.Reader
			switch {
			case len(args) == 2:
				from = strings.NewReader(args[1] + "\n")
			case closed:
				from = strings.NewReader("")
			default:
				from = a.stdin
			}
			sent, err := sendInput(ctx, s, args[0], from, closed, func() {})
			if err != nil {
				return err
			}
			return a.print(map[string]any{"job_id": args[0], "bytes": sent, "closed": closed}, fmt.Sprintf("%d bytes sent", sent))
		},
	}
	cmd.Flags().BoolVar(&closed, "close", false, "close the task's stdin afterwards")
	return a.completeJobs(cmd)
}

// receiver is the part of an engine that sending input needs.
type receiver interface {
	Input(ctx context.Context, id string, data []byte, closed bool) error
}

// sendInput sends everything it reads to a task's stdin, which it closes at the end
// if ending is set. It calls sent after each part and returns the bytes sent. Each
// part is acknowledged before the next is sent; what arrives meanwhile is one part.
func sendInput(ctx context.Context, to receiver, id string, from io.Reader, ending bool, sent func()) (total int64, err error) {
	a := readAhead(from, job.MaxInput)
	defer a.stop()
	for {
		part, err := a.next()
		if len(part) > 0 {
			if err := to.Input(ctx, id, part, false); err != nil {
				return total, err
			}
			total += int64(len(part))
			sent()
		}
		switch {
		case err == io.EOF && ending: //nolint:errorlint // io.Reader returns it unwrapped
			return total, to.Input(ctx, id, nil, true)
		case err == io.EOF: //nolint:errorlint // likewise
			return total, nil
		case err != nil:
			return total, fmt.Errorf("read stdin: %w", err)
		}
	}
}

// ahead keeps reading while what it has read is processed.
type ahead struct {
	limit int // bytes buffered at most

	mu      sync.Mutex
	changed sync.Cond
	held    []byte
	err     error // why reading ended
}

// readAhead starts to read, until from ends. A read that never returns lasts as
// long as this process.
func readAhead(from io.Reader, limit int) *ahead {
	a := &ahead{limit: limit}
	a.changed.L = &a.mu
	go func() {
		part := make([]byte, 64<<10)
		for {
			n, err := from.Read(part)
			if !a.add(part[:n], err) {
				return
			}
		}
	}()
	return a
}

// add waits until there is room for a part, and reports whether to read more.
func (a *ahead) add(part []byte, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.held)+len(part) > a.limit && a.err == nil {
		a.changed.Wait()
	}
	if a.err != nil {
		return false
	}
	a.held, a.err = append(a.held, part...), err
	a.changed.Broadcast()
	return err == nil
}

// next waits for data, and returns all there is and, at the end, why no more follows.
func (a *ahead) next() ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.held) == 0 && a.err == nil {
		a.changed.Wait()
	}
	part := a.held
	a.held = nil
	a.changed.Broadcast()
	return part, a.err
}

// stop makes the reader end.
func (a *ahead) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = io.ErrClosedPipe
	}
	a.changed.Broadcast()
}

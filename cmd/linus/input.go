package main

import (
	"context"
	"fmt"
	"io"
	"strings"

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
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
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
			return a.print(map[string]any{"id": args[0], "bytes": sent, "closed": closed}, fmt.Sprintf("%d bytes sent", sent))
		}),
	}
	cmd.Flags().BoolVar(&closed, "close", false, "close the task's stdin afterwards")
	return a.completeJobs(cmd)
}

// receiver is the part of an engine that sending input needs.
type receiver interface {
	Input(ctx context.Context, id string, data []byte, closed bool) error
}

// sendInput sends everything it reads to a task's stdin, and closes the stdin at the end if ending is
// set. It calls sent after each part and returns the number of bytes sent. Each part is
// acknowledged before the next is sent; what arrives meanwhile becomes one part.
func sendInput(ctx context.Context, to receiver, id string, from io.Reader, ending bool, sent func()) (total int64, err error) {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	for parts := readAhead(reading, from); ; {
		part, err := gather(parts)
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

// readSize is the maximum size of one read, in bytes.
const readSize = 64 << 10

type read struct {
	data []byte
	err  error
}

// readAhead keeps reading while earlier data is processed, until from or ctx ends. A read that
// never returns lasts as long as this process.
func readAhead(ctx context.Context, from io.Reader) <-chan read {
	parts := make(chan read, job.MaxInput/readSize)
	go func() {
		for {
			data := make([]byte, readSize)
			n, err := from.Read(data)
			select {
			case parts <- read{data[:n:n], err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return parts
}

// gather waits for data and returns all that has arrived and, at the end, why no more follows.
func gather(parts <-chan read) ([]byte, error) {
	for all := <-parts; ; {
		if all.err != nil || len(all.data) > job.MaxInput-readSize {
			return all.data, all.err
		}
		select {
		case more := <-parts:
			all = read{append(all.data, more.data...), more.err}
		default:
			return all.data, nil
		}
	}
}

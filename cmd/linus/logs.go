package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/term"
)

// Pauses between two reads of a running job's output. They grow while no output arrives.
const (
	soonestLook = 20 * time.Millisecond
	latestLook  = 500 * time.Millisecond
)

// tailWindow is how far back from the end lines are counted, in bytes.
const tailWindow = 1 << 20

// outputs is the part of an engine that reading a job's output needs.
type outputs interface {
	Job(ctx context.Context, id string) (job.Job, error)
	Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error)
}

func (a *app) logsCommand() *cobra.Command {
	var follow, stderrOnly, strip bool
	var stream string
	var lines int
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show a job's output so far; -f follows it",
		Long: "Writes the task's stdout to stdout and its stderr to stderr, byte for byte, as far as it has arrived; for a finished\n" +
			"job that is all of it. -f continues until the job ends. A terminal gets only text and colours, unless --raw.\n" +
			"Of a job with a matrix or shards it is the output of each of its jobs, one after the other.",
		Example: "  linus job logs ID -f --tail 20\n  linus job logs ID --stderr\n  linus job logs ID --strip-ansi | less",
		Args:    oneArg("the job's ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			streams := []string{job.Stdout, job.Stderr}
			switch {
			case follow && a.json:
				return usage("-f writes raw output; for JSON omit it, or use linus job status ID --wait -o json")
			case lines < -1:
				return usage("--tail %d: give a number of lines", lines)
			case stderrOnly && stream != "" && stream != job.Stderr:
				return usage("give --stderr or --stream, not both")
			case stderrOnly:
				streams = []string{job.Stderr}
			case stream != "" && !slices.Contains(streams, stream):
				return usage("--stream %q is unknown; use stdout or stderr", stream)
			case stream != "":
				streams = []string{stream}
			}
			e, done, err := a.reader(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			show := func(id string) error {
				logs := &logs{engine: e, id: id, follow: follow, strip: strip}
				for _, name := range streams {
					to := a.stdout
					if name == job.Stderr && len(streams) > 1 {
						to = a.stderr
					}
					to, done := a.output(to)
					defer done() //nolint:errcheck // a terminal's
					logs.add(name, to)
				}
				if cmd.Flags().Changed("tail") {
					if err := logs.tail(cmd.Context(), lines); err != nil {
						return err
					}
				}
				if a.json {
					return a.logsJSON(cmd.Context(), logs)
				}
				err := logs.copy(cmd.Context())
				if cmd.Context().Err() != nil {
					return exitError(exitDetached)
				}
				logs.noteDropped(a)
				return err
			}
			j, err := e.Job(cmd.Context(), args[0])
			if err != nil || len(j.Children) == 0 || a.json {
				return errors.Join(err, show(args[0]))
			}
			return a.childrensLogs(cmd.Context(), j, show)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "continue until the job ends")
	flags.BoolVar(&stderrOnly, "stderr", false, "only stderr, on stdout")
	flags.StringVar(&stream, "stream", "", "only this stream, on stdout: stdout or stderr")
	flags.IntVar(&lines, "tail", -1, "only the last N lines")
	flags.BoolVar(&strip, "strip-ansi", false, "without colours, and only the last state of progress bars")
	a.rawFlag(cmd)
	a.completeJobs(cmd)
	_ = cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{job.Stdout, job.Stderr}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// jsonLogs is a job's output so far as -o json shows it. The offsets count the
// bytes the task wrote.
type jsonLogs struct {
	JobID   string                `json:"id"`
	Streams map[string]jsonStream `json:"streams"`
}

type jsonStream struct {
	Output   []byte `json:"output" api:"output,text"`
	Offset   int64  `json:"offset"`
	Next     int64  `json:"next"`
	Dropped  int64  `json:"dropped"`
	Complete bool   `json:"complete"`
}

func (a *app) logsJSON(ctx context.Context, l *logs) error {
	out := jsonLogs{JobID: l.id, Streams: map[string]jsonStream{}}
	for _, s := range l.streams {
		var data bytes.Buffer
		from := s.next
		s.to = &data
		if err := l.copyStream(ctx, s); err != nil {
			return err
		}
		out.Streams[s.name] = jsonStream{data.Bytes(), from, s.next, s.dropped, s.complete}
	}
	return a.printJSON(out)
}

type logs struct {
	engine  outputs
	id      string
	follow  bool // to the job's end; false: what there is now
	strip   bool
	streams []*logStream
}

// logStream is the copy of one stream. next, dropped and complete are as in
// job.Chunk.
type logStream struct {
	name     string
	to       io.Writer
	next     int64
	dropped  int64
	complete bool
	look     chan struct{} // signals that there may be more
}

func (l *logs) add(name string, to io.Writer) {
	l.streams = append(l.streams, &logStream{name: name, to: to, look: make(chan struct{}, 1)})
}

func (l *logs) noteDropped(a *app) {
	for _, s := range l.streams {
		if s.dropped > 0 {
			a.note("%d bytes of %s are not kept: MAX_OUTPUT_SIZE", s.dropped, s.name)
		}
	}
}

// soon makes the next read of the output happen at once.
func (l *logs) soon() {
	for _, s := range l.streams {
		select {
		case s.look <- struct{}{}:
		default:
		}
	}
}

// tail skips to the last lines of the output so far.
func (l *logs) tail(ctx context.Context, lines int) error {
	for _, s := range l.streams {
		chunk, err := l.engine.Output(ctx, l.id, s.name, -tailWindow, tailWindow)
		if err != nil {
			return err
		}
		s.next = chunk.Next - int64(len(lastLines(chunk.Data, lines)))
	}
	return nil
}

// lastLines returns the last lines of data. Text after the last newline is a line.
func lastLines(data []byte, lines int) []byte {
	at := len(data)
	if lines > 0 && at > 0 && data[at-1] == '\n' {
		at--
	}
	for range lines {
		if at = bytes.LastIndexByte(data[:max(at, 0)], '\n'); at < 0 {
			return data
		}
	}
	if lines > 0 {
		at++
	}
	return data[at:]
}

func (l *logs) copy(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	errs := make([]error, len(l.streams))
	for i, s := range l.streams {
		wait.Go(func() {
			if errs[i] = l.copyStream(ctx, s); errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return errors.Join(errs...)
}

func (l *logs) copyStream(ctx context.Context, s *logStream) error {
	to := &term.Printer{To: s.to}
	wait := soonestLook
	for {
		chunk, err := l.engine.Output(ctx, l.id, s.name, s.next, 0)
		if err != nil {
			return err
		}
		s.dropped += chunk.Dropped
		switch {
		case !l.strip:
			_, err = s.to.Write(chunk.Data)
		case len(chunk.Data) > 0:
			_, err = to.Write(chunk.Data)
		}
		if err == nil && (chunk.Complete || len(chunk.Data) == 0) {
			err = to.Flush()
		}
		if err != nil {
			return fmt.Errorf("write the job's %s: %w", s.name, err)
		}
		s.next, s.complete = chunk.Next, chunk.Complete
		switch {
		case s.complete || len(chunk.Data) == 0 && !l.follow:
			return nil
		case len(chunk.Data) > 0:
			wait = soonestLook
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(wait*3/2, latestLook)
		case <-s.look:
			wait = soonestLook
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/term"

	"linus/internal/job"
)

// showTerminal connects this process's terminal with the task's until the job's output is complete.
// Both have the same size.
func (a *app) showTerminal(ctx context.Context, s *session, j job.Job, c conversation, leave context.CancelCauseFunc) error {
	start := int64(0)
	if c.joining {
		l := &logs{engine: s, id: j.ID}
		l.add(job.Stdout, io.Discard)
		if err := l.tail(ctx, attachLines); err != nil {
			return err
		}
		start = l.streams[0].next
	}
	t, err := s.client.Terminal(ctx, j.ID, start)
	if err != nil {
		return err
	}
	defer t.Close()
	t.OnRefused = func(reason string) { a.note("not done: %s", reason) }
	if c.input {
		restore, err := a.rawTerminal()
		if err != nil {
			return err
		}
		defer restore()
		defer followSize(a.stdout, t.Resize)()
		from := a.typed(leave)
		go func() { //nolint:contextcheck // the terminal has its own. While nothing arrives on stdin it lasts as long as this process
			if _, err := io.Copy(t, from); err == nil {
				t.CloseInput()
			}
		}()
	}
	to := a.stdout
	if a.json {
		to = io.Discard
	}
	for at := start; ; {
		data, state, err := t.Read(ctx)
		if err != nil {
			return err
		}
		if missing := state.Offset - int64(len(data)) - at; missing > 0 {
			defer a.note("%d bytes of %s are not kept: MAX_OUTPUT_SIZE", missing, job.Stdout)
		}
		at = state.Offset
		if _, err := to.Write(data); err != nil {
			return fmt.Errorf("write the job's output: %w", err)
		}
		if state.Done {
			return nil
		}
	}
}

// followSize calls resize with a terminal's size, now and whenever it changes, until stop
// is called.
func followSize(terminal any, resize func(rows, columns int)) (stop func()) {
	file, ok := terminal.(*os.File)
	if !ok {
		return func() {}
	}
	tell := func() {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 && rows > 0 {
			resize(rows, columns)
		}
	}
	tell()
	changed := make(chan os.Signal, 1)
	notifySize(changed)
	go func() {
		for range changed {
			tell()
		}
	}()
	return func() {
		signal.Stop(changed)
		close(changed) // nothing is sent to it any more
	}
}

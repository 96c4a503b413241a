package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"linus/internal/field"
	"linus/internal/job"
)

// attachLines is how many lines of earlier output attach shows.
const attachLines = 10

func (a *app) execCommand() *cobra.Command {
	var f manifestFlags
	cmd := &cobra.Command{
		Use:   "exec [--vm NAME] -- COMMAND [ARG...]",
		Short: "Run a command interactively: live output, your input",
		Long: "Runs the command as a job, in an existing VM (--vm) or in a VM of its own, shows its output live, sends it what\n" +
			"arrives on stdin, and exits with its exit code (124: timed out; 125: no exit code).\n\n" +
			"Ctrl-C interrupts the command; a second Ctrl-C detaches from it (130), as do ~. at the start of a line and closing the\n" +
			"terminal: linus job attach attaches again. With --tty every key goes to the command, including Ctrl-C.",
		Example: "  linus job exec --vm dev -- make test\n" +
			"  linus job exec --vm dev --tty -- python3\n" +
			"  tar -c src | linus job exec --vm dev --cwd /srv -- tar -x\n" +
			"  linus job exec --memory 8G -- sh -c 'nproc; free -m'",
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := commandManifest(cmd, args)
			if err == nil {
				err = f.override(cmd, &m, a.stdout)
			}
			if err != nil {
				return err
			}
			if m.StatusMode == "" {
				m.StatusMode = job.StatusStreaming
			}
			input := hasInput(a.stdin)
			if input {
				m.Stdin = job.StdinOpen
			}
			if err := m.Validate(); err != nil {
				return err
			}
			s, err := a.attach(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer s.Close()
			j, err := s.Submit(cmd.Context(), job.Submission{Manifest: m, Client: "cli"})
			if err != nil {
				return err
			}
			a.warnEgress(j.Manifest.Network)
			return a.converse(cmd.Context(), s, j, conversation{input: input})
		},
	}
	f.register(a, cmd, field.Exec)
	a.rawFlag(cmd)
	return cmd
}

func (a *app) attachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "attach ID",
		Short: "Attach to a running job: live output, your input",
		Long: "Shows the last lines the job has printed and then its output live, sends it what arrives on stdin if\n" +
			"it takes input, and exits with its exit code. Ctrl-C interrupts the task; a second Ctrl-C, or ~. at the start of a line,\n" +
			"detaches from it. The end of stdin (Ctrl-D) ends the task's stdin.",
		Args: oneArg("the job's ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			j, err := s.Job(ctx, args[0])
			if err != nil {
				return err
			}
			return a.converse(ctx, s, j, conversation{
				input: j.Manifest.Stdin == job.StdinOpen && !j.Stdin.Closed && hasInput(a.stdin), joining: true,
			})
		}),
	}
	a.rawFlag(cmd)
	return a.completeJobs(cmd)
}

// hasInput reports whether stdin can be read: a terminal, a pipe or a file, but
// not /dev/null.
func hasInput(stdin io.Reader) bool {
	file, ok := stdin.(*os.File)
	if !ok {
		return stdin != nil
	}
	info, err := file.Stat()
	return err == nil && (info.Mode()&os.ModeCharDevice == 0 || isTerminal(file))
}

// conversation holds the options of converse.
type conversation struct {
	input   bool   // stdin goes to the task
	joining bool   // the job was already running: show only its last lines
	again   string // the command that attaches to it again; empty: job attach
}

var errDetached = errors.New("detached")

// converse shows a job's output as it arrives and sends it this process's input
// until the job ends. It returns the task's exit code as an exitError. With -o json
// it shows only the result, at the end.
func (a *app) converse(outer context.Context, s *session, j job.Job, c conversation) error {
	// The first Ctrl-C is for the job, so the cancellation of outer is ignored.
	ctx, leave := context.WithCancelCause(context.WithoutCancel(outer))
	defer leave(nil)
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	go a.interruptible(ctx, s, j.ID, interrupts, leave)

	err := a.talk(ctx, s, j, c, leave)
	switch {
	case errors.Is(context.Cause(ctx), errDetached):
		a.note("\ndetached; the job keeps running\n  attach: %s\n  end:     linus job cancel %s", cmp.Or(c.again, "linus job attach "+j.ID), j.ID)
		return exitError(exitDetached)
	case err != nil:
		return err
	}
	r, err := s.Result(ctx, j.ID)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printResult(r); err != nil {
			return err
		}
	} else if !onlyExited(r) {
		a.note("%s", summary(r))
	}
	return codeOf(r)
}

// killer is the part of an engine that interrupting a task needs.
type killer interface {
	Kill(ctx context.Context, id, signal string) (job.Killed, error)
}

// interruptible handles Ctrl-C: the first interrupts the job's task, the second
// detaches from it.
func (a *app) interruptible(ctx context.Context, s killer, id string, interrupts <-chan os.Signal, leave context.CancelCauseFunc) {
	for interrupted := false; ; interrupted = true {
		select {
		case <-ctx.Done():
			return
		case sig := <-interrupts:
			if interrupted || sig != os.Interrupt {
				leave(errDetached)
				return
			}
			a.note("\ninterrupting the job; Ctrl-C again detaches from it")
			if _, err := s.Kill(ctx, id, "INT"); err != nil {
				a.note("not interrupted: %v", err)
			}
		}
	}
}

// talk copies output and input until the job's output is complete.
func (a *app) talk(ctx context.Context, s *session, j job.Job, c conversation, leave context.CancelCauseFunc) error {
	if !j.Begun() {
		var err error
		if j, err = a.follow(ctx, s, j.ID, following{quiet: true, until: job.Job.Begun}); err != nil {
			return err
		}
	}
	if j.Manifest.TTY {
		return a.showTerminal(ctx, s, j, c, leave)
	}
	l := &logs{engine: s, id: j.ID, follow: true}
	stdout, done := a.output(a.stdout)
	defer done() //nolint:errcheck // a terminal's
	stderr, done := a.output(a.stderr)
	defer done() //nolint:errcheck // likewise
	if a.json {
		stdout, stderr = io.Discard, io.Discard
	}
	l.add(job.Stdout, stdout)
	l.add(job.Stderr, stderr)
	if c.joining {
		if err := l.tail(ctx, attachLines); err != nil {
			return err
		}
	}
	failed := make(chan error, 1)
	if c.input {
		from := a.typed(leave)
		go func() { // blocks while nothing arrives on stdin, possibly until this process exits
			_, err := sendInput(ctx, s, j.ID, from, true, l.soon)
			failed <- err
		}()
	}
	err := l.copy(ctx)
	select {
	case inputErr := <-failed:
		// A task may end without reading all its input.
		if inputErr != nil && ctx.Err() == nil && !errors.Is(inputErr, job.ErrCompleted) {
			a.note("input was not sent: %v", inputErr)
		}
	default:
	}
	l.noteDropped(a)
	return err
}

// rawTerminal puts this process's terminal, if it has one, into raw mode.
func (a *app) rawTerminal() (restore func(), err error) {
	file, ok := a.stdin.(*os.File)
	if !ok || !isTerminal(a.stdin) {
		return func() {}, nil
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	return func() { _ = term.Restore(int(file.Fd()), before) }, nil
}

// typed returns stdin. On a terminal, ~. detaches.
func (a *app) typed(leave context.CancelCauseFunc) io.Reader {
	if !isTerminal(a.stdin) {
		return a.stdin
	}
	return &escapable{from: a.stdin, leave: func() { leave(errDetached) }}
}

// escapable reads a terminal. ~. at the start of a line detaches; ~~ sends one ~.
type escapable struct {
	from  io.Reader
	leave func()

	within bool // within a line, where no escape begins
	tilde  bool // a ~ was read and is held back
	left   bool
}

func (e *escapable) Read(p []byte) (int, error) {
	for !e.left {
		part := make([]byte, max(1, len(p)-1)) // room for a ~ that was held back
		n, err := e.from.Read(part)
		out := e.filter(p[:0], part[:n])
		if e.left {
			e.leave()
		}
		if len(out) > 0 || err != nil {
			return len(out), err
		}
	}
	return 0, errDetached // not io.EOF: the task's stdin stays open
}

func (e *escapable) filter(out, in []byte) []byte {
	for _, c := range in {
		switch {
		case e.tilde && c == '.':
			e.left = true
			return out
		case e.tilde:
			e.tilde, e.within = false, true
			out = append(out, '~')
			if c == '~' {
				continue
			}
		case c == '~' && !e.within:
			e.tilde = true
			continue
		}
		out = append(out, c)
		e.within = c != '\n' && c != '\r'
	}
	return out
}

// codeOf returns the task's exit code as an exitError if a program can exit with that code: the
// system keeps only the lowest 8 bits of larger ones.
func codeOf(r job.Result) error {
	switch {
	case r.Status == job.Success && r.Repository != nil && r.Repository.Problem != "":
		return exitError(exitFailure)
	case r.ExitCode != nil && *r.ExitCode == 0 && r.Status == job.Success:
		return nil
	case r.ExitCode != nil && *r.ExitCode > 0 && *r.ExitCode <= 255:
		return exitError(*r.ExitCode)
	case r.Status == job.Timeout:
		return exitError(exitTimeout)
	default:
		return exitError(exitNoCode)
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"linus/internal/job"
	"linus/internal/worktree"
)

func TestEscapable_TildeDotAtTheStartOfALineLeaves(t *testing.T) {
	tests := []struct {
		name, in, want string
		left           bool
	}{
		{"at the very start", "~.more", "", true},
		{"after a newline", "a\n~.", "a\n", true},
		{"after a terminal's return", "a\r~.", "a\r", true},
		{"within a line", "a~.\n", "a~.\n", false},
		{"twice is one", "~~.\n", "~.\n", false},
		{"before something else", "~/x\n", "~/x\n", false},
		{"before the end of a line", "~\n~.", "~\n", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for way, reader := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.in))} {
				left := false
				got, err := io.ReadAll(&escapable{from: reader, leave: func() { left = true }})
				if string(got) != tt.want || left != tt.left || errors.Is(err, errDetached) != tt.left {
					t.Errorf("%s: %q, left %v, %v; want %q, %v", way, got, left, err, tt.want, tt.left)
				}
			}
		})
	}
}

// killed counts what a killer was asked for.
type killed []string

func (k *killed) Kill(_ context.Context, id, signal string) (job.Killed, error) {
	*k = append(*k, id+" "+signal)
	return job.KilledNow, nil
}

func TestInterruptible_FirstInterruptsSecondLeaves(t *testing.T) {
	tests := []struct {
		name    string
		signals []os.Signal
		want    killed
	}{
		{"twice", []os.Signal{os.Interrupt, os.Interrupt}, killed{"j INT"}},
		{"asked to end", []os.Signal{syscall.SIGTERM}, nil},
		{"interrupted, then asked to end", []os.Signal{os.Interrupt, syscall.SIGTERM}, killed{"j INT"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, leave := context.WithCancelCause(t.Context())
			defer leave(nil)
			signals := make(chan os.Signal, len(tt.signals))
			for _, s := range tt.signals {
				signals <- s
			}
			var got killed
			a := &app{stderr: io.Discard}
			a.interruptible(ctx, &got, "j", signals, leave)
			if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(context.Cause(ctx), errDetached) {
				t.Errorf("left %v; -want +got:\n%s", context.Cause(ctx), diff)
			}
		})
	}
}

// screen is what a program has shown on a terminal.
type screen struct {
	mu    sync.Mutex
	shown bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// until waits until the screen has shown text.
func (s *screen) until(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(s.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %q on the screen; it shows %q", text, s.String())
		}
	}
}

// onTerminal starts a command on a terminal of its own.
func onTerminal(t *testing.T, args ...string) (keys *os.File, shown *screen, ended <-chan int) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LINUS_STATE_DIR="+filepath.Join(dir, "s"), "PROXMOX_HOST=pve.example", "CALLBACK_PORT=0", "HOME="+dir)
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 132})
	if err != nil {
		t.Fatal(err)
	}
	shown = &screen{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(shown, terminal) // ends with the program
	}()
	code := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		<-read
		code <- cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = terminal.Close()
		stop := exec.Command("linus", "serve", "--stop")
		stop.Env = cmd.Env
		if out, err := stop.CombinedOutput(); err != nil {
			t.Errorf("linus serve --stop: %v\n%s", err, out)
		}
	})
	return terminal, shown, code
}

func endsWith(t *testing.T, ended <-chan int, want int, shown *screen) {
	t.Helper()
	select {
	case code := <-ended:
		if code != want {
			t.Errorf("exit code %d, want %d; it shows %q", code, want, shown)
		}
	case <-time.After(time.Minute):
		t.Fatalf("it does not end; it shows %q", shown)
	}
}

func typed(t *testing.T, keys io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(keys, text); err != nil {
		t.Fatal(err)
	}
}

// echoes reports whether a terminal shows what is typed, as it does for a shell.
func echoes(t *testing.T, terminal *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

func TestExec_OnATerminalKeysGoToTheTask(t *testing.T) {
	keys, shown, ended := onTerminal(t, "linus", "job", "exec", "--tty", "--", "echoes")
	for deadline := time.Now().Add(time.Minute); echoes(t, keys); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the terminal is not the task's after 20 s; it shows %q", shown)
		}
	}
	typed(t, keys, "\x03still here\r")
	shown.until(t, "still here\r")
	if strings.Contains(shown.String(), "interrupting") || !strings.Contains(shown.String(), "\x03still") {
		t.Errorf("Ctrl-C was not the task's: %q", shown)
	}
	typed(t, keys, "~.")
	endsWith(t, ended, exitDetached, shown)
	if !echoes(t, keys) {
		t.Error("the terminal is left as it was for the task")
	}
	if !strings.Contains(shown.String(), "detached; the job keeps running") || !strings.Contains(shown.String(), "linus job attach ") {
		t.Errorf("how to take it up again is not told: %q", shown)
	}
}

func TestExec_OnATerminalWithoutTTY(t *testing.T) {
	keys, shown, ended := onTerminal(t, "linus", "job", "exec", "--", "echoes")
	typed(t, keys, "line\r")
	shown.until(t, "line\r\nline\r\n") // the terminal's echo, then the task's
	typed(t, keys, "\x03")
	shown.until(t, "interrupting the job; Ctrl-C again detaches from it")
	shown.until(t, "Killed by user")
	endsWith(t, ended, 143, shown)
}

func TestVMDestroy_AsksOnATerminal(t *testing.T) {
	keys, shown, ended := onTerminal(t, "sh", "-c", "linus vm create dev && linus vm destroy dev; linus vm destroy dev")
	shown.until(t, "Destroy VM dev (100) and its disk? [y/N] ")
	typed(t, keys, "n\r")
	shown.until(t, "not confirmed; nothing was changed")
	typed(t, keys, "y\r")
	shown.until(t, "VM dev (100) is destroyed")
	endsWith(t, ended, exitOK, shown)
}

func TestLastLines(t *testing.T) {
	const text = "one\ntwo\nthree"
	tests := []struct {
		name, data string
		lines      int
		want       string
	}{
		{"none", text, 0, ""},
		{"a prompt is a line", text, 1, "three"},
		{"two", text, 2, "two\nthree"},
		{"as many as there are", text, 3, text},
		{"more than there are", text, 9, text},
		{"the last newline ends a line", "one\ntwo\n", 1, "two\n"},
		{"blank lines are lines", "one\n\n\n", 2, "\n\n"},
		{"nothing", "", 3, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(lastLines([]byte(tt.data), tt.lines)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// told is an engine that has one chunk of output after another.
type told struct{ chunks []job.Chunk }

func (e *told) Job(context.Context, string) (job.Job, error) { return job.Job{}, nil }

func (e *told) Output(_ context.Context, _, _ string, offset, _ int64) (job.Chunk, error) {
	chunk := e.chunks[0]
	e.chunks = e.chunks[1:]
	if chunk.Offset-chunk.Dropped != offset {
		return chunk, errors.New("asked for another offset")
	}
	return chunk, nil
}

func TestLogs_GoOnWhereTheLastChunkEnded(t *testing.T) {
	e := &told{chunks: []job.Chunk{
		{Data: []byte("ab"), Offset: 0, Next: 2},
		{Offset: 2, Next: 2},
		{Data: []byte("yz"), Offset: 10, Next: 12, Dropped: 8},
		{Offset: 12, Next: 12, Complete: true},
	}}
	var out, notes bytes.Buffer
	l := &logs{engine: e, id: "j", follow: true}
	l.add(job.Stdout, &out)
	if err := l.copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.noteDropped(&app{stderr: &notes})
	if out.String() != "abyz" || !strings.Contains(notes.String(), "8 bytes of stdout are not kept") {
		t.Errorf("%q, %q", out.String(), notes.String())
	}
}

// What a task prints gets to a terminal with its colours, and without what the terminal
// would obey.
func TestOutput_OnATerminalIsTextAndColours(t *testing.T) {
	const evil, red = "\x1b]0;evil\a", "\x1b[31mred"
	_, shown, ended := onTerminal(t, "sh", "-c", `
print='\033]0;evil\007\033[31mred\033[0m\n'
id=$(linus job submit -- printf "$print" 2>/dev/null)
linus job status $id --wait
linus job logs $id
linus job result $id
linus job exec -- printf "$print"
linus job submit --wait -- printf "$print"
echo "END"
linus job logs $id --raw`)
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	filtered, raw, _ := strings.Cut(shown.String(), "END")
	if strings.Contains(filtered, evil) || strings.Count(filtered, red) != 5 {
		t.Errorf("shown: %q", filtered)
	}
	if !strings.Contains(raw, evil+red) {
		t.Errorf("with --raw: %q", raw)
	}
}

// A patch on a terminal is read before it is applied: nothing in it hides what is there.
func TestDiff_OnATerminalHidesNothing(t *testing.T) {
	ours, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	change := worktree.Change{Name: "f", After: &worktree.State{Data: []byte("evil()\r# harmless\x1b[2K\u202e\n")}}
	if err := (&app{stdout: terminal}).showDiff([]worktree.Change{change}); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	shown, _ := io.ReadAll(ours) // ends with an error: the terminal is gone
	if text := string(shown); !strings.Contains(text, `+evil()\x0d# harmless\x1b[2K\u202e`) || strings.Contains(text, "\x1b") {
		t.Errorf("shown: %q", text)
	}
	var plain bytes.Buffer
	if err := (&app{stdout: &plain}).showDiff([]worktree.Change{change}); err != nil || !bytes.Contains(plain.Bytes(), change.After.Data) {
		t.Errorf("in a pipe: %q, %v", plain.Bytes(), err)
	}
}

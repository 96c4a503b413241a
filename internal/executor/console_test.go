package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// counted returns n bytes that tell where in a stream they are.
func counted(n int) []byte {
	var b bytes.Buffer
	for b.Len() < n {
		fmt.Fprintf(&b, "%07d\n", b.Len())
	}
	return b.Bytes()[:n]
}

// readAll reads a stream as clients do, from offset on, until it is complete
// or, while the task runs, nothing more comes. Bytes that are not held are
// left out, and counted.
func (r *rig) readAll(id, stream string, offset, limit int64) (data []byte, dropped int64, complete bool) {
	r.t.Helper()
	for {
		c, err := r.Output(context.Background(), id, stream, offset, limit)
		if err != nil {
			r.t.Fatal(err)
		}
		if c.Offset != offset+c.Dropped || c.Next != c.Offset+int64(len(c.Data)) || int64(len(c.Data)) > limit {
			r.t.Fatalf("asked for %d bytes from %d: %d bytes at %d, %d dropped, next %d", limit, offset, len(c.Data), c.Offset, c.Dropped, c.Next)
		}
		data, dropped = append(data, c.Data...), dropped+c.Dropped
		if c.Complete || c.Next == offset {
			return data, dropped, c.Complete
		}
		offset = c.Next
	}
}

func TestOutput_OfARunningTaskIsReadPastWhatIsKept(t *testing.T) {
	t.Parallel()
	for _, mode := range []job.StatusMode{job.StatusSimple, job.StatusStreaming} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, 1)
			stream := counted(3*maxOutput + 17)
			var token string
			do, release := hold(t, providertest.Task{Stdout: stream})
			r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { token = p.Token }})
			id := r.submit(func(m *job.Manifest) { m.StatusMode = mode })
			r.until(id, func(j job.Job) bool { return j.Status == job.Running })
			if mode == job.StatusStreaming { // as the runner sends it
				if next, err := r.AppendOutput(t.Context(), id, token, job.Stdout, 0, stream[:2*maxOutput]); err != nil || next != 2*maxOutput {
					t.Fatal(next, err)
				}
			}
			for _, from := range []int{0, 100, maxOutput - 3, maxOutput, 2*maxOutput + 1, len(stream)} {
				got, dropped, complete := r.readAll(id, job.Stdout, int64(from), 10007)
				if !bytes.Equal(got, stream[from:]) || dropped != 0 || complete {
					t.Errorf("from %d: %d bytes, %d dropped, complete %v; want %d", from, len(got), dropped, complete, len(stream)-from)
				}
			}
			tail, err := r.Output(t.Context(), id, job.Stdout, -20, 0)
			if err != nil || !bytes.Equal(tail.Data, stream[len(stream)-20:]) || tail.Next != int64(len(stream)) || tail.Complete {
				t.Errorf("tail %+v, %v", tail, err)
			}
			release()
			r.wait(id)

			got, dropped, complete := r.readAll(id, job.Stdout, 0, 10007)
			half := maxOutput / 2
			if want := append(bytes.Clone(stream[:half]), stream[len(stream)-half:]...); !bytes.Equal(got, want) || dropped != int64(len(stream)-maxOutput) || !complete {
				t.Errorf("after the end: %d bytes, %d dropped, complete %v", len(got), dropped, complete)
			}
			middle, err := r.Output(t.Context(), id, job.Stdout, int64(half+5), 8)
			if at := len(stream) - half; err != nil || !bytes.Equal(middle.Data, stream[at:at+8]) || middle.Dropped != int64(at-half-5) {
				t.Errorf("from the dropped middle %+v, %v", middle, err)
			}
			if tail, err = r.Output(t.Context(), id, job.Stdout, -20, 0); err != nil || !bytes.Equal(tail.Data, stream[len(stream)-20:]) || !tail.Complete {
				t.Errorf("tail after the end %+v, %v", tail, err)
			}
			for _, from := range []int64{int64(len(stream)), int64(len(stream)) + 1000} {
				if c, err := r.Output(t.Context(), id, job.Stdout, from, 0); err != nil || len(c.Data) > 0 || c.Next != from || !c.Complete {
					t.Errorf("from %d, at or past the end: %+v, %v", from, c, err)
				}
			}
		})
	}
}

func TestOutput_FromBeyondAnyEndIsRefused(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("hi\n")})}, true)
	id := r.submit()
	r.wait(id)
	for _, offset := range []int64{math.MaxInt64, math.MinInt64} {
		_, err := r.Output(t.Context(), id, job.Stdout, offset, 10)
		refusal(t, err, "is out of range")
	}
	if c, err := r.Output(t.Context(), id, job.Stdout, 1<<62, 10); err != nil || len(c.Data) > 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestOutput_BeforeTheTaskAndWithoutItsVM(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{Stdout: []byte("so far")})
	made := make(chan struct{})
	r.behave(providertest.Behaviour{Task: do, Hold: made}, false)
	id := r.submit()
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || len(c.Data) > 0 || c.Complete {
		t.Errorf("of a waiting job: %+v, %v", c, err)
	}
	close(made)
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.Set(providertest.Behaviour{Task: do, Reads: []error{errUnreachable}})
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || len(c.Data) > 0 || c.Complete {
		t.Errorf("while the VM does not answer: %+v, %v", c, err)
	}
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || string(c.Data) != "so far" {
		t.Errorf("when it does again: %+v, %v", c, err)
	}
	release()
	r.wait(id)
	var field *job.FieldError
	if _, err := r.Output(t.Context(), id, "stdin", 0, 0); !errors.As(err, &field) || field.Field != "stream" {
		t.Errorf("of no stream: %v", err)
	}
	if _, err := r.Output(t.Context(), "019aa000-0000-7000-8000-000000000000", job.Stdout, 0, 0); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("of no job: %v", err)
	}
}

// Many short jobs, wave after wave (OUTPUT_WAVES of 50): whoever sees a terminal
// status can read all of the output.
func TestOutput_IsCompleteWhenTheStatusIsTerminal(t *testing.T) {
	const wave = 50
	waves := 2
	if n, err := strconv.Atoi(os.Getenv("OUTPUT_WAVES")); err == nil {
		waves = n
	}
	r := newRig(t, wave)
	r.stop()
	r.opts.CollectPatience = time.Minute // what is tested is not how much a slow machine can do
	r.restart()
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		return providertest.Task{Stdout: []byte("out of " + p.Manifest.Task), Stderr: []byte("err of " + p.Manifest.Task)}
	}}, true)
	var all sync.WaitGroup
	for i := range waves * wave {
		if i%wave == 0 {
			all.Wait()
		}
		name := fmt.Sprint("task ", i)
		id := r.submit(func(m *job.Manifest) { m.Task = name })
		all.Go(func() {
			r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
			for stream, want := range map[string]string{job.Stdout: "out of " + name, job.Stderr: "err of " + name} {
				if c, err := r.Output(context.Background(), id, stream, 0, 0); err != nil || string(c.Data) != want || !c.Complete {
					j, _ := r.Job(context.Background(), id)
					t.Errorf("%s of %s: %q, complete %v, %v; the job is %s: %+v", stream, name, c.Data, c.Complete, err, j.Status, j.Outcome)
				}
			}
		})
	}
	all.Wait()
}

// echoing starts a job that prints what it reads, in a rig.
func echoing(t *testing.T) (*rig, string) {
	t.Helper()
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Echo: true})}, false)
	id := r.submit(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	return r, id
}

func TestInput_ArrivesInOrderAndOnce(t *testing.T) {
	r, id := echoing(t)
	ctx := t.Context()
	if err := r.Input(ctx, id, []byte("a"), false); err != nil {
		t.Fatal(err)
	}
	// One that waits for its turn behind another may give up, and holds nobody up.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := r.Input(ctx, id, []byte("bb"), false); err != nil {
				t.Error(err)
			}
			hurried, cancel := context.WithTimeout(ctx, time.Microsecond)
			defer cancel()
			_ = r.Input(hurried, id, nil, false)
		})
	}
	all.Wait()
	r.fake.Set(providertest.Behaviour{Inputs: []error{errUnreachable}})
	if err := r.Input(ctx, id, []byte("c\n"), false); !errors.Is(err, errUnreachable) {
		t.Errorf("input to a VM that does not answer: %v", err)
	}
	if err := r.Input(ctx, id, []byte("c\n"), true); err != nil {
		t.Fatal(err)
	}
	if err := r.Input(ctx, id, nil, true); err != nil && !errors.Is(err, job.ErrCompleted) {
		t.Errorf("closing again: %v", err)
	}
	j := r.wait(id)
	result, err := r.Result(ctx, id)
	if want := "a" + strings.Repeat("bb", 20) + "c\n"; err != nil || string(result.Stdout) != want || j.Stdin.Bytes != int64(len(want)) || !j.Stdin.Closed {
		t.Errorf("the task read %q (%+v), want %q", result.Stdout, j.Stdin, want)
	}
}

func TestInput_KeepsTheOrderOfWhoWaits(t *testing.T) {
	r, id := echoing(t)
	const n = 50
	gate, err := executor.LockInput(r.Executor, t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var want strings.Builder
	for i := range n {
		text := fmt.Sprintf("%02d ", i)
		want.WriteString(text)
		all.Go(func() {
			if err := r.Input(t.Context(), id, []byte(text), false); err != nil {
				t.Error(err)
			}
		})
		for r.WaitingInputs(id) < i+2 {
			time.Sleep(time.Millisecond)
		}
	}
	gate()
	all.Wait()
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || string(c.Data) != want.String() {
		t.Errorf("read %q, %v; want %q", c.Data, err, want.String())
	}
}

func TestInput_Refused(t *testing.T) {
	r, id := echoing(t)
	ctx := t.Context()
	refusal(t, r.Input(ctx, id, make([]byte, job.MaxInput+1), false), "the limit is 4194304")
	if err := r.Input(ctx, "019aa000-0000-7000-8000-000000000000", nil, false); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("to no job: %v", err)
	}
	waiting := r.submit(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
	refusal(t, r.Input(ctx, waiting, []byte("x"), false), "does not run yet: the job is pending")
	closed := r.submit()
	refusal(t, r.Input(ctx, closed, []byte("x"), false), "stdin is closed")
	if err := r.Input(ctx, id, nil, true); err != nil {
		t.Fatal(err)
	}
	err := r.Input(ctx, id, []byte("late"), false)
	if j, _ := r.Job(ctx, id); j.Outcome == nil {
		refusal(t, err, "was closed")
	}
	r.wait(id)
	if err := r.Input(ctx, id, []byte("x"), false); !errors.Is(err, job.ErrCompleted) {
		t.Errorf("after the end: %v", err)
	}
}

// The VM knows of the task's end before we do.
func TestInput_ToATaskThatHasJustEnded(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	release()
	r.fake.Set(providertest.Behaviour{Inputs: []error{&job.HostError{Op: "send input", Class: job.HostInvalid, Text: "the task has ended"}}})
	if err := r.Input(t.Context(), id, []byte("x"), false); !errors.Is(err, job.ErrCompleted) {
		t.Errorf("input: %v", err)
	}
	r.wait(id)
}

func TestKill_EndsTheTask(t *testing.T) {
	r := newRig(t, 1)
	do, _ := hold(t, providertest.Task{Stdout: []byte("partial")})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit()
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	waiting := r.submit()
	_, err := r.Kill(t.Context(), id, "USR1")
	refusal(t, err, "use one of: TERM")
	for _, id := range []string{id, waiting} {
		if got, err := r.Kill(t.Context(), id, "sigint"); err != nil || got != job.KilledNow {
			t.Errorf("kill: %s, %v", got, err)
		}
	}
	j := r.wait(id)
	if j.Status != job.Failed || j.Outcome.Reason != job.ReasonKilled || j.Outcome.ExitCode == nil || *j.Outcome.ExitCode != 143 || j.StopSignal != "INT" {
		t.Errorf("killed job %+v, signal %q", j.Outcome, j.StopSignal)
	}
	if result, err := r.Result(t.Context(), id); err != nil || string(result.Stdout) != "partial" {
		t.Errorf("its output %q, %v", result.Stdout, err)
	}
	if j = r.wait(waiting); j.Outcome.Reason != job.ReasonKilled || j.Outcome.ExitCode != nil || j.VM != nil {
		t.Errorf("job killed before its start: %+v", j)
	}
	if got, err := r.Kill(t.Context(), id, ""); err != nil || got != job.AlreadyTerminated {
		t.Errorf("kill after the end: %s, %v", got, err)
	}
	if got, err := r.Kill(t.Context(), "019aa000-0000-7000-8000-000000000000", ""); err != nil || got != job.KillNotFound {
		t.Errorf("kill of no job: %s, %v", got, err)
	}
	r.noLeaks()
}

func TestKill_LeavesASharedVM(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	do, _ := hold(t, providertest.Task{})
	r.fake.Set(providertest.Behaviour{Task: do})
	first, second := r.submit(sharing("dev")), r.submit(sharing("dev"))
	for _, id := range []string{first, second} {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	if _, err := r.Kill(t.Context(), first, "KILL"); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(first); j.Outcome.Reason != job.ReasonKilled {
		t.Errorf("killed job %+v", j.Outcome)
	}
	if j, err := r.Job(t.Context(), second); err != nil || j.Outcome != nil || r.vm("dev").Status != vm.Running {
		t.Errorf("the other job %+v, %v", j, err)
	}
}

func TestResize_ReachesARunningTerminal(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Echo: true})}, false)
	id := r.submit(func(m *job.Manifest) { m.Stdin, m.TTY = job.StdinOpen, true })
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	ctx := t.Context()
	if err := r.Resize(ctx, id, 50, 132); err != nil {
		t.Fatal(err)
	}
	if rows, columns := r.fake.TerminalSize(j); rows != 50 || columns != 132 {
		t.Errorf("the terminal has %d x %d", rows, columns)
	}
	refusal(t, r.Resize(ctx, id, 0, 80), "rows: 0 is out of range")
	refusal(t, r.Resize(ctx, id, 24, 10000), "columns: 10000 is out of range")
	if err := r.Resize(ctx, "019aa000-0000-7000-8000-000000000000", 24, 80); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("of no job: %v", err)
	}
	waiting := r.submit(func(m *job.Manifest) { m.TTY = true })
	refusal(t, r.Resize(ctx, waiting, 24, 80), "does not run yet: it is pending")
	plain := r.submit()
	refusal(t, r.Resize(ctx, plain, 24, 80), "without a terminal")
	if err := r.Input(ctx, id, nil, true); err != nil {
		t.Fatal(err)
	}
	r.until(id, func(j job.Job) bool { return j.Outcome != nil })
	if err := r.Resize(ctx, id, 24, 80); !errors.Is(err, job.ErrCompleted) {
		t.Errorf("of a job that has ended: %v", err)
	}
}

// slowToAnswer is a guest that takes input at once, and answers when it is told to, unless the job's
// connections are closed before.
type slowToAnswer struct {
	*providertest.Fake
	taken, answer, closed chan struct{}
	once                  sync.Once
}

func (g *slowToAnswer) Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error) {
	n, err := g.Fake.Input(ctx, j, offset, data)
	close(g.taken)
	select {
	case <-g.answer:
		return n, err
	case <-g.closed:
		return 0, errUnreachable
	}
}

func (g *slowToAnswer) Forget(j job.Job) {
	g.Fake.Forget(j)
	g.once.Do(func() { close(g.closed) })
}

// A task that ends by what it reads, as a shell by exit, has read it: whoever sent that is told so.
func TestInput_ThatEndsItsTask(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	g := &slowToAnswer{Fake: r.fake, taken: make(chan struct{}), answer: make(chan struct{}), closed: make(chan struct{})}
	r.opts.Runner, r.vms.Guest = g, g
	r.restart()
	do, ends := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	sent := make(chan error, 1)
	go func() { sent <- r.Input(t.Context(), id, []byte("exit\n"), false) }()
	<-g.taken
	ends()
	r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
	for r.WaitingInputs(id) < 2 { // until its end stands behind the input
		select {
		case <-g.closed:
			t.Fatalf("its connections are closed: %v", <-sent)
		case <-time.After(time.Millisecond):
		}
	}
	close(g.answer)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if j := r.wait(id); j.Status != job.Success || j.Stdin.Bytes != 5 || j.VM.State != vm.Destroyed {
		t.Errorf("%+v, stdin %+v, VM %+v", j.Outcome, j.Stdin, j.VM)
	}
}

package control_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/verbtest"
)

// every calls each verb on c, with as little as there may be, and returns their errors.
func every(t *testing.T, c *control.Client) map[string]error {
	t.Helper()
	errs := map[string]error{}
	for _, v := range job.Verbs() {
		out, err := v.Do(t.Context(), c, verbtest.About(v, "x"))
		if file, ok := out.(job.Download); ok {
			out = file.File
		}
		if open, ok := out.(io.Closer); ok && err == nil {
			_ = open.Close()
		}
		errs[v.Name] = err
	}
	return errs
}

// A method of job.Engine that has no row, or another's, does not arrive.
func TestTable_HasARowForEveryMethodOfAnEngine(t *testing.T) {
	e := newEngine(&engine{wait: make(chan struct{})})
	e.job.Status = job.Success // or Watch would wait
	close(e.wait)
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	for name, err := range every(t, dial(t, dir)) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Contains(e.log(), name) {
			t.Errorf("%s does not arrive; what does: %v", name, e.log())
		}
	}
	if n := len(job.Verbs()); len(e.log()) != n {
		t.Errorf("%d methods called, %d arrived: %v", n, len(e.log()), e.log())
	}
}

// Where the answer was lost, only what may be done twice is asked for again.
func TestClient_AsksAgainWhereTheAnswerWasLost(t *testing.T) {
	once := []string{"Submit", "Input", "ForgetVM", "ForkVM", "SnapshotVM", "RevertVM", "DeleteSnapshot", "SaveVM", "EditFile", "WriteTree", "UnexposePort", "CreatePool", "RemovePool", "CreateCheckpoint", "CreateVolume", "RemoveVolume", "CreateToken", "RevokeToken", "CreateCredential", "RemoveCredential", "DeleteJob", "TestHost", "CreateSchedule", "RunSchedule", "RemoveSchedule"}
	e := newEngine(&engine{cut: true})
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c := dial(t, dir)
	errs := every(t, c)
	_, err := c.Submit(t.Context(), job.Submission{IdempotencyKey: "key"}) // twice, which makes three
	errs["Submit with a key"] = err
	_, err = c.CreateVM(t.Context(), job.Submission{IdempotencyKey: "key"})
	errs["CreateVM with a key"] = err
	for name, err := range errs {
		if !errors.Is(err, control.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", name, err)
		}
	}
	count := map[string]int{}
	for _, name := range e.log() {
		count[name]++
	}
	for name, n := range count {
		switch {
		case (name == "Submit" || name == "CreateVM") && n >= 3: // net/http itself repeats what has an Idempotency-Key
		case name != "Submit" && name != "CreateVM" && slices.Contains(once, name) && n == 1:
		case !slices.Contains(once, name) && n >= 2: // net/http repeats a GET by itself, too
		default:
			t.Errorf("%s was asked for %d times", name, n)
		}
	}
}

// An engine that has gone before it heard of a call is no reason not to make it.
func TestClient_MakesTheCallWithTheNextEngine(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	old := serve(t, first, newEngine(&engine{}), func() {})
	next := newEngine(&engine{job: job.Job{ID: "j1"}})
	serve(t, second, next, func() {})
	dirs, dialled := []string{first, second}, 0
	c, err := control.NewClient(t.Context(), func(ctx context.Context) (*control.Conn, error) {
		dialled++
		return control.Connect(ctx, control.Socket(dirs[dialled-1]))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := old.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if j, err := c.Submit(t.Context(), job.Submission{}); err != nil || j.ID != "j1" || dialled != 2 {
		t.Errorf("Submit = %v, %v after %d dials; want the next engine's", j.ID, err, dialled)
	}
}

// A client that is to connect later says why it cannot, and goes on when it can.
func TestLater_ConnectsWhenItCan(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, newEngine(&engine{}), func() {})
	unset := errors.New("not set")
	c := control.Later(func(ctx context.Context) (*control.Conn, error) {
		if unset != nil {
			return nil, unset
		}
		return control.Connect(ctx, control.Socket(dir))
	})
	defer c.Close()
	if _, err := c.VMs(t.Context()); !errors.Is(err, unset) {
		t.Errorf("before: %v", err)
	}
	unset = nil
	if _, err := c.VMs(t.Context()); err != nil {
		t.Errorf("after: %v", err)
	}
}

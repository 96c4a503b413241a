package mcptask

import (
	"strings"
	"testing"
	"time"
)

// lineWriter gives each message to a channel.
type lineWriter chan string

func (l lineWriter) Write(data []byte) (int, error) {
	l <- string(data)
	return len(data), nil
}

// The end of stdin, or of the process, does not wait for a client that listens.
func TestStdio_CloseEndsWhatListens(t *testing.T) {
	source := &one{task: Task{ID: "t1", Status: Working, CreatedAt: at, UpdatedAt: at}}
	out := make(lineWriter, 10)
	stdio := New(Options{Source: source, Every: time.Hour}).Stdio(out)
	if !stdio.Line(t.Context(), []byte(message("subscriptions/listen", `"notifications":{"taskIds":["t1"]},`, knows))) {
		t.Fatal("it is not about tasks")
	}
	for _, want := range []string{"acknowledged", `"status":"working"`} {
		if line := <-out; !strings.Contains(line, want) {
			t.Fatalf("%s, want %s", line, want)
		}
	}
	closed := make(chan struct{})
	go func() {
		stdio.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for a client that listens")
	}
	if line := <-out; !strings.Contains(line, `"id":7`) {
		t.Errorf("its answer is %s", line)
	}
}

package dispatch

import (
	"context"
	"errors"
	"io"
	"net/http"

	"linus/internal/job"
)

// Queue is a service in which work waits for machines, as one dispatcher sees it. It is asked by
// one goroutine at a time, but for Hold, Handover and Release, which each session calls by itself.
//
// An error of Waiting or Claim that does not pass (Fatal) ends the dispatcher; after any other it asks
// again, ever more slowly. What a queue answers is not trusted: an implementation bounds and checks all of it.
type Queue interface {
	// Task is the bash script that a session's VM runs once its Secret has come: $item is its file,
	// and $name the session's name.
	Task() string

	// Waiting returns the work that waits, oldest first. Work that has a session may be among it: it
	// is left out by its ID. It is also asked for while there is no place for a session, so that it can
	// be told how much waits.
	Waiting(ctx context.Context) ([]Work, error)

	// Claim makes a piece of work this dispatcher's; false: it waits no more. A queue that gives
	// work to whichever runner comes first has nothing to do here. A claim has to end by itself
	// where its dispatcher does, for the session has no job yet.
	Claim(ctx context.Context, w Work) (bool, error)

	// Hold keeps the claim while the session's VM is made, until done is closed. An error says that
	// the claim is lost, and ends the session. A queue without leases returns at once. The session
	// may have no job yet. After a restart it is called again for a session that was being made.
	Hold(ctx context.Context, s Session, done <-chan struct{}) error

	// Handover returns what the session's VM gets, which is up and waits for it: called once, at the
	// latest moment, so that secrets live as briefly as they can. Hold has returned before.
	Handover(ctx context.Context, s Session) (Handover, error)

	// Release takes back what a session may have left in the queue: a runner that never connected,
	// work that is claimed and will not be done. It is called when the session's job has ended or
	// never began, also after a restart of the dispatcher, and must do no harm when it is repeated.
	Release(ctx context.Context, s Session, o *job.Outcome) error
}

// Hooked is a queue whose service tells of work by itself. The dispatcher serves Hook and asks for
// what waits when Woken has something, as well as from time to time.
type Hooked interface {
	Hook() http.Handler
	Woken() <-chan struct{}
}

// Continued is a queue that is told of sessions from before the dispatcher's start whose VMs have their
// work: it may know them then as those that it has handed over itself.
type Continued interface{ Continue(s Session) }

// Work is a piece of work that waits.
type Work = job.Work

// Session is a piece of work with the job that serves it. It is read from the job's row after a
// restart, so that nothing in it is secret.
type Session struct {
	Work Work
	Job  string // its ID
	Name string // of the session in the queue, as a runner's name: unique, known before anything is made
}

// Handover is what a session's VM runs and gets.
type Handover struct {
	// Secret is written into the VM's memory, mode 0600: the session's own, for its one piece of work.
	Secret []byte
	// Tree is a tar archive of the directory $name, which is unpacked in /tmp before Secret is there; nil: none.
	Tree io.Reader
}

// WorkFailed is what a task exits with if the work was done and its own outcome is a failure: that
// says nothing of the VM, which may be kept (keep on_failure), nor of the queue.
const WorkFailed = 99

// AwaitJob is by what a task waits for the job of its runner, whose process is $runner, and for the
// runner's end, with $code; and ends if there was none. The task's begun says whether one has come.
const AwaitJob = `await_job() { # <signal> <seconds> <why none may come>
  local deadline=$((SECONDS + $2))
  until begun || ! kill -0 "$runner" 2>/dev/null; do
    if ((SECONDS >= deadline)); then
      echo "no job has come: another runner has taken it, or $3" >&2
      kill -"$1" "$runner" 2>/dev/null || :
      break
    fi
    sleep 1
  done
  code=0
  wait "$runner" || code=$?
}
without_job() {
  if ! begun; then
    echo "the runner has ended without a job (exit status $code)" >&2
    exit 69
  fi
}
`

// Fatal is an error of a queue that does not pass: its key is refused, or there is no such queue.
type Fatal struct{ Err error }

func (e *Fatal) Error() string { return e.Err.Error() }
func (e *Fatal) Unwrap() error { return e.Err }

// ErrLost says that a session's claim is lost: somebody else has the work, or nobody.
var ErrLost = errors.New("the claim is lost: somebody else has the work, or nobody")

package dispatch

import (
	"context"
	"errors"
	"io"
	"net/http"

	"linus/internal/job"
)

// Queue is a service in which work waits for machines, as one dispatcher sees it. Only one goroutine at a
// time calls its methods, except Hold, Handover and Release: each session calls those from its own goroutine.
//
// A Fatal error of Waiting or Claim ends the dispatcher. After any other error the dispatcher tries again,
// with growing pauses. A queue's answers are not trusted: implementations bound and check all of them.
type Queue interface {
	// Task returns the bash script that a session's VM runs once its Secret has arrived. $item is the
	// file of the Secret, $name the session's name.
	Task() string

	// Waiting returns the waiting work, oldest first. The dispatcher skips work that has a session, by
	// its ID. Waiting is also called while all places for sessions are taken, to report how much waits.
	Waiting(ctx context.Context) ([]Work, error)

	// Claim claims a piece of work for this dispatcher. It returns false if the work no longer waits. A
	// queue that gives work to whichever runner comes first need not do anything here. A claim must
	// expire by itself if the dispatcher dies, because the session has no job yet.
	Claim(ctx context.Context, w Work) (bool, error)

	// Hold keeps the claim until done is closed, while the session's VM is made. An error means that the
	// claim is lost, and ends the session. A queue without leases returns at once. The session may have
	// no job yet. After a restart Hold is called again for a session whose VM was being made.
	Hold(ctx context.Context, s Session, done <-chan struct{}) error

	// Handover returns what to give to the session's VM, which is up and waits for it. It is called once,
	// after Hold has returned, and as late as possible, so that secrets are short-lived.
	Handover(ctx context.Context, s Session) (Handover, error)

	// Release cleans up what a session may have left in the queue: a runner that never connected, or
	// claimed work that will not be done. It is called when the session's job has ended or never started,
	// also after a restart of the dispatcher, and must be idempotent.
	Release(ctx context.Context, s Session, o *job.Outcome) error
}

// Hooked is a queue whose service announces work by webhook. The dispatcher serves Hook, and calls
// Waiting when Woken receives, in addition to its regular polls.
type Hooked interface {
	Hook() http.Handler
	Woken() <-chan struct{}
}

// Continued is a queue that needs to know the running sessions of a previous dispatcher process, whose VMs
// may have their work already, so that it knows them like those it has handed over itself.
type Continued interface{ Continue(s Session) }

// Work is a piece of work that waits in a queue.
type Work = job.Work

// Session is a piece of work with the job that serves it. After a restart it is read from the job's row,
// so it contains no secrets.
type Session struct {
	Work Work
	Job  string // its ID
	Name string // of the session in the queue, e.g. of its runner: unique, and known before anything is made
}

// Handover is what a session's VM is given.
type Handover struct {
	// Secret is for this session's work only. It is written into the VM's memory, mode 0600.
	Secret []byte
	// Tree is a tar archive of the directory $name, unpacked in /tmp before Secret arrives; nil: none.
	Tree io.Reader
}

// WorkFailed is the exit code of a task whose work was done, but failed. That says nothing about the
// queue or the VM, which may be kept (keep on_failure).
const WorkFailed = 99

// AwaitJob has the functions by which a task waits for a job of its runner, process $runner, and for the
// runner's end, with exit code $code, and fails if no job came. The task's begun tests for the job.
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

// Fatal is a permanent error of a queue: its key is refused, or the queue does not exist.
type Fatal struct{ Err error }

func (e *Fatal) Error() string { return e.Err.Error() }
func (e *Fatal) Unwrap() error { return e.Err }

// ErrLost means that a session's claim is lost: somebody else has the work, or nobody.
var ErrLost = errors.New("the claim is lost: somebody else has the work, or nobody")

package executor

import "context"

// LockInput and WaitingInputs let a test hold inputs up, and see them wait.
func LockInput(e *Executor, ctx context.Context, id string) (unlock func(), err error) { //nolint:revive // as the method it stands for
	return e.runOf(id).input.enter(ctx)
}

// WaitingInputs counts who sends to a job's stdin, and who waits for that.
func (e *Executor) WaitingInputs(id string) int {
	l := &e.runOf(id).input
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.turns)
}

// HashToken is how tokens are stored.
var HashToken = hashToken

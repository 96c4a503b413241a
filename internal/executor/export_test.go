package executor

import "context"

// LockInput and WaitingInputs let a test hold inputs up, and see them wait.
func LockInput(e *Executor, ctx context.Context, id string) (unlock func(), err error) { //nolint:revive // as the method it stands for
	return e.runOf(id).input.Enter(ctx)
}

// WaitingInputs counts who sends to a job's stdin, and who waits for that.
func (e *Executor) WaitingInputs(id string) int {
	return e.runOf(id).input.Len()
}

// TellDispatchers records what is to be told of dispatchers, and has it delivered.
func (e *Executor) TellDispatchers(ctx context.Context) {
	e.tellDispatchers(ctx)
	signal(e.notices)
}

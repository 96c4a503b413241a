package executor

// LockInput and WaitingInputs let a test hold inputs up, and see them wait.
var LockInput = (*Executor).lockInput

// WaitingInputs counts who sends to a job's stdin, and who waits for that.
func (e *Executor) WaitingInputs(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inputs[id])
}

// Allow, Earn and ErrTooSlow let a test see what time work in a VM is given.
var (
	Allow      = allow
	Earn       = earn
	ErrTooSlow = errTooSlow
)

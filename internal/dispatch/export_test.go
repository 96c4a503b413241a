package dispatch

// NewClaude returns the queue that ServeClaude serves.
func NewClaude(o Options, c Claude) Queue { return newClaude(o, c) }

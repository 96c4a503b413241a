package job

import (
	"context"
	"time"
)

// Call calls a verb: it is the common form of all methods of an engine. in and the result are as in
// Verb.Do; the result may be nil with an error.
type Call func(ctx context.Context, v *Verb, in any) (any, error)

// Through returns an engine each of whose methods calls call.
func Through(call Call) Engine { return calls{call} }

// calls has its methods in calls_gen.go, except Cleanup.
//
//go:generate go run generate.go
type calls struct{ call Call }

func ask[In, Out any](ctx context.Context, c calls, v Typed[In, Out], in In) (out Out, err error) {
	result, err := c.call(ctx, v.Verb, in)
	if result != nil {
		out = result.(Out)
	}
	return out, err
}

func tell[In any](ctx context.Context, c calls, v Typed[In, None], in In) error {
	_, err := ask(ctx, c, v, in)
	return err
}

// Cleanup takes a duration, but its row takes seconds.
func (to calls) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return ask(ctx, to, VerbCleanup, aged{int64(olderThan / time.Second)})
}

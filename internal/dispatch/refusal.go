package dispatch

import (
	"errors"
	"fmt"
	"net/http"
)

// Refusal is what a queue's service answers instead of what it was asked for.
type Refusal struct {
	Code int
	Text string // a line
}

func (e *Refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, http.StatusText(e.Code), e.Text)
}

// Code is that of a refusal; 0 for other errors.
func Code(err error) int {
	if refused, is := errors.AsType[*Refusal](err); is {
		return refused.Code
	}
	return 0
}

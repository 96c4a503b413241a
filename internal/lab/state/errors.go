package state

import (
	"fmt"
)

// ExitError is how a work-alike ends: what PVE prints on stderr, and its exit code, which follows
// no rule in PVE (it is whatever errno held).
type ExitError struct {
	Code int
	text string
}

func (e *ExitError) Error() string { return e.text }

// Fail returns an ExitError.
func Fail(code int, format string, args ...any) error {
	return &ExitError{Code: code, text: fmt.Sprintf(format, args...)}
}

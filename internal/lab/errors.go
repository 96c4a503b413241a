package lab

import (
	"fmt"
)

// exitError is how a work-alike ends: what PVE prints on stderr and its exit
// code, which follows no rule there (whatever errno held).
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func fail(code int, format string, args ...any) error {
	return &exitError{code: code, text: fmt.Sprintf(format, args...)}
}

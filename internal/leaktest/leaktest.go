// Package leaktest looks for goroutines that tests have left. It gives them a minute to end: goleak's
// half a second is too short on a busy machine.
package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests, and fails if they pass but have left a goroutine.
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m, options}, options...)
}

// None fails the test if there is a goroutine other than those of options.
func None(t *testing.T, options ...goleak.Option) {
	t.Helper()
	wait(options)
	goleak.VerifyNone(t, options...)
}

type patient struct {
	*testing.M

	options []goleak.Option
}

// Run runs the tests. If they pass, it waits until they have left nothing, for at most a minute.
func (p patient) Run() int {
	code := p.M.Run()
	if code == 0 {
		wait(p.options)
	}
	return code
}

func wait(options []goleak.Option) {
	for begin := time.Now(); time.Since(begin) < time.Minute && goleak.Find(options...) != nil; {
	}
}

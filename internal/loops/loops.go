// Package loops says which tests run in which of the project's three loops: `make check` (go test
// -short), `make test`, and `make nightly` (LINUS_TEST_LOOP=nightly). Tests that call nothing here
// run in all of them. No test is chosen at random. The package knows nothing of what is tested.
package loops

import (
	"os"
	"testing"
)

// AtNight reports whether everything runs: all moments and all sizes, not some of them.
func AtNight() bool { return os.Getenv("LINUS_TEST_LOOP") == "nightly" } //nolint:forbidigo // of tests only

// NotInCheck keeps a test out of `make check`: it starts a host, a server, a browser or built
// programs, or takes long.
func NotInCheck(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("not in make check: it starts a host, a server, a browser or programs, or takes long")
	}
}

// AtNightOnly keeps a test out of `make check` and `make test`. covered names the test of `make
// test` that checks the same promise; CONTRIBUTING lists both.
func AtNightOnly(t testing.TB, covered string) {
	t.Helper()
	if !AtNight() {
		t.Skip("in make nightly only; in make test: " + covered)
	}
}

// Every returns the steps, from 0 and below n, at which a test is to do its worst: all of them at
// night, otherwise every stride-th, the same each time. covered names the test of `make test` that
// has the others; CONTRIBUTING lists both.
func Every(n, stride int, covered string) []int {
	if AtNight() {
		stride = 1
	}
	var steps []int
	for i := 0; i < n; i += stride {
		steps = append(steps, i)
	}
	return steps
}

package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"linus/internal/job"
	"linus/internal/remote"
)

func TestExitError_HostClass(t *testing.T) {
	for code, want := range map[int]job.HostClass{
		0: "", 1: job.HostInvalid, 2: job.HostDependency, 3: job.HostConfig, 4: job.HostOffline, 5: job.HostVM, 6: job.HostTimeout, 7: "",
		66: "", 127: "", 129: job.HostCancelled, 130: job.HostCancelled, 137: "", 141: job.HostCancelled, 143: job.HostCancelled, 255: job.HostUnreachable,
	} {
		if got := (&remote.ExitError{Code: code}).HostClass(); got != want {
			t.Errorf("exit code %d is %q, want %q", code, got, want)
		}
	}
}

func TestClass_HostClassAndWhetherItMayPass(t *testing.T) {
	for class, want := range map[remote.Class]job.HostClass{
		remote.Refused: job.HostUnreachable, remote.Unreachable: job.HostUnreachable, remote.Timeout: job.HostUnreachable, remote.Lost: job.HostUnreachable,
		remote.Auth: job.HostAuth, remote.HostKeyUnknown: job.HostKeyChanged, remote.HostKeyChanged: job.HostKeyChanged, "": "",
	} {
		if got := class.HostClass(); got != want {
			t.Errorf("%q is %q, want %q", class, got, want)
		}
		err := fmt.Errorf("over it: %w", &remote.Error{Class: class, Err: io.EOF})
		if got, want := remote.Passing(err), want == job.HostUnreachable; got != want {
			t.Errorf("%q may pass: %v, want %v", class, got, want)
		}
	}
	for _, tt := range []struct {
		err  error
		want bool
	}{{nil, false}, {errors.New("x"), false}, {&remote.ExitError{Code: 255}, false}, {context.Canceled, false}, {context.DeadlineExceeded, true}} {
		if got := remote.Passing(tt.err); got != tt.want {
			t.Errorf("%v may pass: %v, want %v", tt.err, got, tt.want)
		}
	}
}

package main

import (
	"errors"
	"testing"

	"linus/internal/job"
)

// Only 0 with success ends linus with 0: a shell sees the lowest 8 bits of what
// a program ends with.
func TestCodeOf(t *testing.T) {
	code := func(n int) *int { return &n }
	tests := []struct {
		name string
		r    job.Result
		want exitError
	}{
		{"success", job.Result{Status: job.Success, ExitCode: code(0)}, 0},
		{"failure", job.Result{Status: job.Failed, ExitCode: code(3)}, 3},
		{"the last code", job.Result{Status: job.Failed, ExitCode: code(255)}, 255},
		{"timeout", job.Result{Status: job.Timeout}, exitTimeout},
		{"cancelled", job.Result{Status: job.Failed}, exitNoCode},
		{"failed with 0", job.Result{Status: job.Failed, ExitCode: code(0)}, exitNoCode},
		{"success without a code", job.Result{Status: job.Success}, exitNoCode},
		{"256", job.Result{Status: job.Failed, ExitCode: code(256)}, exitNoCode},
		{"-1", job.Result{Status: job.Failed, ExitCode: code(-1)}, exitNoCode},
		{"1e12", job.Result{Status: job.Failed, ExitCode: code(1e12)}, exitNoCode},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got exitError
			if err := codeOf(tt.r); err != nil && !errors.As(err, &got) {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

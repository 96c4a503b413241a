package remote_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

func TestRun_PassesStreamsByteForByte(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	in := bytes.Repeat([]byte{0, 255, '\n', 'x', '\r', 27}, 100_000)
	var out, errs bytes.Buffer
	err := p.Run(t.Context(), remote.Command{Name: "copy", Line: "tee /dev/stderr", Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs})
	if err != nil || !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errs.Bytes(), in) {
		t.Errorf("%d and %d of %d bytes, %v", out.Len(), errs.Len(), len(in), err)
	}
}

func TestRun_Ends(t *testing.T) {
	tests := []struct {
		name   string
		line   string
		faults sshtest.Faults
		check  func(t *testing.T, err error)
	}{
		{name: "exit code and the end of stderr", line: "seq 1 5000 >&2; echo last words >&2; exit 3", check: func(t *testing.T, err error) {
			var exit *remote.ExitError
			if !errors.As(err, &exit) || exit.Code != 3 || exit.Signal != "" || !strings.HasSuffix(exit.Stderr, "5000\nlast words\n") || len(exit.Stderr) != 8<<10 {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "signal", line: "kill -KILL $$", check: func(t *testing.T, err error) {
			var exit *remote.ExitError
			if !errors.As(err, &exit) || exit.Code != 137 || exit.Signal != "KILL" {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "exit code 255 is the command's own", line: "exit 255", check: func(t *testing.T, err error) {
			var exit *remote.ExitError
			if !errors.As(err, &exit) || exit.Code != 255 {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "no exit status is a lost connection", line: "true", faults: sshtest.Faults{NoExitStatus: true}, check: func(t *testing.T, err error) {
			if remote.ClassOf(err) != remote.Lost {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "connection cut while it runs", line: "sleep 5", faults: sshtest.Faults{DropAtExec: 1}, check: func(t *testing.T, err error) {
			if remote.ClassOf(err) != remote.Lost {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "connection cut in the middle of the output", line: "head -c 1000000 /dev/zero", faults: sshtest.Faults{DropAfter: 200_000}, check: func(t *testing.T, err error) {
			if remote.ClassOf(err) != remote.Lost {
				t.Errorf("err = %v", err)
			}
		}},
		{name: "input left unread", line: "exec <&-; exit 0", check: func(t *testing.T, err error) {
			if err != nil {
				t.Errorf("err = %v", err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Faults: tt.faults})
			stdin := bytes.NewReader(make([]byte, 100_000))
			tt.check(t, pool(t, options(s)).Run(t.Context(), remote.Command{Name: "it", Line: tt.line, Stdin: stdin}))
		})
	}
}

func TestRun_WritesNothingAfterItReturned(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var out bytes.Buffer // the race detector watches it
	err := p.Run(ctx, remote.Command{Name: "flood", Line: "yes", Stdout: &out})
	size := out.Len()
	p.Close()
	s.Stop() // which waits for the command and its connection
	if err == nil || out.Len() != size {
		t.Errorf("err = %v, %d bytes came later", err, out.Len()-size)
	}
}

func TestOutput_IsBounded(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	out, err := pool(t, options(s)).Output(t.Context(), remote.Command{Name: "flood", Line: "head -c 1000 /dev/zero"}, 100)
	if err == nil || len(out) != 100 {
		t.Errorf("%d bytes, err = %v", len(out), err)
	}
}

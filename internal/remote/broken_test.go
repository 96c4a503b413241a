package remote

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestBroken_KnowsTheEndOfAConnectionFromOtherFaults(t *testing.T) {
	write := func(errno syscall.Errno) error {
		op := &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", errno)}
		return fmt.Errorf("failed to send packet payload: %w", op) // as sftp says it
	}
	tests := []struct {
		name string
		err  error
		want bool
	}{
		{"write after the other side has closed", write(syscall.EPIPE), true},
		{"write to a connection that was reset", write(syscall.ECONNRESET), true},
		{"write nobody acknowledges", write(syscall.ETIMEDOUT), true},
		{"end of the stream", fmt.Errorf("read: %w", io.EOF), true},
		{"closed by us meanwhile", &net.OpError{Op: "read", Err: net.ErrClosed}, true},
		{"missing file", os.ErrNotExist, false},
		{"full disk", syscall.ENOSPC, false},
		{"words of a server", errors.New("broken pipe"), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := broken(tt.err); got != tt.want {
				t.Errorf("broken(%v) is %v", tt.err, got)
			}
		})
	}
}

//go:build unix

package gate

import (
	"math"
	"syscall"
)

// descriptors returns how many files the process may open.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(uint64(limit.Cur), math.MaxInt)) //nolint:gosec,unconvert // bounded; of another type on BSD
}

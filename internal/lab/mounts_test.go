package lab

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
)

// What is mounted for a node is seen by nobody else, whichever thread the goroutine began
// on. On the process's first one, /proc/self would show the node's mounts from then on,
// and a network namespace that is made later would not be among them.
func TestInOwnMounts_ChangesNothingForTheRest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	s := &state.State{Dir: t.TempDir(), Config: state.Config{Cluster: t.TempDir(), Node: "pve"}}
	if err := os.MkdirAll(filepath.Join(s.HomeDir(), "its"), 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	// With one processor a goroutine begins on the thread of the one that waits for it.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 1000 {
		if unix.Gettid() == unix.Getpid() {
			break
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil) // the scheduler moves what is in a system call
	}
	if unix.Gettid() != unix.Getpid() {
		t.Skip("the scheduler kept this test off the process's first thread")
	}
	err = inOwnMounts(s, func() error {
		_, err := os.Stat(filepath.Join(nodeHome(s), "its"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil || after != before {
		t.Errorf("/proc/self is in mount namespace %s, %v; it was in %s", after, err, before)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), s.Dir) {
		t.Errorf("a node's mount is the whole process's (%v):\n%s", err, mounts)
	}
}

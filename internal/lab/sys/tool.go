package sys

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Find looks up a command on PATH and in the directories of system tools, which a user's PATH may
// lack. An absolute path must exist.
func Find(name string) (string, error) {
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return name, err
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if info, statErr := os.Stat(filepath.Join(dir, name)); statErr == nil && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, name), nil
		}
	}
	return "", err
}

// Openable returns why a device cannot be opened for reading and writing, or nil.
func Openable(device string) error {
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return file.Close()
}

// Command returns a command that Find has looked up.
func Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	path, err := Find(name)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, path, args...), nil
}

// Run runs a command and returns its stdout; an error includes what it printed on stderr.
func Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd, err := Command(ctx, name, args...)
	if err != nil {
		return nil, err
	}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	err = RunCommand(cmd)
	return stdout.Bytes(), err
}

// RunCommand runs a command that dies with this process. Otherwise, after a kill -9 of the caller,
// the command could still create something that Down has already looked for.
func RunCommand(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the kernel ties the child's death to that of the thread
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// OnThreadOfItsOwn runs f on a thread that ends with f, and with it everything f has changed about
// the thread, such as its namespaces. It is never the process's first thread: that thread does not
// end, and /proc/self shows its view of the process, mounts included.
func OnThreadOfItsOwn(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		done <- OnThreadOfItsOwn(f) // while this goroutine holds the first thread
		runtime.UnlockOSThread()
	}()
	return <-done
}

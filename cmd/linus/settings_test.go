package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Opening a FIFO waits for who writes to it, and no signal ends that.
func TestRun_EndsWhileItReadsAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	silent, open, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Close() }) // what still reads ends, too
	for _, args := range [][]string{
		{"--env-file", fifo, "job", "list"},
		{"--env-file", fifo, "config", "check"},
		{"job", "submit", "-f", fifo},
		{"job", "submit", "-f", "-"},
		{"--server", "http://127.0.0.1:1", "--token-file", fifo, "job", "list"},
		{"--server", "https://127.0.0.1:1", "--ca-file", fifo, "job", "list"},
		{"credential", "add", "n", "--host", "h"},
		{"dispatch", "claude", "--environment", "env_01", "--key-file", fifo},
		{"dispatch", "claude", "--environment", "env_01", "--key-file", "-"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan string, 1)
		go func() {
			var stderr bytes.Buffer
			code := run(ctx, fakeBackend, append([]string{"--state-dir", t.TempDir()}, args...), silent, &bytes.Buffer{}, &stderr)
			ended <- fmt.Sprint(code, " ", stderr.String())
		}()
		var writer *os.File // which is there once the FIFO is read, and writes nothing
		for err := error(syscall.ENXIO); slices.Contains(args, fifo) && err != nil; {
			if len(ended) > 0 {
				break
			}
			writer, err = os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		}
		cancel()
		select {
		case said := <-ended:
			if !strings.HasPrefix(said, "1 linus: ") || !strings.Contains(said, "ended while reading ") {
				t.Errorf("%v: %s", args, said)
			}
		case <-time.After(time.Minute):
			t.Errorf("%v: waits for a file that nobody writes", args)
		}
		_ = writer.Close()
	}
}

// What an engine reads again and again is no pipe, and is not waited for.
func TestConfigCheck_NamesAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	code := run(t.Context(), fakeBackend, []string{"--state-dir", t.TempDir(), "--host", "pve", "--set", "PROXMOX_SSH_KEY_PATH=" + fifo, "--set", "PROXMOX_KNOWN_HOSTS=" + fifo, "config", "check"}, strings.NewReader(""), &bytes.Buffer{}, &stderr)
	if code == 0 || strings.Count(stderr.String(), fifo+" is a pipe") != 2 {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

// As a shell's <(command) has it.
func TestSubmit_TakesAManifestFromAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // read only
	go func() {
		_, _ = w.WriteString(`{"tusk": "ls"}`)
		_ = w.Close()
	}()
	var stderr bytes.Buffer
	code := run(t.Context(), fakeBackend, []string{"--state-dir", t.TempDir(), "job", "submit", "-f", fmt.Sprintf("/dev/fd/%d", r.Fd())}, strings.NewReader(""), &bytes.Buffer{}, &stderr)
	if code != exitUsage || !strings.Contains(stderr.String(), "tusk") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}

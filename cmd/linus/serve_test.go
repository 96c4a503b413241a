package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A service without a host is not started again and again: it says where the host is to be
// named, and waits for it.
func TestServe_WaitsForItsHost(t *testing.T) {
	told := notified(t)
	t.Setenv("LINUS_STATE_DIR", t.TempDir())
	t.Setenv("PROXMOX_HOST", "")
	t.Setenv("LINUS_ENV_FILE", "")
	file := filepath.Join(t.TempDir(), "env")
	synctest.Test(t, func(t *testing.T) {
		for _, content := range []string{"", "PROXMOX_HOST=pve\n", "PROXMOX_HOST=pve2\n"} { // the first ends with its context
			ctx, cancel := context.WithCancel(t.Context())
			var said bytes.Buffer
			ended := make(chan int)
			go func() {
				ended <- run(ctx, nil, []string{"serve", "--wait-for", file}, strings.NewReader(""), &bytes.Buffer{}, &said)
			}()
			time.Sleep(time.Hour)
			synctest.Wait()
			select {
			case code := <-ended:
				t.Fatalf("ended with %d: %s", code, said.String())
			default:
			}
			want := 0
			if content == "" {
				cancel()
			} else if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			} else {
				want = exitFailure
			}
			if code := <-ended; code != want || !strings.Contains(said.String(), "PROXMOX_HOST is not set; put it into "+file) {
				t.Errorf("%q: exit code %d: %s", content, code, said.String())
			}
			cancel()
		}
	})
	for range 3 {
		if got := told(); got != "READY=1" {
			t.Errorf("systemd is told %q", got)
		}
	}
}

// notified makes this process a service that systemd waits for, and returns what
// systemd is told, one message after the other.
func notified(t *testing.T) (told func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		message := make([]byte, 100)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := conn.Read(message)
		if err != nil {
			t.Error(err)
		}
		return string(message[:n])
	}
}

package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab"
)

// BenchmarkStreams sends the same bytes into a VM by each of the ways there are.
func BenchmarkStreams(b *testing.B) {
	h := newHost(b, lab.DriverProcess)
	h.cliB(b, nil, "vm", "create", "dev")
	blob := make([]byte, 16<<20)
	_, _ = rand.Read(blob)
	sum := fmt.Sprintf("%x", sha256.Sum256(blob))
	file := filepath.Join(b.TempDir(), "blob")
	if err := os.WriteFile(file, blob, 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("exec", func(b *testing.B) {
		b.SetBytes(int64(len(blob)))
		for b.Loop() {
			if said := h.cliB(b, blob, "job", "exec", "--vm", "dev", "--", "sha256sum"); !strings.HasPrefix(said, sum) {
				b.Fatal(said)
			}
		}
	})
	b.Run("cp", func(b *testing.B) {
		b.SetBytes(int64(len(blob)))
		for b.Loop() {
			h.cliB(b, nil, "vm", "cp", file, "dev:blob")
		}
	})
	for _, files := range []int{1000, 20000} {
		b.Run(fmt.Sprintf("files-%d", files), func(b *testing.B) {
			c := h.connect(b)
			list := make([]any, files)
			for i := range list {
				list[i] = map[string]any{"path": fmt.Sprintf("/srv/many/%d/%d", i/100, i), "content": base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(i)))}
			}
			for b.Loop() {
				id := c.submit(map[string]any{"agentType": "script", "task": "find /srv/many -type f | wc -l", "vm": "dev", "files": list})
				c.endsAs(id, "success", "exit_status")
			}
		})
	}
}

// cliB is cli with stdin, and no failure.
func (h *host) cliB(b *testing.B, stdin []byte, args ...string) string {
	b.Helper()
	cmd := exec.Command(filepath.Join(binDir, "linus"), args...)
	cmd.Env, cmd.Stdin, cmd.Stderr = h.env, bytes.NewReader(stdin), b.Output()
	out, err := cmd.Output()
	if err != nil {
		b.Fatalf("linus %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

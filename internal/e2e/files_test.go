package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// linusWithoutSSH runs a verb on a machine that has no OpenSSH.
func (h *host) linusWithoutSSH(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), args...)
	cmd.Env = append(slices.Clone(h.env), "PATH=/nonexistent")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	err = cmd.Run()
	return out.String(), err
}

// pageFile is the content of a file that is not text.
const pageFile = "a\r\n\x00\xff no end"

// Files of a VM go through the engine: list, print, and directories both ways. The page
// shows them, and has terminals.
func TestFiles_ThroughTheEngine(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process", clientsToken)
	url := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	h.cli(t, "vm", "create", "dev")
	dir := t.TempDir()
	const content = pageFile
	name := "a b;$(reboot)\xff 'c'\n"
	if err := os.MkdirAll(filepath.Join(dir, "in/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in/deep", name), []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"vm", "cp", filepath.Join(dir, "in"), "dev:"},
		{"vm", "cp", filepath.Join(dir, "in"), "dev:other"},
		{"vm", "cp", "dev:in", filepath.Join(dir, "out")},
		{"vm", "cp", "dev:other/deep/" + name, dir},
	} {
		if _, err := h.linusWithoutSSH(t, args...); err != nil {
			t.Fatalf("%q: %v", args, err)
		}
	}
	for _, at := range []string{filepath.Join("out/deep", name), name} {
		data, err := os.ReadFile(filepath.Join(dir, at))
		if err != nil || string(data) != content {
			t.Errorf("%q came back as %q, %v", at, data, err)
		}
	}
	if got, err := h.linusWithoutSSH(t, "vm", "cat", "dev:in/deep/"+name); err != nil || got != content {
		t.Errorf("cat: %q, %v", got, err)
	}
	if got, err := h.linusWithoutSSH(t, "vm", "ls", "dev:in"); err != nil || !strings.Contains(got, "directory  0755") || !strings.HasSuffix(got, " deep\n") {
		t.Errorf("ls: %q, %v", got, err)
	}
	if got, err := h.linusWithoutSSH(t, "vm", "ls", "dev:in/deep", "-o", "json"); err != nil || !strings.Contains(got, `"raw_name_base64"`) || !strings.Contains(got, `"mode": "0640"`) {
		t.Errorf("ls -o json: %q, %v", got, err)
	}
	if _, err := h.linusWithoutSSH(t, "vm", "cat", "dev:/dev/zero"); err == nil {
		t.Error("a device was printed")
	}
	if _, err := h.linusWithoutSSH(t, "vm", "cp", "dev:nothing", dir); err == nil {
		t.Error("what is not there was copied")
	}
	t.Run("OnThePage", func(t *testing.T) { onPage(t, h, url) })
}

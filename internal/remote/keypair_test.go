package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnsureKeyPair_CreatesOnceAndKeepsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "id_ed25519")
	first, err := EnsureKeyPair(path, "linus", nil)
	if err != nil || !strings.HasPrefix(first, "ssh-ed25519 AAAA") || !strings.HasSuffix(first, " linus") {
		t.Fatalf("EnsureKeyPair = %q, %v", first, err)
	}
	second, err := EnsureKeyPair(path, "linus", nil)
	if err != nil || second != first {
		t.Errorf("second = %q, %v; want %q", second, err, first)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file %v, %v; want mode 0600", info, err)
	}
}

func TestEnsureKeyPair_BrokenFileSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "id_ed25519")
	if err := os.WriteFile(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureKeyPair(path, "linus", nil); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("EnsureKeyPair = %v, want what to do", err)
	}
}

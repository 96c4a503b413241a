package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnsureToken_IsMadeOnceAndItsOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http-token")
	first, err := ensureToken(path)
	if err != nil || len(first) < 32 {
		t.Fatalf("ensureToken = %q, %v", first, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if again, err := ensureToken(path); err != nil || again != first {
		t.Errorf("again %q, %v", again, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ensureToken(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("readable by others: %v", err)
	}
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil || os.Chmod(path, 0o600) != nil {
		t.Fatal(err)
	}
	if token, err := ensureToken(path); err == nil {
		t.Errorf("an empty file is a token: %q", token)
	}
}

package daemon

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// An engine that runs for months does not fill the disk with what it says.
func TestEngineLog_IsRotatedWhileItIsWritten(t *testing.T) {
	dir := t.TempDir()
	stderr, err := openLog(logPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close() //nolint:errcheck // a test's
	log := NewEngineLog(dir, stderr)
	line := []byte(strings.Repeat("x", 1<<20-1) + "\n")
	for range 25 {
		if _, err := log.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stderr.WriteString("the last words\n"); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(logPath(dir))
	if err != nil || len(now) != 5<<20+15 || !bytes.HasPrefix(now, line) || !bytes.HasSuffix(now, []byte("the last words\n")) {
		t.Errorf("engine.log has %d bytes, %v", len(now), err)
	}
	if old, err := os.ReadFile(logPath(dir) + ".1"); err != nil || len(old) != 10<<20 {
		t.Errorf("engine.log.1 has %d bytes, %v", len(old), err)
	}
	// The next engine begins with what is there.
	log = NewEngineLog(dir, stderr)
	for range 5 {
		if _, err := log.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(logPath(dir)); err != nil || info.Size() != 1<<20 {
		t.Errorf("the next engine's: %v, %v", info, err)
	}
}

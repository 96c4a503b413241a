package daemon

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
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

// Forms say what is left out is, by the settings.
func TestHTTP_FormsHaveTheDefaults(t *testing.T) {
	_, at := servedBy(t, map[string]string{
		"LINUS_STATE_DIR": t.TempDir(), "CALLBACK_PORT": "0", "HTTP_ADDR": "127.0.0.1:0", "HTTP_TOKEN": "a-token-of-this-test", "DEFAULT_CPU": "7", "DEFAULT_MEMORY": "3G",
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Jar: jar}).PostForm(at+"/login", url.Values{"token": {"a-token-of-this-test"}, "next": {"/jobs/new"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	page, err := io.ReadAll(resp.Body)
	if text := string(page); err != nil || !strings.Contains(text, `placeholder="7"`) || !strings.Contains(text, `placeholder="3G"`) {
		t.Errorf("%s, %v: %.3000s", resp.Status, err, text)
	}
}

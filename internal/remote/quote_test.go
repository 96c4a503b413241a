package remote_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"linus/internal/remote"
)

// FuzzQuote lets a real bash read the quoted words back.
func FuzzQuote(f *testing.F) {
	for _, seed := range []string{"", " ", "'", `"`, "$(id)", "`id`", "a\nb", "\\", "-n", "*", "~", "!x", "é\xff", "a;b", "\r\t", "${HOME}", "#", "a'b\"c$d"} {
		f.Add(seed, "x")
		f.Add("x", seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsRune(a+b, 0) {
			t.Skip("no command line can hold NUL")
		}
		line := remote.EnvLine(map[string]string{"V": a}, "bash", "-c", `printf '%s\0' "$V" "$@"`, "bash", a, b)
		out, err := exec.Command("bash", "-c", line).Output()
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if want := []byte(a + "\x00" + a + "\x00" + b + "\x00"); !bytes.Equal(out, want) {
			t.Errorf("bash read %q as %q, want %q", line, out, want)
		}
	})
}

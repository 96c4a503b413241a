package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A system is renamed in what runs, in what its next boot reads, and where it knows itself; other
// names there stay.
func TestRename_NamesTheSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("hosts", "127.0.0.1 localhost\n127.0.1.1 linus-job-1.lan linus-job-1 linus-job-1 linus-job-12\n", 0o600)
	write("hostname", "#!/bin/sh\nif [ $# = 0 ]; then cat "+dir+"/now; else printf '%s\\n' \"$1\" >"+dir+"/now; fi\n", 0o700)
	write("now", "linus-job-1\n", 0o600)
	program := strings.NewReplacer("/etc/hostname", dir+"/etc-hostname", "/etc/hosts", dir+"/hosts").Replace(rename)
	for range 2 { // it can be done again
		cmd := exec.Command("sh", "-c", program, "linus", "dev1")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for name, want := range map[string]string{
		"now": "dev1\n", "etc-hostname": "dev1\n", "hosts": "127.0.0.1 localhost\n127.0.1.1 dev1.lan dev1 dev1 linus-job-12\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

package remote_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

// A login shell may print anything before the command runs, and any amount of it: the
// start-up files of the other machine's user are not ours.
func TestRun_TellsTheLoginShellsOutputApart(t *testing.T) {
	startup := filepath.Join(t.TempDir(), "startup")
	if err := os.WriteFile(startup, []byte("printf 'welcome\\n\\n%0100000d\\nhost> ' 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sshtest.Start(t, sshtest.Options{Env: []string{"BASH_ENV=" + startup}})
	p := pool(t, options(s))
	out, err := p.Output(t.Context(), remote.Command{Name: "say", Line: "echo one"}, 10)
	if err != nil || string(out) != "one\n" {
		t.Errorf("output = %q, %v", out, err)
	}
	talk, err := p.Begin(t.Context(), remote.Command{Name: "say", Line: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	defer talk.Close()
	if err := talk.Send(t.Context(), strings.NewReader("two\n")); err != nil {
		t.Fatal(err)
	}
	line, err := remote.Receive(t.Context(), talk, func(stdout *bufio.Reader) (string, error) { return stdout.ReadString('\n') })
	if err != nil || line != "two\n" {
		t.Errorf("line = %q, %v", line, err)
	}
}

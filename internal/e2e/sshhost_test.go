package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
)

// ssh and editors reach VMs by name, through the engine: of one's own engine and of a server's. A key
// of this machine is let in for the time, into one's own VMs alone.
func TestSSHConfig_ReachesVMsThroughTheEngine(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, clientsToken)
	url := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	h.cli(t, "vm", "create", "dev")

	// run runs a program as somebody, with a home of their own.
	type person struct {
		home string
		env  []string
	}
	run := func(p person, program string, args ...string) (stdout, stderr string, err error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, args...)
		var out, said strings.Builder
		cmd.Env, cmd.Stdout, cmd.Stderr = p.env, &out, &said
		err = cmd.Run()
		return out.String(), said.String(), err
	}
	does := func(p person, program string, args ...string) string {
		t.Helper()
		out, said, err := run(p, program, args...)
		if err != nil {
			t.Fatalf("%s %q: %v\n%s%s", program, args, err, out, said)
		}
		return out
	}
	ssh := func(p person, args ...string) (string, string, error) {
		return run(p, "ssh", append([]string{"-F", filepath.Join(p.home, ".ssh", "config")}, args...)...)
	}
	operator := person{home: t.TempDir()}
	operator.env = append(slices.Clone(h.env), "HOME="+operator.home)
	user := func(name string) person {
		t.Helper()
		dir := t.TempDir()
		token := ""
		for word := range strings.FieldsSeq(h.cli(t, "token", "create", name)) {
			if strings.HasPrefix(word, "linus_") {
				token = word
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return person{dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LINUS_SERVER=" + url, "LINUS_TOKEN_FILE=" + filepath.Join(dir, "token"), "LINUS_STATE_DIR=" + filepath.Join(dir, "state")}}
	}
	alice, bob := user("alice"), user("bob")
	does(alice, h.linus(), "vm", "create", "hers")

	for _, of := range []struct {
		person
		vm string
	}{{operator, "dev"}, {alice, "hers"}} {
		does(of.person, h.linus(), "vm", "ssh-config", "--install")
		if config, err := os.ReadFile(filepath.Join(of.home, ".ssh", "linus.config")); err != nil || strings.Count(string(config), "Host ") != 1 {
			t.Errorf("not of %s alone: %v\n%s", of.vm, err, config)
		}
		out, said, err := ssh(of.person, of.vm+".linus", "echo", "in;", "cat", ".ssh/authorized_keys")
		if in, keys, _ := strings.Cut(out, "\n"); err != nil || in != "in" || strings.Count(keys, " linus-login-") != 1 || strings.Count(keys, "\n") != 2 {
			t.Fatalf("ssh %s: %v\n%s%s", of.vm, err, out, said)
		}
		// As editors do: connections that last, several at once, with files and ports.
		held := exec.CommandContext(t.Context(), "ssh", "-F", filepath.Join(of.home, ".ssh", "config"), "-o", "ControlMaster=no", of.vm+".linus", "cat")
		held.Env = of.env
		in, err := held.StdinPipe()
		if err == nil {
			err = held.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(of.home, "a file")
		if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		does(of.person, "scp", "-q", "-F", filepath.Join(of.home, ".ssh", "config"), file, of.vm+".linus:there")
		if got := does(of.person, h.linus(), "vm", "ssh", of.vm, "--", "cat", "there"); got != "content" {
			t.Errorf("linus vm ssh %s: %q", of.vm, got)
		}
		_ = in.Close()
		if err := held.Wait(); err != nil {
			t.Errorf("the one that lasts: %v", err)
		}
		// All of it is taken out again.
		for deadline := time.Now().Add(time.Minute); ; {
			keys := does(of.person, h.linus(), "vm", "cat", of.vm+":.ssh/authorized_keys")
			if !strings.Contains(keys, "linus-login") && strings.Count(keys, "\n") == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s lets in: %s", of.vm, keys)
			}
		}
	}

	// Nobody else's key is let in, and whoever has another token is not told that there is a VM.
	block, err := os.ReadFile(filepath.Join(alice.home, ".ssh", "linus.config"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(block), "dev.linus") {
		t.Errorf("alice is told of the operator's VM:\n%s", block)
	}
	for _, args := range [][]string{{"vm", "ssh-config", "hers"}, {"vm", "proxy", "hers"}, {"vm", "ssh", "hers", "--", "true"}} {
		if out, said, err := run(bob, h.linus(), args...); err == nil || !strings.Contains(said, `"hers" is not a VM of ours`) {
			t.Errorf("bob, %q: %v\n%s%s", args, err, out, said)
		}
	}
	// What reads only does not log in.
	reader := person{alice.home, slices.Clone(alice.env)}
	token := filepath.Join(alice.home, "reader")
	for word := range strings.FieldsSeq(h.cli(t, "token", "create", "carol", "--role", "read")) {
		if strings.HasPrefix(word, "linus_") {
			if err := os.WriteFile(token, []byte(word), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	reader.env = append(reader.env, "LINUS_TOKEN_FILE="+token)
	if out, said, err := run(reader, h.linus(), "vm", "proxy", "dev"); err == nil || strings.Contains(out, "SSH-") {
		t.Errorf("a reader: %v\n%s%s", err, out, said)
	}
	does(alice, h.linus(), "vm", "destroy", "hers", "--yes")
	if out, said, err := ssh(alice, "hers.linus", "true"); err == nil || !strings.Contains(said, "is not a VM of ours") {
		t.Errorf("a VM that is gone: %v\n%s%s", err, out, said)
	}
}

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
)

// sshTrap is an ssh_config that says all an attacker, or a careless owner, could
// say in one, and what gives away that it was read.
type sshTrap struct {
	dir    string   // where what it does leaves traces
	port   string   // of the guest's loopback, forwarded back to here
	inside []string // puts a command where this is the user's ssh_config
}

func setSSHTrap(t *testing.T) sshTrap {
	t.Helper()
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("another home for this user needs root and a mount namespace")
	}
	dir, err := os.MkdirTemp("", "trap") // short: sockets are to fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	trap := sshTrap{dir: filepath.Join(dir, "t"), port: freePort(t)}
	home := filepath.Join(dir, "home")
	for _, made := range []string{trap.dir, filepath.Join(home, ".ssh"), filepath.Join(dir, "debian")} {
		if err := os.MkdirAll(made, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf(`Match exec "touch %[1]s/match"
Host *
  ForwardAgent yes
  ForwardX11 yes
  ForwardX11Trusted yes
  PermitLocalCommand yes
  LocalCommand touch %[1]s/local
  KnownHostsCommand /usr/bin/touch %[1]s/known
  ProxyCommand touch %[1]s/proxy
  RemoteForward 127.0.0.1:%[2]s 127.0.0.1:1
  LocalForward %[1]s/forwarded 127.0.0.1:1
  ControlMaster auto
  ControlPath %[1]s/control-%%C
  ControlPersist 60
  SetEnv TRAP=sprung
  Tunnel no
  GSSAPIDelegateCredentials yes
  EnableEscapeCommandline yes
`, trap.dir, trap.port)
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	_, others, _ := strings.Cut(string(users), "\n")
	known := fmt.Sprintf("root:x:0:0::%s:/bin/bash\ndebian:x:0:0::%s:/bin/bash\n%s", home, filepath.Join(dir, "debian"), others)
	for path, text := range map[string]string{filepath.Join(home, ".ssh", "config"): config, filepath.Join(dir, "passwd"): known} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "passwd"), 0o644); err != nil {
		t.Fatal(err)
	}
	trap.inside = []string{"unshare", "-m", "bash", "-c", `mount --bind "$1" /etc/passwd && shift && exec "$@"`, "inside", filepath.Join(dir, "passwd")}
	said, err := exec.Command(trap.inside[0], append(trap.inside[1:], "ssh", "-G", "anywhere")...).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "forwardagent yes") || len(trap.traces(t)) != 1 {
		t.Fatalf("the trap does not work: %v, %q\n%s", err, trap.traces(t), said)
	}
	if err := os.Remove(filepath.Join(trap.dir, "match")); err != nil {
		t.Fatal(err)
	}
	return trap
}

// traces are what the trap's config has left.
func (s sshTrap) traces(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// agent starts an SSH agent for the test and answers its socket.
func agent(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	cmd := exec.CommandContext(t.Context(), "ssh-agent", "-D", "-a", socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	untilDials(t, "unix", socket)
	return socket
}

func untilDials(t *testing.T, network, address string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial(network, address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// realSSHD puts OpenSSH's server beside a process guest's own, with its keys,
// and answers its port: it offers what the guest's does not.
func realSSHD(t *testing.T, h *host, trap sshTrap, vm int, ip string) string {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	guest := fmt.Sprintf("/proc/%d/root", h.vmPID(t, vm))
	for name, from := range map[string]string{"key": guest + "/etc/ssh/ssh_host_ed25519_key", "authorized": guest + "/home/debian/.ssh/authorized_keys"} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config := fmt.Sprintf("ListenAddress %s:%s\nHostKey %[3]s/key\nAuthorizedKeysFile %[3]s/authorized\nPidFile none\nPermitRootLogin yes\n"+
		"StrictModes no\nUsePAM no\nAcceptEnv TRAP\nX11Forwarding yes\nSubsystem sftp internal-sftp\n", ip, port, dir)
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append(trap.inside, "/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "config"))
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	if testing.Verbose() {
		cmd.Stderr = t.Output()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	untilDials(t, "tcp", net.JoinHostPort(ip, port))
	return port
}

// What a user's ssh_config turns on, for hosts they trust, a VM does not get:
// no agent, no display, no forwarded port, no connection left open; and nothing
// in it runs, neither for the VM nor for the host on the way.
func TestHostile_SSHConfigOfTheUserHasNoEffect(t *testing.T) {
	trap := setSSHTrap(t)
	h := newHost(t, lab.DriverProcess)
	h.cli(t, "vm", "create", "dev")
	vm := h.connect(t).call("get_vm", map[string]any{"vm_id": "dev"})
	id, err := strconv.Atoi(fmt.Sprint(vm["vm_id"]))
	if err != nil {
		t.Fatal(err)
	}
	env := append(h.env, "VM_SSH_PORT="+realSSHD(t, h, trap, id, vm["ip"].(string)), "SSH_AUTH_SOCK="+agent(t), "DISPLAY=127.0.0.1:99")
	linus := func(args ...string) *exec.Cmd {
		argv := append(append(trap.inside[1:], filepath.Join(binDir, "linus")), args...)
		cmd := exec.CommandContext(t.Context(), trap.inside[0], argv...)
		cmd.Env = env
		return cmd
	}
	look := fmt.Sprintf(`echo "agent=$SSH_AUTH_SOCK display=$DISPLAY env=$TRAP"; (exec 3<>/dev/tcp/127.0.0.1/%s) 2>/dev/null && echo forwarded; true`, trap.port)
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte("copied"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("ssh", func(t *testing.T) {
		said, err := linus("vm", "ssh", "dev", "--", "bash", "-c", look).CombinedOutput()
		if err != nil || string(said) != "agent= display= env=\n" {
			t.Errorf("%v, %s", err, said)
		}
	})
	t.Run("cp", func(t *testing.T) {
		if said, err := linus("vm", "cp", in, "dev:in").CombinedOutput(); err != nil {
			t.Errorf("%v, %s", err, said)
		}
		if said, err := linus("vm", "cp", "dev:in", in+"2").CombinedOutput(); err != nil {
			t.Errorf("%v, %s", err, said)
		}
		if data, err := os.ReadFile(in + "2"); string(data) != "copied" {
			t.Errorf("%q, %v", data, err)
		}
	})
	t.Run("forward", func(t *testing.T) {
		here := freePort(t)
		cmd := linus("vm", "forward", "dev", here+":1")
		cmd.Stderr = t.Output()
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait() //nolint:errcheck // it is interrupted
		defer cmd.Process.Signal(os.Interrupt)
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != fmt.Sprintf("127.0.0.1:%s is port 1 of VM dev", here) {
			t.Errorf("it says %q", lines.Text())
		}
	})
	if left := trap.traces(t); len(left) > 0 {
		t.Errorf("of the user's ssh_config there was: %q", left)
	}
}

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// agent starts an SSH agent for the test and returns its socket.
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
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
// and returns its port: it offers what the guest's does not.
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
	t.Parallel()
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

// openToOthers are the files and directories below dir that anybody but their
// owner could look into. Links are as open as what they lead to.
func openToOthers(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone meanwhile
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0 {
			found = append(found, fmt.Sprintf("%v %s", info.Mode(), path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// With the most careless umask there is, nothing of the engine's and nothing it
// leaves on the host is open to another user: keys, database, sockets, output,
// artifacts, logs, operations, leases.
func TestHostile_LocalUserSeesNothing(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	h := newHost(t, lab.DriverProcess, "LINUS_SECRET_PLANTED=pl4nted")
	h.cli(t, "vm", "create", "dev")
	h.cli(t, "vm", "ssh", "dev", "--", "true")
	c := h.connect(t)
	m := script(`mkdir out; echo file >out/a; cat; echo done >&2`)
	m["artifacts"], m["stdin"], m["secrets"] = []any{"out/**"}, "open", []any{"PLANTED"}
	id := c.submit(m)
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	hostDir := filepath.Join(h.dir, "home", "linus")
	if _, err := os.Stat(hostDir); err != nil {
		t.Fatal(err)
	}
	look := func(when string) {
		for _, dir := range []string{h.state, hostDir} {
			if found := openToOthers(t, dir); len(found) > 0 {
				t.Errorf("%s others see:\n%s", when, strings.Join(found, "\n"))
			}
		}
	}
	look("while the task runs")
	c.call("interact_with_job", map[string]any{"job_id": id, "input": "typed\n", "close": true})
	c.endsAs(id, "success", "exit_status")
	look("afterwards")
}

// Where the state directory's path is too long for a socket it goes to one of a
// predictable name. What somebody has put there before is not followed.
func TestHostile_SocketDirectoryPlantedByAnother(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("a /tmp of its own needs root and a mount namespace")
	}
	for name, plant := range map[string]string{
		"link":              `ln -s "$1" /tmp/linus-0`,
		"open directory":    `mkdir -m 0777 /tmp/linus-0`,
		"another's":         `mkdir -m 0700 /tmp/linus-0; chown 65534 /tmp/linus-0`,
		"link to a missing": `ln -s "$1/made" /tmp/linus-0`,
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("/var/tmp", "linus-e2e")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir) //nolint:errcheck // the test's
			victim := filepath.Join(dir, "victim")
			if err := os.Mkdir(victim, 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "unshare", "-m", "bash", "-c",
				`bin=$(mktemp -d -p /dev/shm) && cp "$2" "$bin/linus" && mount -t tmpfs -o mode=1777 private /tmp && `+plant+`
timeout 20 "$bin/linus" serve; code=$?; ls -A "$1" /tmp/linus-0/ >&2; rm -rf "$bin"; exit $code`, "inside", victim, filepath.Join(binDir, "linus"))
			cmd.Env = append(os.Environ(), "LINUS_STATE_DIR="+filepath.Join(dir, strings.Repeat("long/", 20)+"state"), "PROXMOX_HOST=127.0.0.1",
				"CALLBACK_PORT=0", "CALLBACK_URL=http://127.0.0.1:1")
			said, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() == 124 || !strings.Contains(string(said), "belongs to another user, or others have access to it") {
				t.Errorf("%v\n%s", err, said)
			}
			if left, _ := os.ReadDir(victim); len(left) > 0 || strings.Contains(string(said), ".sock\n") {
				t.Errorf("it was followed: %v\n%s", left, said)
			}
		})
	}
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"linus/internal/lab/netns"
	"linus/internal/lab/sshserver"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// privsepDir is where sshd, as root, locks up its unprivileged process. The path is compiled in.
const privsepDir = "/run/sshd"

// startSSHD starts the lab's sshd, a real OpenSSH with its own keys and config, and returns when it
// answers. For the qemu driver it runs in the lab's network namespace, at the address that Up has
// set. For the process driver it runs on loopback, at a port that startSSHD stores in
// s.Config.SSHPort, with SSHHost, for the caller to save. It is idempotent.
func startSSHD(ctx context.Context, s *state.State) error {
	pidFile := s.Path("ssh", "pid")
	if _, running := sys.ReadPidFile(pidFile); running {
		return nil
	}
	unlock, err := sys.LockRun() // until sshd runs, nobody else may take its port or remove its directory
	if err != nil {
		return err
	}
	defer unlock()
	if err := configureSSHD(ctx, s, os.Geteuid() == 0 && rootIsLocked()); err != nil {
		return err
	}
	if err := makePrivsepDir(); err != nil {
		return err
	}
	daemonPid, log := s.Path("ssh", "sshd.pid"), s.Path("ssh", "log")
	start := func() error {
		_, err := sys.Run(ctx, "sshd", "-f", s.Path("ssh", "sshd_config"), "-E", log)
		return err
	}
	if s.Config.Driver == state.DriverQemu {
		err = netns.Do(netns.Of(s).Path(), start)
	} else {
		err = inOwnMounts(s, start)
	}
	if err == nil {
		err = waitSSHD(ctx, net.JoinHostPort(s.Config.SSHHost, strconv.Itoa(s.Config.SSHPort)), daemonPid)
	}
	if err != nil {
		return fmt.Errorf("start the lab's sshd: %w%s", err, lastLine(log))
	}
	return sys.AdoptPidFile(daemonPid, pidFile)
}

// configureSSHD writes everything an sshd needs to start.
func configureSSHD(ctx context.Context, s *state.State, pam bool) error {
	for _, dir := range []string{s.SSHDir(), s.HomeDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if s.Config.Driver == state.DriverProcess && s.Config.Cluster == "" {
		if err := chooseSSHPort(ctx, s, "127.0.0.1"); err != nil {
			return err
		}
	}
	if err := writeSSHKeys(s); err != nil {
		return fmt.Errorf("create the lab's SSH keys: %w", err)
	}
	login, err := user.Current()
	if err != nil {
		return err
	}
	if err := os.RemoveAll(s.Path("ssh", "sshd.pid")); err != nil {
		return err
	}
	return sys.WriteFile(s.Path("ssh", "sshd_config"), []byte(sshdConfig(s, login.Username, pam)), 0o600)
}

// stopSSHD ends the lab's sshd, its sessions, and everything they started.
func stopSSHD(s *state.State) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := sys.KillPidFile(ctx, s.Path("ssh", "pid"), syscall.SIGTERM); err != nil {
		return err
	}
	if err := killSessions(ctx, s); err != nil {
		return err
	}
	return removePrivsepDir()
}

// sshdConfig is a Proxmox host's sshd config in all that matters to clients (sftp, forwarding, real
// session limits), with the lab's commands first in PATH and one key that may log in.
func sshdConfig(s *state.State, login string, pam bool) string {
	yesNo := map[bool]string{true: "yes", false: "no"}
	var quoted []string
	for _, variable := range hostEnv(s) {
		quoted = append(quoted, sshdQuote(variable))
	}
	hostKeys := "HostKey " + sshdQuote(s.Path("ssh", "host_ed25519"))
	if s.Config.Cluster != "" {
		hostKeys += "\nHostKey " + sshdQuote(s.Path("ssh", "host_rsa"))
	}
	return strings.Join([]string{
		"ListenAddress " + net.JoinHostPort(s.Config.SSHHost, strconv.Itoa(s.Config.SSHPort)),
		hostKeys,
		"PidFile " + sshdQuote(s.Path("ssh", "sshd.pid")),
		"AuthorizedKeysFile " + sshdExpanded(s.Path("ssh", "authorized_keys")),
		"AuthenticationMethods publickey",
		"PasswordAuthentication no",
		"KbdInteractiveAuthentication no",
		"PermitRootLogin prohibit-password",
		"AllowUsers " + login,
		"StrictModes no", // the state directory may lie under /tmp
		"UsePAM " + yesNo[pam],
		"UseDNS no",
		"PrintMotd no",
		"PrintLastLog no",
		"X11Forwarding no",
		"AllowTcpForwarding yes",
		"MaxSessions 10",
		"MaxStartups 10:30:100",
		"SetEnv " + strings.Join(quoted, " "),
		"Subsystem sftp internal-sftp -d " + sshdExpanded(s.HomeDir()),
		"",
	}, "\n")
}

func sshdQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// sshdExpanded quotes an argument in which sshd expands % tokens.
func sshdExpanded(text string) string { return sshdQuote(strings.ReplaceAll(text, "%", "%%")) }

// writeSSHKeys creates the host's and the client's keys if they do not exist, and the files that
// make each known to the other. Cluster nodes also have an RSA key, the only host key that Proxmox
// publishes to the other nodes.
func writeSSHKeys(s *state.State) error {
	host, err := sshserver.Key(s.Path("ssh", "host_ed25519"), "pvelab host", false)
	if err != nil {
		return err
	}
	client, err := sshserver.Key(s.ClientKeyPath(), "pvelab client", false)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(s.Config.SSHHost, strconv.Itoa(s.Config.SSHPort))
	known := knownhosts.Line([]string{address}, host.PublicKey()) + "\n"
	if s.Config.Cluster != "" {
		rsaHost, err := sshserver.Key(s.Path("ssh", "host_rsa"), "pvelab host", true)
		if err != nil {
			return err
		}
		known += knownhosts.Line([]string{address}, rsaHost.PublicKey()) + "\n"
		if err := tellHostKey(s, rsaHost); err != nil {
			return err
		}
	}
	trusted, err := os.ReadFile(s.KnownHostsPath())
	if err != nil || !strings.Contains(string(trusted), known) {
		trusted = []byte(known) // otherwise keep the file: it may list other hosts as well
	}
	files := map[string][]byte{
		s.Path("ssh", "authorized_keys"): []byte(sshserver.Public(client) + "\n"),
		s.ClientKeyPath() + ".pub":       []byte(sshserver.Public(client) + "\n"),
		s.KnownHostsPath():               trusted,
	}
	for path, content := range files {
		if err := sys.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// tellHostKey writes a node's host key where the other nodes find it, as `pvecm updatecerts` does.
// A node without quorum cannot write it.
func tellHostKey(s *state.State, key ssh.Signer) error {
	path := s.Path("etc", "pve", "nodes", s.Config.Node, "ssh_known_hosts")
	line := s.Config.Node + " " + sshserver.Public(key)
	if told, err := os.ReadFile(path); err == nil && string(told) == line {
		return nil
	}
	return sys.WriteFile(path, []byte(line), 0o644)
}

// chooseSSHPort keeps an earlier Up's port while it is free, or takes the first port, from one
// derived from the state directory on, that is free on all hosts. The first host becomes the lab's.
func chooseSSHPort(ctx context.Context, s *state.State, hosts ...string) error {
	const first, count = 20000, 10000
	s.Config.SSHHost = hosts[0]
	candidates := []int{s.Config.SSHPort}
	for n := range 100 {
		candidates = append(candidates, first+(int(s.Hash()%count)+n)%count)
	}
	for _, port := range candidates {
		if port != 0 && !slices.ContainsFunc(hosts, func(host string) bool { return !isFree(ctx, host, port) }) {
			s.Config.SSHPort = port
			return nil
		}
	}
	return fmt.Errorf("no free port for the lab's sshd on %s", strings.Join(hosts, ", "))
}

func isFree(ctx context.Context, host string, port int) bool {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	listener.Close()
	return true
}

// rootIsLocked reports whether root's account is locked (`!` in shadow), as on machines that are
// administered with sudo. sshd then refuses root's keys as well, unless PAM decides about accounts.
func rootIsLocked() bool {
	raw, err := os.ReadFile("/etc/shadow")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "root:!") {
			return true
		}
	}
	return false
}

// privsepNote marks a privsepDir that a lab made.
const privsepNote = privsepDir + "/made-by-pvelab"

// makePrivsepDir creates sshd's directory if no package has.
func makePrivsepDir() error {
	if os.Geteuid() != 0 {
		return nil
	}
	err := os.Mkdir(privsepDir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(privsepNote, nil, 0o600)
}

// removePrivsepDir removes privsepDir if a lab made it and no sshd of this machine still needs it.
func removePrivsepDir() error {
	unlock, err := sys.LockRun()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(privsepNote); err != nil {
		return nil
	}
	running, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	for _, link := range running {
		if exe, err := os.Readlink(link); err == nil && filepath.Base(exe) == "sshd" {
			return nil
		}
	}
	return os.RemoveAll(privsepDir)
}

// waitSSHD returns when sshd has written its pid file, which it does once it listens, and greets.
func waitSSHD(ctx context.Context, address, pidFile string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var last error
	for {
		if _, last = os.Stat(pidFile); last == nil {
			if last = sshGreets(ctx, address); last == nil {
				return nil
			}
		}
		if sleep.For(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("no answer at %s: %w", address, last)
		}
	}
}

// sshGreets returns nil if an SSH server responds at the address.
func sshGreets(ctx context.Context, address string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	banner := make([]byte, 4)
	if _, err := conn.Read(banner); err != nil {
		return err
	}
	if string(banner) != "SSH-" {
		return fmt.Errorf("%s is no SSH server", address)
	}
	return nil
}

// lastLine returns ": " and the last line of a log, for an error's text.
func lastLine(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if lines[len(lines)-1] == "" {
		return ""
	}
	return ": " + strings.TrimSpace(lines[len(lines)-1])
}

// sessionVariable marks what was started through the lab's sshd. PVELAB_DIR cannot serve for that,
// because people export it in their own shells.
const sessionVariable = "PVELAB_SESSION"

// killSessions ends what was started through the lab's sshd, and sshd's own processes, including
// those of an sshd that was itself killed.
func killSessions(ctx context.Context, s *state.State) error {
	marker, log := "\x00"+sessionVariable+"="+s.Dir+"\x00", s.Path("ssh", "log")
	return sys.KillProcesses(ctx, func(proc string) bool {
		// What a session starts has the marker in its environment. sshd overwrites its own
		// environment with its process title, but keeps the lab's log open.
		if raw, err := os.ReadFile(filepath.Join(proc, "environ")); err == nil &&
			strings.Contains("\x00"+string(raw), marker) {
			return true
		}
		exe, err := os.Readlink(filepath.Join(proc, "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "sshd") {
			return false
		}
		return sys.HasOpen(proc, log)
	})
}

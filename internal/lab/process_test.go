package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/agent"
	"linus/internal/lab/process"
	"linus/internal/lab/sshserver"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// command is one of the lab's commands as a process of its own.
func (l *Lab) command(t *testing.T, tool string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(l.BinDir(), tool), args...)
	cmd.Env = append(os.Environ(), "PVELAB_DIR="+l.Dir)
	return cmd
}

// address asks the guest's agent for the address of net0's card.
func (l *Lab) address(t *testing.T, id int) string {
	t.Helper()
	var cards []struct {
		MAC       string `json:"hardware-address"`
		Addresses []struct {
			IP string `json:"ip-address"`
		} `json:"ip-addresses"`
	}
	out := l.must(t, fmt.Sprintf("qm guest cmd %d network-get-interfaces", id))
	if err := json.Unmarshal([]byte(out), &cards); err != nil {
		t.Fatal(err)
	}
	for _, card := range cards {
		if strings.EqualFold(card.MAC, l.conf(t, id).MAC()) {
			return card.Addresses[0].IP
		}
	}
	t.Fatalf("no card with net0's address in %s", out)
	return ""
}

// boot clones the template, starts the clone and returns a connection to it.
func (l *Lab) boot(t *testing.T, id int) *ssh.Client {
	t.Helper()
	l.must(t, fmt.Sprintf("qm clone 9000 %d --name guest-%d", id, id))
	l.must(t, fmt.Sprintf("qm set %d --sshkeys %s.pub", id, l.ClientKeyPath()))
	l.must(t, fmt.Sprintf("qm start %d", id))
	return l.login(t, id, process.DefaultUser)
}

// login connects to a guest, with the host key its agent tells.
func (l *Lab) login(t *testing.T, id int, user string) *ssh.Client {
	t.Helper()
	client, err := l.dial(t, id, user)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func (l *Lab) dial(t *testing.T, id int, user string) (*ssh.Client, error) {
	t.Helper()
	var told struct {
		Out string `json:"out-data"`
	}
	raw := l.must(t, fmt.Sprintf("qm guest exec %d -- cat /etc/ssh/ssh_host_ed25519_key.pub", id))
	if err := json.Unmarshal([]byte(raw), &told); err != nil {
		t.Fatal(err)
	}
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(told.Out))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(l.ClientKeyPath())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return ssh.Dial("tcp", net.JoinHostPort(l.address(t, id), strconv.Itoa(l.Config.GuestPort)), &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(hostKey), Timeout: 10 * time.Second,
	})
}

func remote(t *testing.T, client *ssh.Client, command string) string {
	t.Helper()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	out, err := session.CombinedOutput(command)
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestProcess_FromBootToDestroy(t *testing.T) {
	l := newLab(t)
	start := time.Now()
	client := l.boot(t, 100)
	t.Logf("from clone to SSH: %s", time.Since(start))
	checks := []struct{ command, want string }{
		{"hostname", "guest-100"},
		{"whoami; echo $HOME; pwd", "debian\n/home/debian\n/home/debian"},
		{"sudo -n -- bash -c 'echo $HOME $0' x", "/home/debian x"},
		{"cloud-init status --wait", "status: done"},
		{"test -s /var/lib/cloud/data/instance-id && echo there", "there"},
		{"mkdir -p /opt/job-runner /var/lib/linus/job && ls -d /opt/* /var/lib/linus/*", "/opt/job-runner\n/var/lib/linus/job"},
		{"touch /usr/x /.host/etc/x 2>/dev/null || echo refused", "refused"},
		{"echo $$ > /run/mine; cat /proc/1/comm", "pvelab"},
		{"cat /proc/mounts | grep -c netns || true", "0"},
		{"kill -TERM 1; kill -HUP 1; kill -KILL 1; echo alive", "alive"},
		{"exec 2>/dev/null; bash -c 'kill -TERM $$'; echo $?", "143"},
	}
	for _, check := range checks {
		if got := remote(t, client, check.command); got != check.want {
			t.Errorf("%s: %q, want %q", check.command, got, check.want)
		}
	}
	pid, _ := l.Pid(100)
	if rss := sys.ResidentBytes(pid) >> 20; rss > 20 {
		t.Errorf("the guest takes %d MiB", rss)
	}
	l.must(t, "qm stop 100")
	if _, running := sys.ProcessStart(pid); running {
		t.Errorf("process %d still runs", pid)
	}
	l.must(t, "qm destroy 100 --purge 1 --destroy-unreferenced-disks 1")
	if left, _ := filepath.Glob(filepath.Join(l.Dir, "storage", "local-lvm", "*100*")); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

func TestProcess_SessionsAreLikeOpenSSH(t *testing.T) {
	l := newLab(t)
	client := l.boot(t, 100)
	newSession := func() *ssh.Session {
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		return session
	}
	t.Run("exit status", func(t *testing.T) {
		var exit *ssh.ExitError
		if err := newSession().Run("exit 7"); !errors.As(err, &exit) || exit.ExitStatus() != 7 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("exit signal", func(t *testing.T) {
		var exit *ssh.ExitError
		if err := newSession().Run("kill -TERM $$"); !errors.As(err, &exit) || exit.Signal() != "TERM" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("binary streams stay apart", func(t *testing.T) {
		session := newSession()
		session.Stdin = strings.NewReader("a\x00\xff\n")
		var errs strings.Builder
		session.Stderr = &errs
		out, err := session.Output("cat; echo e >&2")
		if err != nil || string(out) != "a\x00\xff\n" || errs.String() != "e\n" {
			t.Errorf("got %q, %q, %v", out, errs.String(), err)
		}
	})
	t.Run("a signal request does nothing", func(t *testing.T) {
		session := newSession()
		if err := session.Start("sleep 0.2; exit 4"); err != nil {
			t.Fatal(err)
		}
		if err := session.Signal(ssh.SIGTERM); err != nil {
			t.Errorf("signal: %v", err)
		}
		var exit *ssh.ExitError
		if err := session.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 4 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a closed session leaves its process running", func(t *testing.T) {
		session := newSession()
		if err := session.Start("sleep 0.3; touch /tmp/survived"); err != nil {
			t.Fatal(err)
		}
		session.Close()
		remote(t, client, "for i in $(seq 100); do [ -e /tmp/survived ] && exit 0; sleep 0.1; done; exit 1")
	})
	t.Run("environment is refused but for the locale", func(t *testing.T) {
		session := newSession()
		if err := session.Setenv("SECRET", "x"); err == nil {
			t.Error("SECRET was accepted")
		}
		if err := session.Setenv("LC_ALL", "C"); err != nil {
			t.Error(err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		session := newSession()
		if err := session.RequestPty("xterm", 30, 100, nil); err != nil {
			t.Fatal(err)
		}
		out, err := session.Output("tty; stty size; echo $TERM")
		if err != nil || !strings.Contains(string(out), "/dev/pts/") || !strings.Contains(string(out), "30 100\r\nxterm") {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("sftp", func(t *testing.T) {
		files, err := sftp.NewClient(client)
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		f, err := files.Create("/opt/upload")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("bytes")); err != nil {
			t.Error(err)
		}
		f.Close()
		if got := remote(t, client, "cat /opt/upload"); got != "bytes" {
			t.Errorf("the guest reads %q", got)
		}
	})
	t.Run("eleven sessions are one too many", func(t *testing.T) {
		other := l.login(t, 100, process.DefaultUser)
		var err error
		for range sshserver.MaxSessions + 1 {
			var session *ssh.Session
			if session, err = other.NewSession(); err == nil {
				defer session.Close()
			}
		}
		if err == nil {
			t.Error("all were opened")
		}
	})
	t.Run("forwarding, to the machine and back to the client from loopback only", func(t *testing.T) {
		other := l.login(t, 100, process.DefaultUser)
		back, err := other.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for conn, err := back.Accept(); err == nil; conn, err = back.Accept() {
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}
		}()
		port := back.Addr().(*net.TCPAddr).Port
		got := remote(t, client, fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; echo there and back >&3; head -n 1 <&3", port))
		if got != "there and back" {
			t.Errorf("back to the client: %q", got)
		}
		got = remote(t, client, fmt.Sprintf("(exec 3<>/dev/tcp/%s/%d) 2>/dev/null || echo refused", l.address(t, 100), port))
		if got != "refused" {
			t.Errorf("on the guest's own address: %q", got)
		}
		out, err := other.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(out, "round trip")
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || line != "round trip\n" {
			t.Errorf("forwarded: %q, %v", line, err)
		}
		other.Close() // with out still open
		remote(t, client, fmt.Sprintf("for i in $(seq 50); do (exec 3<>/dev/tcp/127.0.0.1/%d) 2>/dev/null || exit 0; sleep 0.1; done; exit 1", port))
	})
	t.Run("forwarding switched off in sshd_config", func(t *testing.T) {
		remote(t, client, "sudo -n sh -c 'mkdir -p /etc/ssh; echo AllowTcpForwarding no >>/etc/ssh/sshd_config'")
		if back, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
			back.Close()
			t.Error("listening back was allowed")
		}
		if out, err := client.Dial("tcp", "127.0.0.1:22"); err == nil {
			out.Close()
			t.Error("forwarding was allowed")
		}
	})
	t.Run("another user is not let in", func(t *testing.T) {
		if _, err := l.dial(t, 100, "root"); err == nil {
			t.Error("root was let in")
		}
	})
}

func TestProcess_RebootKeepsFilesAndEndsProcesses(t *testing.T) {
	l := newLab(t)
	client := l.boot(t, 100)
	if got := remote(t, client, ". /etc/os-release; echo ${ID:-unknown}"); got == "unknown" {
		t.Error("the guest does not know its system")
	}
	before := remote(t, client, "touch /opt/kept /run/gone /tmp/gone; (sleep 1000 </dev/null >/dev/null 2>&1 &) ; cat /proc/sys/kernel/random/boot_id")
	l.must(t, "qm guest exec 100 --synchronous 0 -- reboot")
	deadline := time.Now().Add(time.Minute)
	for {
		r := l.run(t, "qm guest exec 100 -- cat /proc/sys/kernel/random/boot_id")
		if r.code == 0 && strings.Contains(r.out, "out-data") && !strings.Contains(r.out, before) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no reboot seen: %+v", r)
		}
	}
	client = l.login(t, 100, process.DefaultUser)
	if got := remote(t, client, "ls /opt; ls /run/gone /tmp/gone 2>/dev/null; pgrep -x sleep; true"); got != "kept" {
		t.Errorf("after the reboot: %q", got)
	}
}

func TestProcess_SurvivesItsStarterAndDownAfterKill(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	if out, err := l.command(t, "qm", "start", "100").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid, running := l.Pid(100)
	if !running {
		t.Fatal("the VM ended with the command that started it")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := sys.WaitPidFile(t.Context(), filepath.Join(l.RunDir(100), "pid")); err != nil {
		t.Fatal(err)
	}
	if got := l.must(t, "qm status 100"); got != "status: stopped\n" {
		t.Errorf("status of a killed VM: %q", got)
	}
	l.must(t, "qm start 100")
	// The rest is newLab's clean-up: down with a VM running.
}

// A starter that dies between making the guest's process and recording it
// sends no settings.
func TestGuest_EndsWithoutSettings(t *testing.T) {
	binary, err := pvelabBinary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "guest", "100", t.TempDir())
	cmd.SysProcAttr = process.Namespaces()
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the starter is gone") {
		t.Errorf("got %v: %s", err, out)
	}
}

func TestGuest_RefusesToRunOutsideANamespace(t *testing.T) {
	if err := process.Run(strings.NewReader("{}")); err == nil || !strings.Contains(err.Error(), "PID namespace") {
		t.Errorf("got %v", err)
	}
}

func TestProcess_ShutdownAndItsTimeout(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	l.setFault(t, state.FaultShutdownIgnored, "1")
	if r := l.run(t, "qm shutdown 100 --timeout 1"); r.err != "VM quit/powerdown failed - got timeout\n" {
		t.Errorf("got %+v", r)
	}
	if got := l.must(t, "qm status 100"); got != "status: running\n" {
		t.Errorf("after the timeout: %q", got)
	}
	l.setFault(t, state.FaultShutdownIgnored, "")
	l.must(t, "qm shutdown 100")
	if got := l.must(t, "qm status 100"); got != "status: stopped\n" {
		t.Errorf("after the shutdown: %q", got)
	}
}

func TestProcess_ShutdownRightAfterStart(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	for range 10 {
		l.must(t, "qm start 100")
		l.must(t, "qm shutdown 100 --timeout 10")
	}
}

func TestProcess_RunningVMIsRefused(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	for line, want := range map[string]string{
		"qm start 100":    "VM 100 already running\n",
		"qm template 100": "you can't convert a VM to template if VM is running\n",
	} {
		if r := l.run(t, line); r.code != 255 || r.err != want {
			t.Errorf("%s: %+v", line, r)
		}
	}
}

func TestAgent(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	tests := []struct{ name, line, stdin, want string }{
		{"ping", "qm guest cmd 100 ping", "", "{}\n"},
		{"exit code is in the answer", "qm guest exec 100 -- bash -c exit\t3", "", "{\n   \"exitcode\" : 3,\n   \"exited\" : 1\n}\n"},
		{"stdin", "qm guest exec 100 --pass-stdin 1 -- cat", "hello", "{\n   \"exitcode\" : 0,\n   \"exited\" : 1,\n   \"out-data\" : \"hello\"\n}\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			words := strings.Fields(tt.line)
			if strings.Contains(tt.line, "\t") {
				words = []string{"qm", "guest", "exec", "100", "--", "bash", "-c", "exit 3"}
			}
			if r := l.runArgs(t, words, tt.stdin); r.code != 0 || r.out != tt.want {
				t.Errorf("got %+v, want %q", r, tt.want)
			}
		})
	}
	t.Run("a command that takes too long leaves its pid", func(t *testing.T) {
		out := l.must(t, "qm guest exec 100 --timeout 1 -- sleep 30")
		var left map[string]int
		if err := json.Unmarshal([]byte(out), &left); err != nil || left["pid"] == 0 || len(left) != 1 {
			t.Errorf("got %q", out)
		}
	})
	t.Run("of a flood it keeps the beginning, and says so", func(t *testing.T) {
		r := l.runArgs(t, []string{"qm", "guest", "exec", "100", "--", "sh", "-c", "yes | head -c 17000000"}, "")
		var got struct {
			Out string `json:"out-data"`
			Cut int    `json:"out-truncated"`
		}
		if err := json.Unmarshal([]byte(r.out), &got); err != nil || len(got.Out) != 16<<20 || got.Cut != 1 {
			t.Errorf("%d bytes, cut %d, %v", len(got.Out), got.Cut, err)
		}
	})
	t.Run("extra interfaces come first", func(t *testing.T) {
		l.setFault(t, state.FaultExtraInterfaces, "1")
		defer l.setFault(t, state.FaultExtraInterfaces, "")
		out := l.must(t, "qm guest cmd 100 network-get-interfaces")
		if docker, right := strings.Index(out, "172.17.0.1"), strings.Index(out, "127.77."); docker < 0 || docker > right {
			t.Errorf("got %s", out)
		}
		if !strings.HasPrefix(l.address(t, 100), "127.77.") {
			t.Error("the right one cannot be told")
		}
	})
	t.Run("silent", func(t *testing.T) {
		l.setFault(t, state.FaultAgentSilent, "1")
		start := time.Now()
		r := l.run(t, "qm guest cmd 100 ping")
		if r.code != 255 || r.err != "QEMU guest agent is not running\n" || time.Since(start) < agent.PingTimeout {
			t.Errorf("got %+v after %s", r, time.Since(start))
		}
	})
}

func TestProcess_ManyAtOnce(t *testing.T) {
	l := newLab(t)
	const many = 30
	start := time.Now()
	for id := 100; id < 100+many; id++ {
		l.must(t, fmt.Sprintf("qm clone 9000 %d", id))
		l.must(t, fmt.Sprintf("qm start %d", id))
	}
	t.Logf("%d guests: %s", many, time.Since(start))
	seen := map[string]bool{}
	for id := 100; id < 100+many; id++ {
		seen[l.address(t, id)] = true
	}
	if len(seen) != many {
		t.Errorf("%d guests have %d addresses", many, len(seen))
	}
	start = time.Now()
	if err := l.Down(context.Background()); err != nil {
		t.Error(err)
	}
	t.Logf("down: %s", time.Since(start))
}

func TestProcess_StaticAddress(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	want := process.Address(l.State, 4242).String()
	l.must(t, "qm set 100 --ipconfig0 ip="+want+"/8,gw=127.0.0.1")
	l.must(t, "qm start 100")
	if got := l.address(t, 100); got != want {
		t.Errorf("the guest is at %s, want %s", got, want)
	}
}

// The host's ip answers for guests on the loopback as for machines on its bridge,
// in iproute2's words.
func TestProcess_NeighboursAreOnTheBridge(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	l.must(t, "qm start 100")
	address := l.address(t, 100)
	conf, err := l.LoadConf(100)
	if err != nil {
		t.Fatal(err)
	}
	mac := strings.ToLower(conf.MAC())
	ask := func(line string) string {
		r := l.run(t, line)
		return strings.TrimSpace(r.out + r.err)
	}
	is := func(line, want string) {
		t.Helper()
		if got := ask(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	is("ip -o route get "+address, address+` dev vmbr0 src 127.0.0.1 uid 0 \    cache`)
	is("ip neigh show to "+address+" dev vmbr0", address+" lladdr "+mac+" REACHABLE")
	is("ip -4 neigh show", address+" dev vmbr0 lladdr "+mac+" REACHABLE")
	is("ip -6 neigh show", "")
	is("ip -o route get 127.0.0.1", `local 127.0.0.1 dev lo src 127.0.0.1 uid 0 \    cache <local>`)
	is("ip -o route get 10.9.9.9", "RTNETLINK answers: Network is unreachable")
	l.setFault(t, state.FaultNeighbourMAC, "02:00:00:00:00:01")
	is("ip neigh show to "+address+" dev vmbr0", address+" lladdr 02:00:00:00:00:01 REACHABLE")
	l.setFault(t, state.FaultNeighbourMAC, "")
	l.setFault(t, state.FaultNeighbourAddress, "127.9.9.9")
	is("ip -4 neigh show", "127.9.9.9 dev vmbr0 lladdr "+mac+" REACHABLE")
	l.setFault(t, state.FaultNeighbourAddress, "")
	l.setFault(t, state.FaultRouted, "1")
	is("ip -o route get "+address, address+` via 127.0.0.254 dev eth0 src 127.0.0.1 uid 0 \    cache`)
	l.setFault(t, state.FaultRouted, "")
	l.must(t, "qm stop 100")
	is("ip -4 neigh show", "")
}

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/tlstest"
)

// laptop is another machine: a network namespace with one wire to this one, and a home
// that has a token and a certificate and nothing else of linus.
type laptop struct {
	space string
	here  string // this machine's address on the wire
	home  string
	flags []string
}

func newLaptop(t *testing.T) *laptop {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace is root's to make")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	n := os.Getpid() % 16384
	m := &laptop{space: fmt.Sprintf("linus-m%d", n), home: t.TempDir()}
	m.here = fmt.Sprintf("10.212.%d.%d", n/64, n%64*4+1)
	there := fmt.Sprintf("10.212.%d.%d", n/64, n%64*4+2)
	wire := fmt.Sprintf("lm%d", n)
	m.ip(t, "netns add "+m.space)
	t.Cleanup(func() { m.ip(t, "netns delete "+m.space) }) // with it goes the wire
	m.ip(t, "link add "+wire+" type veth peer name wire netns "+m.space)
	m.ip(t, "addr add "+m.here+"/30 dev "+wire)
	m.ip(t, "link set "+wire+" up")
	m.ip(t, "-n "+m.space+" addr add "+there+"/30 dev wire")
	m.ip(t, "-n "+m.space+" link set lo up")
	m.ip(t, "-n "+m.space+" link set wire up")
	return m
}

func (m *laptop) ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil { //nolint:noctx // also at the test's end
		t.Fatalf("ip %s: %v, %s", args, err, out)
	}
}

// command is a program that runs on the machine.
func (m *laptop) command(t *testing.T, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", m.space}, argv...)...)
	cmd.Dir = m.home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.home}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

func (m *laptop) linus(t *testing.T, args ...string) *exec.Cmd {
	return m.command(t, append(append([]string{filepath.Join(binDir, "linus")}, m.flags...), args...)...)
}

// cli runs linus on the machine, and returns its stdout, and where it is to fail its stderr,
// too.
func (m *laptop) cli(t *testing.T, code int, stdin string, args ...string) string {
	t.Helper()
	cmd := m.linus(t, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("linus %s exits with %d, want %d: %s%s", strings.Join(args, " "), got, code, out, &stderr)
	}
	if code != 0 {
		out = append(out, stderr.Bytes()...)
	}
	return string(out)
}

// A machine that has the program, a token and a certificate uses the engine over TLS as
// the engine's own does.
func TestServer_FromAnotherMachine(t *testing.T) {
	t.Parallel()
	m := newLaptop(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	tlstest.New(t, m.here).Write(t, cert, key)
	h := newHost(t, lab.DriverProcess, "HTTP_TLS_CERT="+cert, "HTTP_TLS_KEY="+key)
	url := strings.TrimSuffix(h.serveAt(t, m.here+":0"), "/mcp")
	token := filepath.Join(m.home, "token")
	words := regexp.MustCompile(`linus_\S+`).FindString(h.cli(t, "token", "create", "laptop", "--role", "run"))
	if err := os.WriteFile(token, []byte(words+"\n"), 0o600); err != nil || words == "" {
		t.Fatal(words, err)
	}
	says := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}

	m.flags = []string{"--server", url, "--token-file", token}
	says(m.cli(t, 1, "", "job", "list"), "certificate")
	m.flags = append(m.flags, "--ca-file", cert)

	says(m.cli(t, 3, "", "job", "exec", "--", "sh", "-c", "echo out; exit 3"), "out\n")
	id := strings.TrimSpace(m.cli(t, 0, "", "job", "submit", "--", "echo", "hello"))
	m.cli(t, 0, "", "job", "status", id, "--wait")
	says(m.cli(t, 0, "", "job", "logs", "-f", id), "hello\n")
	says(h.cli(t, "job", "list"), id)
	says(m.cli(t, 0, "echo $((6*7))\nexit\n", "job", "exec", "--tty", "--", "sh"), "42")

	m.cli(t, 0, "", "vm", "create", "dev")
	if err := os.WriteFile(filepath.Join(m.home, "there"), []byte("and back\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.cli(t, 0, "", "vm", "cp", "there", "dev:")
	m.cli(t, 0, "", "vm", "cp", "dev:there", "back")
	if data, err := os.ReadFile(filepath.Join(m.home, "back")); err != nil || string(data) != "and back\r\n" {
		t.Errorf("came back: %q, %v", data, err)
	}
	m.forwards(t)
	m.outlivesItsWire(t)

	// What is another's does not exist there, and a token that is revoked ends what it has open.
	others := strings.TrimSpace(h.cli(t, "job", "submit", "--", "sleep", "600"))
	says(m.cli(t, 1, "", "job", "status", others), "not found")
	says(m.cli(t, 1, "", "node", "list"), "role")
	long := strings.TrimSpace(m.cli(t, 0, "", "job", "submit", "--", "sh", "-c", "echo begun; sleep 600"))
	follow := m.linus(t, "job", "logs", "-f", long)
	said := &bytes.Buffer{}
	follow.Stderr = said
	out, err := follow.StdoutPipe()
	if err == nil {
		err = follow.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := make([]byte, 6); !begins(out, got, "begun\n") {
		t.Errorf("it says %q, %s", got, said)
	}
	h.cli(t, "token", "revoke", "laptop")
	if err := follow.Wait(); err == nil || !strings.Contains(said.String(), "token") {
		t.Errorf("after the token is revoked: %v, %s", err, said)
	}
	says(m.cli(t, 1, "", "job", "list"), "token")
	for _, running := range []string{others, long} {
		h.cli(t, "job", "cancel", running)
	}
	h.cli(t, "vm", "destroy", "dev", "--yes")
}

// begins reports whether a stream begins with want; got has what came.
func begins(from io.Reader, got []byte, want string) bool {
	n, err := io.ReadFull(from, got)
	return err == nil && string(got[:n]) == want
}

// forwards has the machine connect through its own loopback to the VM's, which is this
// machine's in the process lab.
func (m *laptop) forwards(t *testing.T) {
	t.Helper()
	site, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer site.Close()
	go func() {
		for {
			conn, err := site.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "from the VM\n")
			_ = conn.Close()
		}
	}()
	cmd := m.linus(t, "vm", "forward", "dev", fmt.Sprintf("4000:%d", site.Addr().(*net.TCPAddr).Port))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	const listens = "127.0.0.1:4000 is port"
	if got := make([]byte, len(listens)); !begins(out, got, listens) {
		t.Errorf("forward says %q", got)
	}
	got, err := m.command(t, "bash", "-c", "cat </dev/tcp/127.0.0.1/4000").Output()
	if err != nil || string(got) != "from the VM\n" {
		t.Errorf("through the forwarded port: %q, %v", got, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was interrupted
}

// outlivesItsWire cuts the wire while the machine follows a job.
func (m *laptop) outlivesItsWire(t *testing.T) {
	t.Helper()
	cmd := m.linus(t, "job", "exec", "--", "sh", "-c", "echo first; read line; seq 1000; echo last")
	in, inErr := cmd.StdinPipe()
	out, err := cmd.StdoutPipe()
	if err = errors.Join(inErr, err); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := make([]byte, 6); !begins(out, got, "first\n") {
		t.Errorf("it says %q", got)
	}
	m.ip(t, "-n "+m.space+" link set wire down")
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Error(err)
	}
	m.ip(t, "-n "+m.space+" link set wire up")
	var want bytes.Buffer
	for i := range 1000 {
		fmt.Fprintln(&want, i+1)
	}
	fmt.Fprintln(&want, "last")
	rest, err := io.ReadAll(out)
	if err = errors.Join(err, in.Close(), cmd.Wait()); err != nil || !bytes.Equal(rest, want.Bytes()) {
		t.Errorf("after the wire was cut: %d bytes of %d, %v", len(rest), want.Len(), err)
	}
}

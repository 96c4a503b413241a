package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/tlstest"
)

// secureServer runs linus serve with TLS until the test ends, and returns the flags of a
// client of it.
func secureServer(t *testing.T) (flags []string) {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	tlstest.New(t, "127.0.0.1").Write(t, cert, key)
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("PROXMOX_HOST", "pve.example")
	t.Setenv("CALLBACK_PORT", "0")
	t.Setenv("HTTP_TLS_CERT", cert)
	t.Setenv("HTTP_TLS_KEY", key)
	ctx, cancel := context.WithCancel(t.Context())
	said, stderr := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, fakeBackend, []string{"serve", "--http", "127.0.0.1:0"}, strings.NewReader(""), io.Discard, stderr)
		_ = stderr.Close()
		ended <- code
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("linus serve exits with %d", code)
		}
	})
	url := ""
	for lines := bufio.NewScanner(said); url == "" && lines.Scan(); {
		if m := regexp.MustCompile(`MCP at (https://\S+)/mcp`).FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	go io.Copy(io.Discard, said) //nolint:errcheck // the rest of the log
	if url == "" {
		t.Fatal("linus serve tells no address")
	}
	return []string{"--server", url, "--token-file", filepath.Join(dir, "http-token"), "--ca-file", cert}
}

func TestServer_IsTheSameCommandLineFromAnywhere(t *testing.T) {
	flags := secureServer(t)
	t.Setenv("LINUS_STATE_DIR", t.TempDir()) // nothing of the engine's is here
	t.Setenv("PROXMOX_HOST", "")
	do := func(code int, stdin string, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if got := run(t.Context(), fakeBackend, append(append([]string{}, flags...), args...), strings.NewReader(stdin), &stdout, &stderr); got != code {
			t.Errorf("linus %s exits with %d, want %d: %s%s", strings.Join(args, " "), got, code, &stdout, &stderr)
		}
		return stdout.String() + stderr.String()
	}
	says := func(got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	says(do(3, "", "job", "exec", "--", "sh", "-c", "echo out; echo err >&2; exit 3"), "out\n")
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).FindString(do(0, "", "job", "submit", "--", "echo", "hello"))
	says(do(0, "", "job", "status", id, "--wait"), "success")
	says(do(0, "", "job", "logs", "-f", id), "hello\n")
	says(do(0, "", "job", "list"), id)
	says(do(0, "typed\n", "job", "exec", "--tty", "--", "echoes"), "typed\n")
	says(do(0, "", "vm", "create", "dev"), "VM dev")
	says(do(0, "", "vm", "list"), "dev")
	says(do(0, "", "host", "check"), "pve")
	says(do(0, "", "pool", "list"), "no pools")
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n"
	says(do(0, initialize, "mcp"), `"serverInfo"`)

	// A token's toolsets bind here, too.
	narrow := filepath.Join(t.TempDir(), "narrow")
	token := regexp.MustCompile(`linus_[A-Z2-7]{26}`).FindString(do(0, "", "token", "create", "ci", "--toolsets", "jobs"))
	if err := os.WriteFile(narrow, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	tools := do(0, initialize+`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n"+`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list_vms"}}`+"\n", "--token-file", narrow, "mcp")
	says(tools, `"name":"submit_job"`)
	says(tools, "not allowed: list_vms belongs to toolset vm, and this token has only jobs")
	if strings.Contains(tools, `"name":"list_vms"`) || strings.Contains(tools, `"name":"execute_command"`) {
		t.Errorf("a token for jobs is offered %s", tools)
	}
	says(do(1, "", "--token-file", narrow, "vm", "list"), "not allowed: VMs belongs to toolset vm, and this token has only jobs")
	says(do(0, "", "--token-file", narrow, "job", "list"), "no jobs")

	ctx, stop := context.WithCancel(t.Context())
	told, stdout := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, fakeBackend, append(append([]string{}, flags...), "vm", "forward", "dev", freePort(t)+":80"), strings.NewReader(""), stdout, io.Discard)
	}()
	line, err := bufio.NewReader(told).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.Fields(line)[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "through"); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, len("through"))
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "through" {
		t.Errorf("came back: %q, %v", back, err)
	}
	stop()
	if code := <-ended; code != exitDetached {
		t.Errorf("forward exits with %d", code)
	}
	_ = conn.Close()

	// The address for MCP clients is one of the same server, and what is wrong with others is said.
	server := func(url string) []string { return append([]string{"--server", url}, flags[2:]...) }
	in := func(flags []string, want string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), fakeBackend, append(flags, "job", "list"), strings.NewReader(""), &stdout, &stderr)
		if said := stdout.String() + stderr.String(); !strings.Contains(said, want) || (code == 0) != (want == id) || strings.Contains(said, "no engine is running") {
			t.Errorf("%q: exit code %d, %s", flags[:2], code, said)
		}
	}
	in(server(flags[1]+"/mcp"), id)
	in(server(strings.Replace(flags[1], "https:", "http:", 1)), "speaks https: write the server's URL with https://")
	in(server("https://127.0.0.1:"+freePort(t)), "the server cannot be reached: dial tcp 127.0.0.1:")
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	in(server(strings.Replace(plain.URL, "http:", "https:", 1)), "speaks http and not https")
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("linus_AAAAAAAAAAAAAAAAAAAAAAAAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	in(append(slices.Clone(flags), "--token-file", wrong), "the token in "+wrong+" is unknown or revoked")

	// Logins go through the engine, which has the VMs' keys.
	for _, args := range [][]string{{"vm", "ssh", "--print", "dev"}, {"vm", "cp", "--print", "x", "dev:"}, {"vm", "forward", "--print", "dev", "80"}, {"vm", "ssh-config"}} {
		said := do(0, "", args...)
		says(said, " --set LINUS_SERVER="+flags[1]+" --set LINUS_TOKEN_FILE="+flags[3]+" --set LINUS_CA_FILE="+flags[5]+" ")
		says(said, " vm proxy dev")
	}
	says(do(0, "typed", "vm", "proxy", "dev"), "typed")

	for _, args := range [][]string{{"serve"}, {"template", "list"}, {"store", "migrate", "--from", "x"}, {"host", "trust"}} {
		says(do(2, "", args...), "a server (--server, LINUS_SERVER)")
	}
	says(do(0, "", "config"), "those of the engine of https://")
	says(do(0, "", "vm", "destroy", "dev", "--yes"), "destroyed")
}

func freePort(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return "0"
	}
	defer l.Close() //nolint:errcheck // only its port was wanted
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestServer_GuardsItsToken(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LINUS_STATE_DIR", dir)
	token := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := token("good", "0123456789abcdef\n", 0o600)
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"no token":                      {[]string{"--server", "https://127.0.0.1:1"}, "--token-file"},
		"a token that others can read":  {[]string{"--server", "https://127.0.0.1:1", "--token-file", token("open", "0123456789abcdef", 0o644)}, "chmod 600"},
		"no file":                       {[]string{"--server", "https://127.0.0.1:1", "--token-file", filepath.Join(dir, "none")}, "no such file"},
		"more than a token":             {[]string{"--server", "https://127.0.0.1:1", "--token-file", token("two", "a token", 0o600)}, "token alone"},
		"another machine without TLS":   {[]string{"--server", "http://pve.example:1", "--token-file", good}, "not encrypted"},
		"nothing there":                 {[]string{"--server", "https://127.0.0.1:1", "--token-file", good}, "refused"},
		"certificates that are none":    {[]string{"--server", "https://127.0.0.1:1", "--token-file", good, "--ca-file", good}, "no PEM certificate"},
		"no URL":                        {[]string{"--server", "pve.example", "--token-file", good}, "LINUS_SERVER"},
		"a URL with the token in it":    {[]string{"--server", "https://x:y@pve.example", "--token-file", good}, "LINUS_SERVER"},
		"a server's URL with its query": {[]string{"--server", "https://pve.example/?token=x", "--token-file", good}, "LINUS_SERVER"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), fakeBackend, append(tt.args, "job", "list"), strings.NewReader(""), &stdout, &stderr); code == 0 || !strings.Contains(stderr.String(), tt.says) {
				t.Errorf("exit code %d, %s; want %q", code, &stderr, tt.says)
			}
		})
	}
}

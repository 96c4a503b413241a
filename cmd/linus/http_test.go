package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/web"
)

func TestServe_AnswersMCPByHTTPWithTheTokenOfTheStateDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("PROXMOX_HOST", "pve.example")
	t.Setenv("CALLBACK_PORT", "0")
	const origin = "http://localhost:6274"
	t.Setenv("HTTP_CORS_ORIGINS", origin)
	told := notified(t)
	ctx, cancel := context.WithCancel(t.Context())
	said, stderr := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, fakeBackend, []string{"serve", "--http", "127.0.0.1:0"}, strings.NewReader(""), io.Discard, stderr)
		_ = stderr.Close()
		ended <- code
	}()
	var address, page, all string
	for lines := bufio.NewScanner(said); page == "" && lines.Scan(); {
		all += lines.Text() + "\n"
		if m := regexp.MustCompile(`Web page at (http://\S+/), to log in with the same token`).FindStringSubmatch(lines.Text()); m != nil {
			page = m[1]
		}
		if m := regexp.MustCompile(`MCP at (http://\S+/mcp), for clients with the token in (\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
			if m[2] != filepath.Join(dir, "http-token") {
				t.Errorf("token in %s", m[2])
			}
		}
	}
	go io.Copy(io.Discard, said) //nolint:errcheck // the rest of the log
	token, err := os.ReadFile(filepath.Join(dir, "http-token"))
	if err != nil || address == "" {
		t.Fatalf("address %q, token: %v", address, err)
	}
	if got := told(); got != "READY=1" {
		t.Errorf("systemd is told %q", got)
	}
	if strings.Contains(all, strings.TrimSpace(string(token))) {
		t.Errorf("a log gets the token:\n%s", all)
	}
	for bearer, want := range map[string]int{strings.TrimSpace(string(token)): 200, "wrong": 401} {
		body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+bearer)
		req.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || want == 200 && !strings.Contains(string(answer), `"serverInfo"`) {
			t.Errorf("%d %s, want %d", resp.StatusCode, answer, want)
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != origin {
			t.Errorf("a page of %s is told of %q", origin, got)
		}
	}
	jar, _ := cookiejar.New(nil)
	resp, err := (&http.Client{Jar: jar}).Get(strings.TrimSuffix(page, "/") + web.LoginPath(strings.TrimSpace(string(token))))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != 200 || resp.Request.URL.Path != "/jobs" || !strings.Contains(string(first), "No jobs yet") {
		t.Errorf("the link leads to %s: %d %s", resp.Request.URL, resp.StatusCode, first)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d after the end", code)
	}
}

// The link that logs in is for a terminal: files, pipes and the journal are kept.
func TestServe_ShowsTheLoginLinkToATerminalAlone(t *testing.T) {
	h := &daemon.HTTP{Scheme: "http", Addr: "127.0.0.1:1", Browser: "127.0.0.1:1", Token: "HTTP_TOKEN", Login: "http://127.0.0.1:1" + web.LoginPath("a-token-of-this-test")}
	ours, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	announce(terminal, h)
	_ = terminal.Close()
	shown, _ := io.ReadAll(ours) // ends with an error: the terminal is gone
	if !strings.Contains(string(shown), h.Login) {
		t.Errorf("a terminal gets %q", shown)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	announce(file, h)
	_ = file.Close()
	if logged, err := os.ReadFile(file.Name()); err != nil || strings.Contains(string(logged), "a-token") || !strings.Contains(string(logged), "http://127.0.0.1:1/, to log in") {
		t.Errorf("a file gets %q, %v", logged, err)
	}
}

// What the settings allow, and --help and the documents list, is what there is.
func TestToolsets_OfTheSettingsAreThoseOfTheServer(t *testing.T) {
	t.Setenv("MCP_TOOLSETS", strings.Join(job.Toolsets, ","))
	if _, err := config.Load(config.Sources{}); err != nil {
		t.Error(err)
	}
	t.Setenv("MCP_TOOLSETS", "none of them")
	_, err := config.Load(config.Sources{})
	if want := "use one or more of: " + strings.Join(job.Toolsets, ", "); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
	for _, s := range config.Table() {
		if s.Name == "MCP_TOOLSETS" && !strings.Contains(s.Text, strings.Join(job.Toolsets, ", ")) {
			t.Errorf("the setting's text does not name them: %s", s.Text)
		}
	}
}

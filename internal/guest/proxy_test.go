package guest_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"linus/internal/job"
	"linus/internal/sshtest"
)

// The task finds the system's CAs and those of Trust in one file, which the next engine
// writes anew; what its manifest sets stays.
func TestTrust_TheTaskFindsTheCAs(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.launch(`printf '%s\n' "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS" "$REQUESTS_CA_BUNDLE" "$CURL_CA_BUNDLE" "$GIT_SSL_CAINFO" >seen`, func(p *job.Payload) {
		p.Trusts, p.Manifest.Cwd = true, r.root
		p.Manifest.Env = map[string]string{"NODE_EXTRA_CA_CERTS": "/mine"}
	})
	r.exited()
	seen := strings.Fields(r.read("seen"))
	if len(seen) != 5 || seen[1] != "/mine" || !strings.HasPrefix(seen[0], r.root+"/") || seen[0] != seen[2] || seen[0] != seen[3] || seen[0] != seen[4] {
		t.Fatalf("the task saw %q", seen)
	}
	system, _ := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	for _, ca := range []string{"the first\n", "the second\n"} {
		if err := r.Trust(t.Context(), r.job(), []byte(ca)); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(seen[0])
		if err != nil || !strings.HasPrefix(string(data), string(system)) || !strings.HasSuffix(string(data), "\n"+ca) || strings.Contains(string(data), "the first") != (ca == "the first\n") {
			t.Errorf("%d bytes, of %d of the system's, %v", len(data), len(system), err)
		}
	}
}

// What is connected to from a VM is reached by its SSH server, by a name that it knows.
func TestConnect_ReachesWhatTheVMDoes(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it is to end
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	c, err := r.Connect(t.Context(), r.job(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := r.Connect(t.Context(), r.job(), "127.0.0.1:1"); err == nil { // one that was just let go may be another test's by now
		t.Error("nobody listens, and it is reached")
	}
}

// One proxy after another of a VM has the same port, also while this process, which the VM's SSH server is
// in, starts others.
func TestProxy_LeavesItsPortToTheNext(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	starting, over := context.WithCancel(t.Context())
	var starts sync.WaitGroup
	defer starts.Wait()
	defer over()
	for range 4 {
		starts.Go(func() {
			for starting.Err() == nil {
				_ = exec.Command("true").Run()
			}
		})
	}
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.Proxy(ctx, r.job(), port, nil, cancel); err != nil {
			t.Fatal(err)
		}
	}
}

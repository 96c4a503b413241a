package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"linus/internal/leaktest"
	"linus/internal/remote"
	"linus/internal/sshtest"
)

// A call that x/crypto/ssh never answers is not waited for, and stays with what waits for
// the pool's last goroutine.
func TestMain(m *testing.M) {
	leaktest.Main(m, goleak.IgnoreAnyFunction("golang.org/x/crypto/ssh.(*mux).openChannel"), goleak.IgnoreAnyFunction("linus/internal/remote.(*Pool).drain"))
}

func options(s *sshtest.Server) remote.Options {
	return remote.Options{
		Host: s.Host, Port: s.Port, User: "tester", KeyPath: s.ClientKeyPath, KnownHosts: s.KnownHosts,
		ConnectTimeout: time.Minute, Patience: 500 * time.Millisecond,
	}
}

func pool(t *testing.T, o remote.Options) *remote.Pool {
	t.Helper()
	p := remote.NewPool(o)
	t.Cleanup(p.Close)
	return p
}

func output(t *testing.T, p *remote.Pool, line string) string {
	t.Helper()
	out, err := p.Output(t.Context(), remote.Command{Name: "test", Line: line}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDial_Faults(t *testing.T) {
	free := func(t *testing.T) int {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.Addr().(*net.TCPAddr).Port
	}
	tests := []struct {
		name   string
		faults sshtest.Faults
		change func(t *testing.T, o *remote.Options)
		class  remote.Class
		text   string
	}{
		{name: "nothing listens", change: func(t *testing.T, o *remote.Options) { o.Port = free(t) }, class: remote.Refused, text: "refused"},
		{name: "no such name", change: func(_ *testing.T, o *remote.Options) { o.Host = "no-such-host.invalid" }, class: remote.Unreachable, text: "no-such-host.invalid"},
		{name: "silent server", faults: sshtest.Faults{Silent: true}, change: func(_ *testing.T, o *remote.Options) { o.ConnectTimeout = 200 * time.Millisecond }, class: remote.Timeout, text: "no answer within 200ms"},
		{name: "dropped before the handshake", faults: sshtest.Faults{RefuseLogin: true}, class: remote.Lost},
		{name: "a key the server does not accept", change: func(t *testing.T, o *remote.Options) {
			o.KeyPath = filepath.Join(t.TempDir(), "other")
			sshtest.NewKey(t, o.KeyPath)
		}, class: remote.Auth, text: "unable to authenticate"},
		{name: "no key file", change: func(_ *testing.T, o *remote.Options) { o.KeyPath = "/nonexistent/key" }, class: remote.Auth, text: "no private key at /nonexistent/key"},
		{name: "nothing to log in with", change: func(_ *testing.T, o *remote.Options) { o.KeyPath = "" }, class: remote.Auth, text: "no key, no agent"},
		{name: "wrong password", change: func(_ *testing.T, o *remote.Options) {
			o.KeyPath, o.Password = "", func() string { return "wrong" }
		}, class: remote.Auth},
		{name: "unknown host key", change: func(_ *testing.T, o *remote.Options) { o.KnownHosts = "/nonexistent/known_hosts" }, class: remote.HostKeyUnknown, text: "it presents ssh-ed25519 SHA256:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Faults: tt.faults})
			o := options(s)
			if tt.change != nil {
				tt.change(t, &o)
			}
			err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			if got := remote.ClassOf(err); got != tt.class {
				t.Fatalf("class = %q, want %q (%v)", got, tt.class, err)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q does not say %q", err, tt.text)
			}
			lead := map[remote.Class]string{
				remote.Refused: "connection refused: ", remote.Unreachable: "not reachable: ", remote.Timeout: "no answer: ", remote.Auth: "login failed: ",
				remote.Lost: "connection lost: ", remote.HostKeyUnknown: "host key not known: ",
			}[tt.class]
			if whole := err.Error(); !strings.HasPrefix(whole, lead) && !strings.HasPrefix(whole, "test: "+lead) {
				t.Errorf("error %q does not begin with the fault", err)
			}
		})
	}
}

func TestDial_ReportsAChangedHostKeyWithBothFingerprints(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	other := sshtest.Start(t, sshtest.Options{})
	o := options(s)
	o.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
	line := fmt.Sprintf("[%s]:%d %s\n", s.Host, s.Port, other.HostKey)
	if err := os.WriteFile(o.KnownHosts, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	var fault *remote.Error
	if !errors.As(err, &fault) || fault.Class != remote.HostKeyChanged {
		t.Fatalf("err = %v", err)
	}
	if len(fault.Known) != 1 || fault.Known[0] == fault.Shown || !strings.Contains(err.Error(), fault.Known[0]) || !strings.Contains(err.Error(), fault.Shown) {
		t.Errorf("shown %q, known %q, text %q", fault.Shown, fault.Known, err)
	}
}

// Opening a FIFO waits for who writes to it, as nothing ends.
func TestDial_KnownHostsAreNoPipe(t *testing.T) {
	o := options(sshtest.Start(t, sshtest.Options{}))
	o.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
	if err := syscall.Mkfifo(o.KnownHosts, 0o600); err != nil {
		t.Fatal(err)
	}
	err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	if err == nil || !strings.Contains(err.Error(), o.KnownHosts+" is not a regular file") {
		t.Errorf("error %v", err)
	}
	o.KnownHosts = os.DevNull // as ssh's users have it
	if err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"}); remote.ClassOf(err) != remote.HostKeyUnknown {
		t.Errorf("error %v", err)
	}
}

func TestDial_ByPassword(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Password: "sesame"})
	o := options(s)
	o.KeyPath, o.Password = "", func() string { return "sesame" }
	if got := output(t, pool(t, o), "echo in"); got != "in\n" {
		t.Errorf("output = %q", got)
	}
}

func TestDial_TriesADroppedConnectionAgain(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{RefuseLogin: true}})
	time.AfterFunc(300*time.Millisecond, func() { s.Set(sshtest.Faults{}) })
	o := options(s)
	o.Patience = time.Minute
	if got := output(t, pool(t, o), "echo in"); got != "in\n" {
		t.Errorf("output = %q", got)
	}
}

func TestDial_EndsWithItsContext(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{Silent: true}})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	began := time.Now()
	err := pool(t, options(s)).Run(ctx, remote.Command{Name: "test", Line: "true"})
	if err == nil || time.Since(began) > 30*time.Second {
		t.Errorf("err = %v after %s", err, time.Since(began))
	}
}

func TestTrustHostKey_MakesAnUnknownHostKnown(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	o := options(s)
	o.KnownHosts = filepath.Join(t.TempDir(), "ssh", "known_hosts")
	key, err := remote.ScanHostKey(t.Context(), o)
	if err != nil || key.Known || !strings.HasPrefix(key.Fingerprint, "ssh-ed25519 SHA256:") {
		t.Fatalf("scan = %+v, %v", key, err)
	}
	if n := s.Stats().Connections; n != 0 {
		t.Errorf("%d logins at a host nobody has vouched for", n)
	}
	if err := os.MkdirAll(filepath.Dir(o.KnownHosts), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.KnownHosts, []byte("# no newline at the end"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remote.TrustHostKey(o.KnownHosts, key); err != nil {
		t.Fatal(err)
	}
	if got := output(t, pool(t, o), "echo in"); got != "in\n" {
		t.Errorf("output = %q", got)
	}
	if key, err = remote.ScanHostKey(t.Context(), o); err != nil || !key.Known {
		t.Errorf("scan afterwards = %+v, %v", key, err)
	}
}

func TestTrustHostKey_RefusesAChangedKey(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	other := sshtest.Start(t, sshtest.Options{})
	o := options(s)
	o.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(o.KnownHosts, fmt.Appendf(nil, "[%s]:%d %s\n", s.Host, s.Port, other.HostKey), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := remote.ScanHostKey(t.Context(), o)
	if err != nil || len(key.Other) != 1 {
		t.Fatalf("scan = %+v, %v", key, err)
	}
	if err := remote.TrustHostKey(o.KnownHosts, key); err == nil || !strings.Contains(err.Error(), "ssh-keygen -R") {
		t.Errorf("trust = %v", err)
	}
}

func TestPool_GrowsPastEightSessionsAndShares(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	gate := filepath.Join(t.TempDir(), "gate")
	var running sync.WaitGroup
	errs := make(chan error, 20)
	for range 20 {
		running.Go(func() {
			errs <- p.Run(t.Context(), remote.Command{Name: "wait", Line: "until [ -e " + gate + " ]; do sleep 0.05; done"})
		})
	}
	wait(t, func() bool { return s.Stats().Execs == 20 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	running.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if got := s.Stats(); got.Connections != 3 || got.MaxSessions != 8 {
		t.Errorf("stats = %+v, want 3 connections of at most 8 sessions", got)
	}
	output(t, p, "true")
	if got := s.Stats().Connections; got != 3 {
		t.Errorf("%d connections, an old one should have served", got)
	}
}

func TestPool_LearnsALowerSessionLimit(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{MaxSessions: 2})
	p := pool(t, options(s))
	var running sync.WaitGroup
	errs := make(chan error, 8)
	for range 8 {
		running.Go(func() { errs <- p.Run(t.Context(), remote.Command{Name: "nap", Line: "sleep 0.2"}) })
	}
	running.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestPool_ReplacesADeadConnection(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	for range 5 {
		output(t, p, "true")
		s.Drop()
	}
	if got := s.Stats().Connections; got != 5 {
		t.Errorf("%d connections, want 5", got)
	}
}

func TestPool_ReportsAReestablishedConnection(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	var told atomic.Int32
	o := options(s)
	o.OnReconnect = func() { told.Add(1) }
	p := pool(t, o)
	output(t, p, "true")
	if n := told.Load(); n != 0 {
		t.Fatalf("told %d times of a first connection", n)
	}
	for i := range int32(2) {
		s.Drop()
		output(t, p, "true")
		output(t, p, "true")
		if n := told.Load(); n != i+1 {
			t.Fatalf("told %d times of %d reconnects", n, i+1)
		}
	}
}

func TestPool_KeepaliveEndsASilentConnection(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	frozen := proxy(t, s.Addr())
	o := options(s)
	o.Host, o.Port = frozen.host, frozen.port
	o.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(o.KnownHosts, fmt.Appendf(nil, "[%s]:%d %s\n", o.Host, o.Port, s.HostKey), 0o600); err != nil {
		t.Fatal(err)
	}
	o.KeepAlive = time.Second
	p := pool(t, o)
	output(t, p, "true")
	time.AfterFunc(100*time.Millisecond, frozen.freeze)
	err := p.Run(t.Context(), remote.Command{Name: "nap", Line: "sleep 30"})
	if remote.ClassOf(err) != remote.Lost {
		t.Errorf("err = %v, want a lost connection", err)
	}
}

func TestNearIP(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	ip, err := pool(t, options(s)).NearIP(t.Context())
	if err != nil || ip != "127.0.0.1" {
		t.Errorf("NearIP = %q, %v", ip, err)
	}
}

func TestClosedPool_Refuses(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	output(t, p, "true")
	p.Close()
	if err := p.Run(t.Context(), remote.Command{Name: "test", Line: "true"}); err == nil {
		t.Error("a closed pool ran a command")
	}
}

// wait polls for a condition, with a deadline.
func wait(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("did not happen within a minute")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A channel opened just as its connection ends is never answered, and is opened
// on another connection.
func TestChannel_ThatNobodyAnswers(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	over := make(chan struct{})
	t.Cleanup(func() { close(over) }) // before the pool closes, which waits for it
	var tries atomic.Int32
	err := p.OpenChannel(t.Context(), func() error {
		if tries.Add(1) == 1 {
			s.Drop()
			<-over
		}
		return nil
	})
	if err != nil || tries.Load() != 2 {
		t.Errorf("%d tries, %v", tries.Load(), err)
	}
}

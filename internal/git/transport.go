package git

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"al.essio.dev/pkg/shellescape"

	"linus/internal/job"
)

// Transport is how a repository is reached: through an HTTP proxy that adds the credential, or by SSH with a key.
type Transport struct {
	Dial func(context.Context) (net.Conn, error) // the proxy
	CA   []byte                                  // PEM: what git trusts there; nil: what the machine trusts
	// Refused returns why something was not reached, in one line; "": it was.
	Refused func() string

	Key     []byte // PEM of a private key; nil: the proxy is used
	HostKey string // of the host, as in known_hosts

	// Reads returns why another repository of the host must not be fetched; a nil Reads leaves that to
	// the transport.
	Reads func(job.Repository) error
	Live  context.Context //nolint:containedctx // ends with the credential; nil: with nothing
	Close func()
}

// opened is a Transport in use. Nil is for git calls that need no server.
type opened struct {
	Transport
	dir      string // for a socket and files
	listener net.Listener
	user     string // user and password of the local proxy, to keep others on this machine out
	ssh      string // path of the program
	conns    sync.WaitGroup
	end      context.CancelCauseFunc
}

// open prepares a transport for git. The caller closes it.
func (w Transport) open(ctx context.Context) (_ *opened, _ context.Context, err error) {
	o := &opened{Transport: w}
	ctx, o.end = context.WithCancelCause(ctx)
	if w.Live != nil {
		context.AfterFunc(w.Live, func() { o.end(context.Cause(w.Live)) })
	}
	if o.dir, err = os.MkdirTemp("", "linus-git-"); err == nil {
		if w.Key != nil {
			err = o.openSSH()
		} else {
			err = o.openProxy(ctx)
		}
	}
	if err != nil {
		o.close()
		return nil, nil, err
	}
	return o, ctx, nil
}

func (o *opened) close() {
	o.end(context.Canceled)
	if o.listener != nil {
		_ = o.listener.Close()
	}
	o.conns.Wait()
	if o.dir != "" {
		_ = os.RemoveAll(o.dir)
	}
	o.Transport.Close()
}

// serve calls do with each connection, until the listener is closed.
func (o *opened) serve(do func(net.Conn)) {
	o.conns.Go(func() {
		for {
			c, err := o.listener.Accept()
			if err != nil {
				return
			}
			o.conns.Go(func() {
				defer c.Close() //nolint:errcheck // it is over
				do(c)
			})
		}
	})
}

// openProxy makes the proxy available to git, at a loopback port that asks for a password.
func (o *opened) openProxy(ctx context.Context) (err error) {
	o.user = "linus:" + rand.Text()
	if len(o.CA) > 0 {
		if err := os.WriteFile(filepath.Join(o.dir, "ca.pem"), o.CA, 0o600); err != nil {
			return err
		}
	}
	var listen net.ListenConfig
	if o.listener, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	o.serve(func(near net.Conn) { o.pass(ctx, near) })
	return nil
}

// pass connects one connection of git to its target.
func (o *opened) pass(ctx context.Context, near net.Conn) {
	_ = near.SetReadDeadline(time.Now().Add(10 * time.Second))
	from := bufio.NewReader(io.LimitReader(near, 64<<10))
	r, err := http.ReadRequest(from)
	if err != nil {
		return
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(o.user))
	if r.Method != http.MethodConnect || subtle.ConstantTimeCompare([]byte(r.Header.Get("Proxy-Authorization")), []byte(want)) != 1 {
		_, _ = io.WriteString(near, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
		return
	}
	_ = near.SetReadDeadline(time.Time{})
	far, err := o.Dial(ctx)
	if err != nil {
		return
	}
	both := func() { _ = near.Close(); _ = far.Close() }
	defer both()
	defer context.AfterFunc(ctx, both)()
	if _, err := fmt.Fprintf(far, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", r.Host, r.Host); err != nil {
		return
	}
	o.conns.Go(func() {
		defer both()
		_, _ = io.Copy(far, near) // git waits for the answer before it sends more
	})
	_, _ = io.Copy(near, far)
}

// openSSH prepares ssh for git. The key comes from an agent, and is on no disk.
func (o *opened) openSSH() (err error) {
	if o.ssh, err = exec.LookPath("ssh"); err != nil {
		return err
	}
	key, err := ssh.ParseRawPrivateKey(o.Key)
	if err != nil {
		return fmt.Errorf("read the credential's private key: %w", err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		return fmt.Errorf("use the credential's private key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.dir, "known_hosts"), []byte("repository "+o.HostKey+"\n"), 0o600); err != nil {
		return err
	}
	if o.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(o.dir, "agent")); err != nil { //nolint:contextcheck // a file's name
		return err
	}
	o.serve(func(c net.Conn) { _ = agent.ServeAgent(ring, c) })
	return nil
}

// protocol returns the protocols that git may use.
func (o *opened) protocol() string {
	switch {
	case o == nil:
		return "none"
	case o.Key != nil:
		return "ssh"
	}
	return "https"
}

// environment returns git's environment variables for the transport.
func (o *opened) environment() []string {
	switch {
	case o == nil:
		return nil
	case o.Key != nil:
		line := []string{
			o.ssh, "-F", "/dev/null", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "HostKeyAlias=repository", "-o", "StrictHostKeyChecking=yes",
			"-o", "UserKnownHostsFile=" + filepath.Join(o.dir, "known_hosts"), "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no",
			"-o", "IdentityFile=none", "-o", "IdentityAgent=" + filepath.Join(o.dir, "agent"), "-o", "PreferredAuthentications=publickey",
			"-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ProxyCommand=none", "-o", "PermitLocalCommand=no",
			"-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "LogLevel=ERROR",
		}
		return []string{"GIT_SSH_COMMAND=" + shellescape.QuoteCommand(line), "GIT_SSH_VARIANT=ssh"}
	}
	env := []string{"https_proxy=http://" + o.user + "@" + o.listener.Addr().String()}
	if len(o.CA) > 0 {
		env = append(env, "GIT_SSL_CAINFO="+filepath.Join(o.dir, "ca.pem"))
	}
	return env
}

// reads returns why a repository must not be fetched over the transport, or nil if it may.
func (o *opened) reads(url string) error {
	if o.Reads == nil {
		return nil
	}
	return o.Reads(job.Repository{URL: url})
}

// refusal returns why the transport refused something, or "" if it did not.
func (o *opened) refusal() string {
	if o == nil || o.Refused == nil {
		return ""
	}
	return o.Refused()
}

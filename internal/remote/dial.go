package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// Options say how to reach and log in to a machine.
type Options struct {
	Host string
	Port int // 0: 22
	User string

	KeyPath     string        // private key; empty: none
	Password    func() string // called when a login needs it; nil: none
	AgentSocket string        // an SSH agent's socket, another source of keys; empty: none
	KnownHosts  string        // known_hosts file, strict; for NewPool and ScanHostKey
	HostKeys    []string      // "ssh-ed25519 AAAA...": for NewPool, accepts one of these instead of what KnownHosts has

	ConnectTimeout time.Duration // for one connection, login included; 0: 15 s
	Patience       time.Duration // how long refused or dropped connections are retried; 0: 3 s
	KeepAlive      time.Duration // between keepalives, and the time to answer one; 0: 15 s
	OnReconnect    func()        // called when a lost connection was reestablished; nil: none. A Guest's goes with the pool's
	Log            *slog.Logger  // nil: none
}

func (o Options) withDefaults() Options {
	if o.Port == 0 {
		o.Port = 22
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 15 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 3 * time.Second
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.OnReconnect == nil {
		o.OnReconnect = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) addr() string { return net.JoinHostPort(o.Host, strconv.Itoa(o.Port)) }

func (o Options) login() string { return o.User + "@" + o.addr() }

// dialer connects to one machine.
type dialer struct {
	options  Options
	network  func(ctx context.Context, network, addr string) (net.Conn, error)
	verifier func() (verifier, error)
}

// dial connects and logs in, retrying temporary faults with back-off.
func (d *dialer) dial(ctx context.Context) (*ssh.Client, error) {
	auth, release, err := d.methods(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 100 * time.Millisecond
	return backoff.Retry(ctx, func() (*ssh.Client, error) {
		client, err := d.handshake(ctx, auth)
		var fault *Error
		if err != nil && (!errors.As(err, &fault) || !fault.temporary()) {
			return nil, backoff.Permanent(err)
		}
		return client, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(d.options.Patience))
}

// handshake makes one attempt to connect. The time limit is enforced by closing
// the connection: a channel through another SSH connection has no deadlines.
func (d *dialer) handshake(ctx context.Context, auth []ssh.AuthMethod) (*ssh.Client, error) {
	verify, err := d.verifier()
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, d.options.ConnectTimeout)
	defer cancel()
	conn, err := d.network(timed, "tcp", d.options.addr())
	if err != nil {
		return nil, d.fault(ctx, timed, err)
	}
	stop := context.AfterFunc(timed, func() { _ = conn.Close() })
	// The verdict is kept here: not every path through x/crypto preserves the
	// error chain.
	var verdict error
	config := &ssh.ClientConfig{
		User: d.options.User,
		Auth: auth,
		HostKeyCallback: func(hostname string, remote net.Addr, key ssh.PublicKey) error {
			verdict = verify.check(hostname, remote, key)
			return verdict
		},
		HostKeyAlgorithms: verify.algorithms(),
	}
	c, channels, requests, err := ssh.NewClientConn(conn, d.options.addr(), config)
	if !stop() && err == nil {
		// The time limit was reached just as the handshake succeeded: conn is
		// closed.
		err = context.DeadlineExceeded
	}
	if err != nil {
		_ = conn.Close()
		if verdict != nil {
			err = verdict
		}
		return nil, d.fault(ctx, timed, err)
	}
	return ssh.NewClient(c, channels, requests), nil
}

func (d *dialer) fault(ctx, timed context.Context, err error) error {
	var verdict *Error
	if errors.As(err, &verdict) {
		if verdict.Addr == "" { // otherwise the fault is the jump host's
			verdict.Op, verdict.Addr = "connect to", d.options.login()
		}
		return err
	}
	if timed.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s: %w", d.options.ConnectTimeout, context.DeadlineExceeded)
	}
	return classify(ctx, "connect to", d.options.login(), err)
}

// methods returns the ways to log in, in the order they are tried; release
// closes what they keep open.
func (d *dialer) methods(ctx context.Context) (methods []ssh.AuthMethod, release func(), err error) {
	o := d.options
	var signers []ssh.Signer
	release = func() {}
	keyErr := error(nil)
	if o.KeyPath != "" {
		var signer ssh.Signer
		if signer, keyErr = readKey(o.KeyPath); keyErr == nil {
			signers = append(signers, signer)
		}
	}
	if o.AgentSocket != "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", o.AgentSocket)
		if err == nil {
			release = func() { _ = conn.Close() }
			held, err := agent.NewClient(conn).Signers()
			if err == nil {
				signers = append(signers, held...)
			}
		} else {
			o.Log.DebugContext(ctx, "ssh agent not used", "err", err)
		}
	}
	if keyErr != nil && (len(signers) > 0 || o.Password != nil) {
		o.Log.WarnContext(ctx, "private key not used", "err", keyErr)
	}
	if len(signers) > 0 {
		methods = append(methods, ssh.PublicKeys(signers...))
	}
	if o.Password != nil {
		methods = append(methods, ssh.PasswordCallback(func() (string, error) { return o.Password(), nil }),
			ssh.KeyboardInteractive(func(_, _ string, questions []string, _ []bool) ([]string, error) {
				answers := make([]string, len(questions))
				for i := range answers {
					answers[i] = o.Password()
				}
				return answers, nil
			}))
	}
	if len(methods) > 0 {
		return methods, release, nil
	}
	release()
	if keyErr == nil {
		keyErr = errors.New("there is no key, no agent with keys and no password to log in with")
	}
	return nil, nil, &Error{Op: "log in to", Addr: o.login(), Class: Auth, Err: keyErr}
}

func readKey(path string) (ssh.Signer, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no private key at %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(raw)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("the private key %s has a passphrase: add it to an SSH agent, or use a key without one", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a private key: %w", path, err)
	}
	return signer, nil
}

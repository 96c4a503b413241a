package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
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

	KeyPath     string        // private key, tried before the agent's; empty: none
	Password    func() string // called when a login needs it; nil: none
	AgentSocket string        // an SSH agent's socket, another source of keys; empty: none
	Identities  []string      // private keys tried after the agent's, as OpenSSH tries its own: those that exist
	KnownHosts  string        // known_hosts file, strict; for NewPool and ScanHostKey
	HostKeys    []string      // "ssh-ed25519 AAAA...": for NewPool, accepts one of these instead of what KnownHosts has

	ConnectTimeout time.Duration // for one connection, login included; 0: 15 s
	Patience       time.Duration // how long refused or dropped connections are retried; 0: 3 s
	KeepAlive      time.Duration // between keepalives, and the time to answer one; 0: 15 s
	OnReconnect    func()        // called when a lost connection was reestablished; nil: none. A Guest's defaults to the pool's
	Log            *slog.Logger  // nil: none
}

func (o Options) withDefaults() Options {
	o.Port = cmp.Or(o.Port, 22)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 15*time.Second)
	o.Patience = cmp.Or(o.Patience, 3*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 15*time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.OnReconnect == nil {
		o.OnReconnect = func() {}
	}
	return o
}

func (o Options) addr() string { return net.JoinHostPort(o.Host, strconv.Itoa(o.Port)) }

func (o Options) login() string { return o.User + "@" + o.addr() }

type dialer struct {
	options  Options
	network  func(ctx context.Context, network, addr string) (net.Conn, error)
	verifier func() (verifier, error)
}

// dial connects and logs in, retrying temporary faults with back-off.
func (d *dialer) dial(ctx context.Context) (*ssh.Client, error) {
	with, err := d.credentials(ctx)
	if err != nil {
		return nil, err
	}
	defer with.release()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 100 * time.Millisecond
	return backoff.Retry(ctx, func() (*ssh.Client, error) {
		client, err := d.handshake(ctx, with.methods)
		var fault *Error
		if err != nil && (!errors.As(err, &fault) || !fault.temporary()) {
			if fault != nil && fault.Class == Auth && fault.Addr == d.options.login() { // not the jump host's
				fault.Err = with.refused(fault.Err)
			}
			return nil, backoff.Permanent(err)
		}
		return client, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(d.options.Patience))
}

// handshake makes one attempt to connect. It enforces the time limit by closing the connection: a channel
// through another SSH connection has no deadlines.
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
	// verdict keeps the error, because not every path through x/crypto preserves the error chain.
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
		// The time limit was reached just as the handshake succeeded: conn is closed.
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
	if verdict, ok := errors.AsType[*Error](err); ok {
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

// credentials are the ways to log in to one machine.
type credentials struct {
	methods []ssh.AuthMethod // in the order they are tried
	keys    int              // number of keys offered
	tried   []string         // what is offered, for people
	unused  []error          // why keys that exist cannot be offered
	release func()           // closes what the methods keep open
}

// mostTries is how many keys OpenSSH's server lets a client offer by default (MaxAuthTries).
const mostTries = 6

// refused explains the error of a machine that accepted none of the credentials.
func (c credentials) refused(err error) error {
	text := "it accepts none of: " + strings.Join(c.tried, ", ")
	if c.keys > mostTries {
		text = fmt.Sprintf("of %d keys it saw only the first: a server ends the login after about %d. Set PROXMOX_SSH_KEY_PATH to the right one, "+
			"or remove others from the SSH agent (ssh-add -d). %s", c.keys, mostTries, text)
	}
	if len(c.unused) > 0 {
		return fmt.Errorf("%s; not tried: %w (%w)", text, joined(c.unused), err)
	}
	return fmt.Errorf("%s (%w)", text, err)
}

func joined(errs []error) error {
	whole := errs[0]
	for _, err := range errs[1:] {
		whole = fmt.Errorf("%w; %w", whole, err)
	}
	return whole
}

func (d *dialer) credentials(ctx context.Context) (credentials, error) {
	o := d.options
	c := credentials{release: func() {}}
	var signers []ssh.Signer
	offer := func(from string, keys ...ssh.Signer) {
		offered := len(signers)
		for _, key := range keys { // a file's key may be in the agent, too, and servers count attempts
			if !slices.ContainsFunc(signers, func(s ssh.Signer) bool { return bytes.Equal(s.PublicKey().Marshal(), key.PublicKey().Marshal()) }) {
				signers = append(signers, key)
			}
		}
		if len(signers) > offered {
			c.tried = append(c.tried, from)
		}
	}
	offerFile := func(path string) {
		keys, err := readKey(path)
		if err != nil {
			c.unused = append(c.unused, err)
		}
		if len(keys) > 0 {
			offer(path, keys...)
		}
	}
	if o.KeyPath != "" {
		offerFile(o.KeyPath)
	}
	if o.AgentSocket != "" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", o.AgentSocket)
		if err == nil {
			c.release = func() { _ = conn.Close() }
			if held, err := agent.NewClient(conn).Signers(); err == nil {
				offer("the SSH agent's keys", ownFirst(held, append([]string{o.KeyPath}, o.Identities...))...)
			}
		} else {
			o.Log.DebugContext(ctx, "ssh agent not used", "err", err)
		}
	}
	for _, path := range o.Identities {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			offerFile(path)
		}
	}
	if o.KeyPath != "" && len(c.unused) > 0 && (len(signers) > 0 || o.Password != nil) {
		o.Log.WarnContext(ctx, "private key not used", "err", c.unused[0])
	}
	if c.keys = len(signers); c.keys > 0 {
		c.methods = append(c.methods, ssh.PublicKeys(signers...))
	}
	if o.Password != nil {
		c.tried = append(c.tried, "the password")
		c.methods = append(c.methods, ssh.PasswordCallback(func() (string, error) { return o.Password(), nil }),
			ssh.KeyboardInteractive(func(_, _ string, questions []string, _ []bool) ([]string, error) {
				answers := make([]string, len(questions))
				for i := range answers {
					answers[i] = o.Password()
				}
				return answers, nil
			}))
	}
	if len(c.methods) > 0 {
		return c, nil
	}
	c.release()
	if len(c.unused) == 0 {
		text := "there is no key, no agent with keys and no password to log in with"
		if len(o.Identities) > 0 {
			text += "; the keys looked for: " + strings.Join(o.Identities, ", ")
		}
		c.unused = []error{errors.New(text)}
	}
	return credentials{}, &Error{Op: "log in to", Addr: o.login(), Class: Auth, Err: joined(c.unused)}
}

// ownFirst returns an agent's keys in the order in which OpenSSH tries them: first those whose public key
// lies beside one of the key files.
func ownFirst(held []ssh.Signer, paths []string) []ssh.Signer {
	var own, others []ssh.Signer
	for _, key := range held {
		of := func(path string) bool {
			raw, err := readRegular(path + ".pub")
			if err != nil {
				return false
			}
			public, _, _, _, err := ssh.ParseAuthorizedKey(raw)
			return err == nil && bytes.Equal(public.Marshal(), plainKey(key.PublicKey()).Marshal())
		}
		if slices.ContainsFunc(paths, of) {
			own = append(own, key)
		} else {
			others = append(others, key)
		}
	}
	return append(own, others...)
}

func plainKey(key ssh.PublicKey) ssh.PublicKey {
	if cert, ok := key.(*ssh.Certificate); ok {
		return cert.Key
	}
	return key
}

// readKey reads a private key. If its certificate lies beside it, the certified key is returned before
// the plain key. If that certificate is unusable, readKey returns an error and the plain key.
func readKey(path string) ([]ssh.Signer, error) {
	raw, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no private key at %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if _, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		return nil, fmt.Errorf("the private key %s has a passphrase: add it to an SSH agent, or use a key without one", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a private key: %w", path, err)
	}
	certified, err := readCertificate(path+"-cert.pub", signer)
	if err != nil || certified == nil {
		return []ssh.Signer{signer}, err
	}
	return []ssh.Signer{certified, signer}, nil
}

// readRegular reads a regular file. A FIFO would block until somebody writes to it.
func readRegular(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return os.ReadFile(path)
}

// readCertificate returns a key with its certificate, or nil if there is no certificate.
func readCertificate(path string, key ssh.Signer) (ssh.Signer, error) {
	raw, err := readRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(raw)
	cert, ok := public.(*ssh.Certificate)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s is not a certificate", path)
	}
	certified, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s does not belong to the key beside it", path)
	}
	return certified, nil
}

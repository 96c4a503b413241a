package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// verifier checks the host key a machine presents, and returns the key types to ask for.
type verifier interface {
	algorithms() []string
	check(hostname string, remote net.Addr, key ssh.PublicKey) error
}

func fingerprint(key ssh.PublicKey) string {
	return key.Type() + " " + ssh.FingerprintSHA256(key)
}

// keyTypes are requested in this order if no key of the machine is known.
var keyTypes = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// knownHosts refuses keys that are not in the file. The file is read again for each connection, so that
// `linus host trust` takes effect at once.
type knownHosts struct {
	db   *knownhosts.HostKeyDB
	addr string // host:port
}

func openKnownHosts(path, addr string) (*knownHosts, error) {
	files := []string{path}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist), path == "", path == os.DevNull:
		files = nil
	case err == nil && !info.Mode().IsRegular(): // opening a FIFO blocks until somebody writes to it
		return nil, fmt.Errorf("read known hosts: %s is not a regular file", path)
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, fmt.Errorf("read known hosts %s: %w", path, err)
	}
	return &knownHosts{db: db, addr: addr}, nil
}

// certTypes are the certificate types of keyTypes.
var certTypes = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
	ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
}

// algorithms puts the known types first, so that a machine with several keys presents the one we know.
// The others follow, so that a changed key can be reported. If an authority is known for the machine, it
// may present a certificate of any type.
func (k *knownHosts) algorithms() []string {
	var list []string
	if _, authority := k.known(); authority {
		list = slices.Clone(certTypes)
	}
	for _, t := range k.db.HostKeyAlgorithms(k.addr) {
		if !strings.Contains(t, "-cert-v01@") {
			list = append(list, t)
		}
	}
	for _, t := range keyTypes {
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list
}

// check judges a certificate of an unknown authority by its key, as OpenSSH does. If only an authority is
// known of a machine, its keys are unknown.
func (k *knownHosts) check(hostname string, remote net.Addr, key ssh.PublicKey) error {
	err := k.db.HostKeyCallback()(hostname, remote, key)
	if err == nil {
		return nil
	}
	known, _ := k.known()
	if cert, ok := key.(*ssh.Certificate); ok && !errors.As(err, new(*xknownhosts.RevokedError)) {
		if k.check(hostname, remote, cert.Key) == nil {
			return nil
		}
	} else if knownhosts.IsHostUnknown(err) || knownhosts.IsHostKeyChanged(err) {
		if len(known) == 0 {
			return &Error{Class: HostKeyUnknown, Err: err, Shown: fingerprint(key)}
		}
		return &Error{Class: HostKeyChanged, Err: err, Shown: fingerprint(key), Known: known}
	}
	return &Error{Class: HostKeyRefused, Err: err, Shown: fingerprint(key)}
}

// known returns the fingerprints of the machine's keys in known_hosts, and whether known_hosts has an
// authority that may certify other keys.
func (k *knownHosts) known() (keys []string, authority bool) {
	for _, key := range k.db.HostKeys(k.addr) {
		if key.Cert {
			authority = true
			continue
		}
		keys = append(keys, fingerprint(key.PublicKey))
	}
	return keys, authority
}

// pinned accepts only certain keys. Without any, it accepts the first key presented, reports it, and pins
// it from then on.
type pinned struct {
	onFirstUse func(fingerprint string)

	mu   sync.Mutex
	keys []ssh.PublicKey
}

func newPinned(authorizedKeys []string, onFirstUse func(string)) (*pinned, error) {
	p := &pinned{onFirstUse: onFirstUse}
	for _, line := range authorizedKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("read pinned host key %q: %w", line, err)
		}
		p.keys = append(p.keys, key)
	}
	return p, nil
}

func (p *pinned) algorithms() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		return keyTypes
	}
	var list []string
	for _, key := range p.keys {
		types := []string{key.Type()}
		if key.Type() == ssh.KeyAlgoRSA {
			types = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
		}
		list = append(list, types...)
	}
	return list
}

func (p *pinned) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		p.keys = []ssh.PublicKey{key}
		if p.onFirstUse != nil {
			p.onFirstUse(fingerprint(key))
		}
		return nil
	}
	known := make([]string, len(p.keys))
	for i, k := range p.keys {
		if bytes.Equal(k.Marshal(), key.Marshal()) {
			return nil
		}
		known[i] = fingerprint(k)
	}
	return &Error{Class: HostKeyChanged, Err: errors.New("host key mismatch"), Shown: fingerprint(key), Known: known}
}

// maxHostKey is above the length of the longest key in use, RSA with 16384 bits, in bytes.
const maxHostKey = 4096

// HostKeyLine returns a machine's public key, as reported by a third party, in a form in which keys can
// be compared: "ssh-ed25519 AAAA...", without a comment.
func HostKeyLine(text string) (string, error) {
	if len(text) > maxHostKey {
		return "", fmt.Errorf("it has %d bytes", len(text))
	}
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return "", err
	case len(options) > 0 || len(rest) > 0 || strings.ContainsAny(text, "\r\n"):
		return "", errors.New("it is not a single key")
	case key.Type() != ssh.KeyAlgoRSA && !slices.Contains(keyTypes, key.Type()):
		return "", fmt.Errorf("its type is %s", key.Type())
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}

// HostKey is the key a machine presents, and what known_hosts has of the machine.
type HostKey struct {
	Addr        string   // "host:port"
	Fingerprint string   // "ssh-ed25519 SHA256:..."
	Line        string   // for known_hosts, without newline
	Known       bool     // exactly this key is in known_hosts
	Other       []string // fingerprints that known_hosts has instead
}

// errScanned ends the handshake once the key is seen: nothing is sent to a machine that is not trusted yet.
var errScanned = errors.New("host key seen")

type scanner struct {
	*knownHosts
	found *HostKey
}

func (s *scanner) check(hostname string, remote net.Addr, key ssh.PublicKey) error {
	err := s.knownHosts.check(hostname, remote, key)
	if cert, ok := key.(*ssh.Certificate); ok && err != nil {
		key = cert.Key // the key can be trusted without its certificate
		err = s.knownHosts.check(hostname, remote, key)
	}
	s.found = &HostKey{
		Addr: s.addr, Fingerprint: fingerprint(key), Known: err == nil,
		Line: knownhosts.Line([]string{s.addr}, key),
	}
	if ClassOf(err) == HostKeyChanged {
		s.found.Other, _ = s.known()
	}
	return errScanned
}

// ScanHostKey returns a machine's host key without logging in.
func ScanHostKey(ctx context.Context, o Options) (HostKey, error) {
	o = o.withDefaults()
	kh, err := openKnownHosts(o.KnownHosts, o.addr())
	if err != nil {
		return HostKey{}, err
	}
	s := &scanner{knownHosts: kh}
	d := &dialer{options: o, network: (&net.Dialer{}).DialContext, verifier: func() (verifier, error) { return s, nil }}
	client, err := d.handshake(ctx, nil)
	if client != nil {
		err = errors.Join(err, client.Close())
	}
	if s.found != nil {
		return *s.found, nil
	}
	return HostKey{}, err
}

// TrustHostKey adds the key to the known_hosts file, which is created if missing. It never removes a key:
// a person must judge a changed one.
func TrustHostKey(path string, key HostKey) error {
	if len(key.Other) > 0 {
		return fmt.Errorf("trust %s: %s already has another key (%s); remove its line first if the machine was reinstalled: ssh-keygen -R %s -f %s",
			key.Addr, path, strings.Join(key.Other, ", "), Quote(knownhosts.Normalize(key.Addr)), Quote(path))
	}
	if key.Known {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("trust %s: %w", key.Addr, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("trust %s: %w", key.Addr, err)
	}
	line := key.Line + "\n"
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			line = "\n" + line
		}
	}
	_, err = f.WriteString(line)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("trust %s: %w", key.Addr, err)
	}
	return nil
}

// Package credential owns what a VM may use but not read: it keeps credentials, and ends the TLS of
// a VM's connections to their hosts to add the header there. A value is read when it is used, and
// is in no database, log, event or error. Of VMs and jobs, the package only knows the names of the
// credentials that a job has.
package credential

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/sleep"
	"linus/internal/wholefile"
)

// recheck is the time between two checks whether another engine has removed credentials in use.
const recheck = 2 * time.Second

// Store stores credentials without their values.
type Store interface {
	Credentials(ctx context.Context) ([]job.Credential, error)
	Credential(ctx context.Context, name string) (job.Credential, error) // job.ErrNotFound
	InsertCredential(ctx context.Context, c job.Credential) (bool, error)
	DeleteCredential(ctx context.Context, name string) error
}

// Options of a Keeper. Store, Dir and Secrets are required.
type Options struct {
	Store    Store
	Dir      string // of the given values, one file each, mode 0600
	Shared   bool   // other engines share the store, but not Dir: no values are accepted
	Secrets  func(names []string) ([]secret.Value, error)
	Roots    *x509.CertPool                                                       // CAs for the hosts' certificates; nil: the system's
	Dial     func(ctx context.Context, network, address string) (net.Conn, error) // nil: TCP
	Log      *slog.Logger
	Observer job.Observer  // may be nil
	Idle     time.Duration // without a byte in either direction; 0: 5 min
	Header   time.Duration // for a request's header to arrive; 0: 15 s
}

// Keeper keeps the credentials. Its methods may be called from any goroutine.
type Keeper struct {
	o Options

	values sync.Mutex // held while a credential and its value are added or removed together

	mu   sync.Mutex
	uses map[*use]struct{} // requests in progress
}

// use is a request in progress that uses a credential.
type use struct {
	name string
	of   time.Time // when the credential was created
	read time.Time // when the credential was read; zero: not yet
	end  context.CancelCauseFunc
}

var errRemoved = errors.New("the credential was removed")

// New returns a Keeper.
func New(o Options) *Keeper {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Idle, o.Header = cmp.Or(o.Idle, 5*time.Minute), cmp.Or(o.Header, 15*time.Second)
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if o.Observer == nil {
		o.Observer = func(job.Happening) {}
	}
	return &Keeper{o: o, uses: map[*use]struct{}{}}
}

// CreateCredential adds a credential.
func (k *Keeper) CreateCredential(ctx context.Context, n job.NewCredential) (job.Credential, error) {
	if err := n.Validate(); err != nil {
		return job.Credential{}, err
	}
	by := job.CallerFrom(ctx)
	c := job.Credential{CredentialSpec: n.CredentialSpec, CreatedAt: time.Now().UTC(), CreatedBy: by.Principal}
	switch {
	case n.Secret != "" && n.Value != "":
		return c, &job.FieldError{Field: "value", Problem: "is given beside secret", Remedy: "give one of them"}
	case n.Secret != "":
		if _, err := k.value(c); err != nil {
			return c, &job.FieldError{Field: "secret", Problem: err.Error(), Remedy: "configure it on the server first"}
		}
	case k.o.Shared:
		return c, &job.FieldError{Field: "value", Problem: "would be kept by this engine alone, and others may share the database", Remedy: "give every engine the same secret (LINUS_SECRETS_FILE), and its name as secret"}
	default:
		if err := check(c, n.Value); err != nil {
			return c, err
		}
	}
	k.values.Lock()
	defer k.values.Unlock()
	added, err := k.o.Store.InsertCredential(ctx, c)
	if err == nil && !added {
		err = &job.FieldError{Field: "name", Problem: fmt.Sprintf("there is a credential %q", c.Name), Remedy: "remove it first (linus credential rm), or choose another name", Fault: job.FaultState}
	}
	if err != nil {
		return c, err
	}
	if n.Secret == "" {
		if err := k.keep(c.Name, n.Value); err != nil {
			return c, errors.Join(fmt.Errorf("keep the value of credential %s: %w", c.Name, err), k.o.Store.DeleteCredential(context.WithoutCancel(ctx), c.Name))
		}
	}
	k.o.Log.Info("credential added", "credential", c.Name, "host", c.Host, "by", by.Principal)
	k.o.Observer(job.CredentialChange{Credential: c, Created: true, By: by})
	return c, nil
}

// keep writes a value where only this user can read it, completely or not at all.
func (k *Keeper) keep(name, value string) error {
	if err := os.MkdirAll(k.o.Dir, 0o700); err != nil {
		return err
	}
	return wholefile.Replace(filepath.Join(k.o.Dir, name), []byte(value))
}

// Credentials returns all credentials, by name.
func (k *Keeper) Credentials(ctx context.Context) ([]job.Credential, error) {
	return k.o.Store.Credentials(ctx)
}

// Credential returns a credential by its name, including those of agents' keys. It returns
// job.ErrNotFound if there is none.
func (k *Keeper) Credential(ctx context.Context, name string) (job.Credential, error) {
	if c, ok := job.KeyCredential(name); ok {
		return c, nil
	}
	return k.o.Store.Credential(ctx, name)
}

// RemoveCredential removes a credential and its value, and ends requests that use it.
func (k *Keeper) RemoveCredential(ctx context.Context, name string) (job.Credential, error) {
	c, err := k.o.Store.Credential(ctx, name)
	if errors.Is(err, job.ErrNotFound) {
		err = &job.FieldError{Field: "credential", Problem: fmt.Sprintf("there is no credential %.80q", name), Remedy: "linus credential list shows them", Fault: job.FaultUnknown}
	}
	if err != nil {
		return c, err
	}
	k.values.Lock()
	defer k.values.Unlock()
	if err := os.Remove(filepath.Join(k.o.Dir, c.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("remove the value of credential %s: %w", c.Name, err)
	}
	if err := k.o.Store.DeleteCredential(ctx, c.Name); err != nil {
		return c, err
	}
	k.cut(func(u *use) bool { return u.name == c.Name })
	by := job.CallerFrom(ctx)
	k.o.Log.Info("credential removed", "credential", c.Name, "by", by.Principal)
	k.o.Observer(job.CredentialChange{Credential: c, By: by})
	return c, nil
}

// For returns the current credential for a repository.
func (k *Keeper) For(ctx context.Context, r job.Repository) (job.Credential, error) {
	c, err := k.Credential(ctx, r.Credential)
	return c, forRepository(c, r, err)
}

func forRepository(c job.Credential, r job.Repository, err error) error {
	if errors.Is(err, job.ErrNotFound) {
		return fmt.Errorf("credential %q no longer exists", r.Credential)
	}
	if err == nil {
		err = c.Reads(r)
	}
	return err
}

// SSH returns a credential for a repository, and its private key (PEM). The returned ctx ends when
// the credential is removed, and must bound its use. The caller calls end afterwards.
func (k *Keeper) SSH(ctx context.Context, r job.Repository) (_ context.Context, c job.Credential, key []byte, end func(), err error) {
	ctx, c, end, err = k.begin(ctx, r.Credential)
	var text string
	if err = forRepository(c, r, err); err == nil {
		text, err = k.value(c)
	}
	if err != nil {
		end()
		return nil, c, nil, nil, err
	}
	return ctx, c, []byte(text + "\n"), end, nil // as the file ended
}

// value returns the current value of a credential. Errors do not contain it.
func (k *Keeper) value(c job.Credential) (string, error) {
	var text string
	if c.Secret != "" {
		values, err := k.o.Secrets([]string{c.Secret})
		if err != nil {
			return "", err
		}
		text = string(values[0].Reveal())
	} else {
		data, err := os.ReadFile(filepath.Join(k.o.Dir, c.Name))
		if err != nil {
			return "", fmt.Errorf("read the value of credential %s, which is kept by the engine that was given it: %w", c.Name, err)
		}
		text = string(data)
	}
	if err := check(c, text); err != nil {
		return "", fmt.Errorf("credential %s: %w", c.Name, err)
	}
	return text, nil
}

// check returns why a text cannot be a credential's value. The error does not contain the text.
func check(c job.Credential, text string) error {
	if err := c.CheckValue(text); err != nil || !c.SSH() {
		return err
	}
	if _, err := ssh.ParseRawPrivateKey([]byte(text + "\n")); err != nil {
		return &job.FieldError{Field: "value", Problem: "is not a private key without a passphrase", Remedy: "give the file that ssh-keygen -N '' makes"}
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(c.HostKey)); err != nil {
		return &job.FieldError{Field: "host_key", Problem: "is not a whole public key", Remedy: "give what ssh-keyscan prints behind the host's name, as in 'ssh-ed25519 AAAA...'"}
	}
	return nil
}

// begin returns a credential for a request, with a context that ends when the credential is
// removed. The caller must call end afterwards.
func (k *Keeper) begin(ctx context.Context, name string) (_ context.Context, c job.Credential, end func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	u := &use{name: name, end: cancel}
	k.mu.Lock()
	k.uses[u] = struct{}{} // first, so that a removal from now on ends it
	k.mu.Unlock()
	end = func() {
		k.mu.Lock()
		delete(k.uses, u)
		k.mu.Unlock()
		cancel(context.Canceled)
	}
	if c, err = k.Credential(ctx, name); err == nil {
		k.mu.Lock()
		u.of, u.read = c.CreatedAt, time.Now()
		k.mu.Unlock()
	}
	return ctx, c, end, err
}

func (k *Keeper) cut(which func(*use) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for u := range k.uses {
		if which(u) {
			u.end(errRemoved)
		}
	}
}

// sweep removes values without a credential, which an engine that died may have left. It does
// nothing if engines share a store, which then may not be the store of the values here.
func (k *Keeper) sweep(ctx context.Context) {
	if k.o.Shared {
		return
	}
	k.values.Lock()
	defer k.values.Unlock()
	all, err := k.o.Store.Credentials(ctx)
	kept, dirErr := os.ReadDir(k.o.Dir)
	if err != nil || dirErr != nil {
		return
	}
	for _, file := range kept {
		if slices.ContainsFunc(all, func(c job.Credential) bool { return c.Name == file.Name() && c.Secret == "" }) {
			continue
		}
		if err := os.Remove(filepath.Join(k.o.Dir, file.Name())); err != nil {
			k.o.Log.Warn("a value that belongs to no credential cannot be removed", "file", file.Name(), "err", err)
		}
	}
}

// Watch removes values without a credential. Then, until ctx ends, it ends requests that use
// credentials which another engine has removed. While the store fails, no requests begin, either.
func (k *Keeper) Watch(ctx context.Context) {
	k.sweep(context.WithoutCancel(ctx))
	for sleep.For(ctx, recheck) == nil {
		k.mu.Lock()
		busy := len(k.uses) > 0
		k.mu.Unlock()
		if !busy {
			continue
		}
		began := time.Now()
		all, err := k.o.Store.Credentials(ctx)
		if err != nil {
			continue
		}
		there := map[string]time.Time{}
		for _, c := range all {
			there[c.Name] = c.CreatedAt
		}
		k.cut(func(u *use) bool { return !u.read.IsZero() && u.read.Before(began) && !there[u.name].Equal(u.of) })
	}
}

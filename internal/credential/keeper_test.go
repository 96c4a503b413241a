package credential_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/credential"
	"linus/internal/gittest"
	"linus/internal/job"
)

func TestKeeper_ValuesAreInFilesOfOurOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	store := &memory{all: map[string]job.Credential{}}
	var told []string
	k := credential.New(credential.Options{Store: store, Dir: dir, Observer: func(h job.Happening) { told = append(told, fmt.Sprintf("%+v", h)) }})
	n := job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "a", Host: "a.example", Header: "x-api-key"}, Value: value}
	if _, err := k.CreateCredential(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	refused := func(n job.NewCredential, field string) {
		t.Helper()
		_, err := k.CreateCredential(t.Context(), n)
		one := new(job.FieldError)
		all := new(job.InvalidError)
		switch {
		case errors.As(err, &one) && one.Field == field:
		case errors.As(err, &all) && all.Fields[0].Field == field:
		default:
			t.Errorf("%+v: %v, want %s refused", n.CredentialSpec, err, field)
		}
	}
	refused(n, "name") // and what is there stays
	if text, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(text) != value {
		t.Errorf("%q, %v", text, err)
	}
	n.Name = "b"
	for _, bad := range []string{"", "short", "two\nlines of it", "a\r\nX-Evil: 1", "ends in one\n", " begins blank", "nul \x00 in it", "ümlaut in it"} {
		n.Value = bad
		refused(n, "value")
	}
	n.Value, n.Secret = value, "TOO"
	refused(n, "value")
	n.Secret, n.Name = "", "../../etc/cron.d/x"
	refused(n, "name")
	k = credential.New(credential.Options{Store: store, Dir: dir, Shared: true})
	n.Name = "c"
	refused(n, "value")
	if len(store.all) != 1 {
		t.Errorf("stored %v", store.all)
	}
	if _, err := k.RemoveCredential(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 || len(told) != 1 {
		t.Errorf("left %v, told %v", left, told)
	}
	if _, err := k.RemoveCredential(t.Context(), "a"); err == nil {
		t.Error("it is removed twice")
	}
}

// What git would be refused with later is refused when it is added.
func TestKeeper_KeysForSSHAreReadable(t *testing.T) {
	_, good := gittest.Key(t)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("a phrase"))
	if err != nil {
		t.Fatal(err)
	}
	host := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHGe1OWk1wF2aK2fVZ6hM3Ch0qVrXbLwC3mWxXkYg5fB"
	for name, of := range map[string]struct{ value, host, want string }{
		"a key":              {string(good), host, ""},
		"with a passphrase":  {string(pem.EncodeToMemory(locked)), host, "value: is not a private key without a passphrase"},
		"cut":                {string(good[:len(good)/2]), host, "value: is not a private key without a passphrase"},
		"another's host key": {string(good), "ssh-ed25519 AAAA", "host_key: "},
		"of two other kinds": {string(good), strings.Replace(host, "ssh-ed25519", "ssh-rsa", 1), "host_key: "},
	} {
		k := credential.New(credential.Options{Store: &memory{all: map[string]job.Credential{}}, Dir: t.TempDir()})
		_, err := k.CreateCredential(t.Context(), job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "a", Host: "git.example", HostKey: of.host}, Value: strings.TrimSuffix(of.value, "\n")})
		if (err == nil) != (of.want == "") || err != nil && !strings.Contains(err.Error(), of.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// removing is a store in which a credential is removed as soon as it is there.
type removing struct {
	memory

	remove func()
}

func (r *removing) InsertCredential(ctx context.Context, c job.Credential) (bool, error) {
	ok, err := r.memory.InsertCredential(ctx, c)
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		r.remove()
	}()
	select {
	case <-removed:
	case <-time.After(200 * time.Millisecond): // it waits, as it should
	}
	return ok, err
}

func TestKeeper_NothingIsLeftOfWhatIsRemovedWhileItIsAdded(t *testing.T) {
	dir := t.TempDir()
	removed := make(chan error, 1)
	store := &removing{memory: memory{all: map[string]job.Credential{}}}
	k := credential.New(credential.Options{Store: store, Dir: dir})
	store.remove = func() {
		_, err := k.RemoveCredential(context.Background(), "a")
		removed <- err
	}
	_, err := k.CreateCredential(t.Context(), job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "a", Host: "a.example", Header: "x-api-key"}, Value: value})
	if err := errors.Join(err, <-removed); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 || len(store.all) != 0 {
		t.Errorf("left %v, stored %v", left, store.all)
	}
}

func TestKeeper_AValueThatCannotBeKeptLeavesNoCredential(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store := &memory{all: map[string]job.Credential{}}
	k := credential.New(credential.Options{Store: store, Dir: dir})
	_, err := k.CreateCredential(t.Context(), job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "a", Host: "a.example", Header: "x-api-key"}, Value: value})
	if err == nil || strings.Contains(err.Error(), value) || len(store.all) != 0 {
		t.Errorf("%v; stored %v", err, store.all)
	}
}

// What an engine that died, or an older one, has left is removed; what is somebody's stays.
func TestKeeper_SweepsValuesOfNoCredential(t *testing.T) {
	dir := t.TempDir()
	store := &memory{all: map[string]job.Credential{
		"kept":  {CredentialSpec: job.CredentialSpec{Name: "kept"}},
		"named": {CredentialSpec: job.CredentialSpec{Name: "named", Secret: "S"}},
	}}
	for _, name := range []string{"kept", "gone", "named", ".new-123"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (all []string) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	ended, end := context.WithCancel(t.Context())
	end()
	credential.New(credential.Options{Store: store, Dir: dir, Shared: true}).Watch(ended)
	if got := names(); len(got) != 4 {
		t.Errorf("of a database that others share, it leaves %v", got)
	}
	credential.New(credential.Options{Store: store, Dir: dir}).Watch(ended)
	if got := names(); len(got) != 1 || got[0] != "kept" {
		t.Errorf("left %v", got)
	}
}

package credential_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"linus/internal/credential"
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

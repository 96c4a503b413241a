package guest_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/guest"
	"linus/internal/vm"
)

// Two engines with one installation key log in to each other's VMs; others do not.
func TestInstallationKey_MakesTheSameKeysEverywhere(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "keys")}
	if _, err := guest.ReadInstallationKey(dirs[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("without a key: %v", err)
	}
	made, err := guest.MakeInstallationKey(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.MakeInstallationKey(dirs[0]); err == nil {
		t.Error("the key was replaced")
	}
	path := filepath.Join(dirs[0], "installation")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Mkdir(dirs[1], 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dirs[1], "installation"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var publics []string
	for _, dir := range dirs {
		key, err := guest.ReadInstallationKey(dir)
		if err != nil {
			t.Fatal(err)
		}
		k := guest.Keys{Dir: dir, Installation: key}
		if dir == dirs[1] { // it logs in before it has made anything
			if path := k.Path(vm.VM{Job: "a"}); path != filepath.Join(dir, "a") {
				t.Errorf("path %s", path)
			}
		}
		for _, id := range []string{"a", "b"} {
			public, err := k.Make(id)
			if err != nil {
				t.Fatal(err)
			}
			publics = append(publics, public)
		}
		if err := k.Keep(func(string) bool { return false }); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "installation" {
			t.Errorf("left: %v, %v", left, err)
		}
		for _, odd := range []string{"", ".", "..", "../installation", "installation", "/etc/passwd"} {
			if path := k.Path(vm.VM{Job: odd}); path != "" {
				t.Errorf("key of %q is %s", odd, path)
			}
		}
	}
	if publics[0] != publics[2] || publics[1] != publics[3] || publics[0] == publics[1] {
		t.Errorf("keys: %q", publics)
	}
	another, err := guest.MakeInstallationKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	one, err := made.Fingerprint()
	two, err2 := another.Fingerprint()
	if err != nil || err2 != nil || one == two || strings.Contains(string(text), one) {
		t.Errorf("fingerprints %q, %q, %v, %v", one, two, err, err2)
	}
}

func TestReadInstallationKey_Refuses(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"others may read it": {strings.Repeat("ab", 32), 0o640, "chmod 600"},
		"it is cut":          {strings.Repeat("ab", 31), 0o600, "damaged"},
		"it is no hex":       {strings.Repeat("xy", 32), 0o600, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "installation")
			if err := errors.Join(os.WriteFile(path, []byte(tt.text), 0o600), os.Chmod(path, tt.mode)); err != nil {
				t.Fatal(err)
			}
			if _, err := guest.ReadInstallationKey(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

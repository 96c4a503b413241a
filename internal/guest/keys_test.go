package guest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"linus/internal/guest"
	"linus/internal/vm"
)

func TestKeys_OneForEachVMAndTheOldOneForOldVMs(t *testing.T) {
	k := guest.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	made := map[string]string{}
	for range 2 { // the second time they are there
		for _, id := range []string{"a", "b"} {
			public, err := k.Make(id)
			if err != nil || public == "" || made[id] != "" && made[id] != public {
				t.Fatalf("key of %s: %q, was %q: %v", id, public, made[id], err)
			}
			made[id] = public
			path := k.Path(vm.VM{ID: 100, Job: id})
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("private key of %s: %s, %v, %v", id, path, info, err)
			}
		}
	}
	if made["a"] == made["b"] {
		t.Error("two VMs have one key")
	}
	for _, odd := range []string{"", ".", "..", "../id_ed25519", "/etc/passwd", "installation"} {
		if path := k.Path(vm.VM{Job: odd}); path != "" {
			t.Errorf("key of %q is %s", odd, path)
		}
	}
	for _, half := range []string{"a.new", "b.new"} { // what a killed engine leaves
		if err := os.WriteFile(filepath.Join(k.Dir, half), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Keep(func(id string) bool { return id == "a" }); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, _ := os.ReadDir(k.Dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, []string{"a", "a.new"}) {
		t.Errorf("kept: %v", left)
	}
}

func TestKeys_DropRemovesOne(t *testing.T) {
	dir := t.TempDir()
	k := guest.Keys{Dir: filepath.Join(dir, "keys")}
	for _, id := range []string{"a", "b", "installation"} {
		if _, err := k.Make(id); err != nil {
			t.Fatal(err)
		}
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "a", "", ".", "..", "../other", "installation"} {
		if err := k.Drop(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	var left []string
	entries, _ := os.ReadDir(k.Dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if _, err := os.Stat(other); err != nil || !slices.Equal(left, []string{"b", "installation"}) {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A key that is being written is its VM's already: other engines, and this one, look for keys of none.
func TestKeys_OneThatIsBeingWrittenIsKept(t *testing.T) {
	k := guest.Keys{Dir: filepath.Join(t.TempDir(), "keys")}
	made := make(chan error)
	go func() {
		var err error
		for n := 0; n < 300 && err == nil; n++ {
			_, err = k.Make("a" + strconv.Itoa(n))
		}
		made <- err
	}()
	for {
		if err := k.Keep(func(id string) bool { return strings.HasPrefix(id, "a") }); err != nil {
			t.Error(err)
		}
		select {
		case err := <-made:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

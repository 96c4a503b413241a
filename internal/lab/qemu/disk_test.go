package qemu

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// A disk takes the hidden image with it that it alone is backed by, through a template that was
// made of such a disk, and removed before those that are made of it.
func TestDeleteDisk_TakesWhatOnlyItIsBackedBy(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not here")
	}
	dir, ctx := t.TempDir(), t.Context()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	link := func(base, disk string) {
		t.Helper()
		must(os.Link(at(base), at("."+disk+".base")))
		must(Driver{}.LinkDisk(ctx, at("."+disk+".base"), at(disk)))
	}
	must(Driver{}.CreateDisk(ctx, at("base-1"), "qcow2", 1<<20))
	link("base-1", "vm-2")
	must(os.Rename(at("vm-2"), at("base-2")))
	link("base-2", "vm-3")
	link("base-2", "vm-4")
	for _, step := range []struct {
		gone string
		left []string
	}{
		{"base-2", []string{".vm-2.base", ".vm-3.base", ".vm-4.base", "base-1", "vm-3", "vm-4"}},
		{"vm-3", []string{".vm-2.base", ".vm-4.base", "base-1", "vm-4"}},
		{"vm-4", []string{"base-1"}},
		{"vm-4", []string{"base-1"}},
	} {
		must(Driver{}.DeleteDisk(ctx, at(step.gone)))
		entries, err := os.ReadDir(dir)
		must(err)
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, step.left) {
			t.Errorf("without %s there are %v, want %v", step.gone, left, step.left)
		}
	}
}

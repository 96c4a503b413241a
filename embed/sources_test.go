package embed

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"linus/scripts"
)

var (
	definition = regexp.MustCompile(`(?m)^([a-z][a-z0-9]*_[a-z0-9_]*)\(\)`)
	comment    = regexp.MustCompile(`(?m)(^|\s)#\s.*$`)
	word       = regexp.MustCompile(`[$A-Za-z0-9_{./-]+(=|\(\))?`)
)

// sourceFaults says what is wrong with the source lines of a tree of scripts:
// a library file whose functions are called and that is not sourced, or one that
// comes in by another already. A function is known by its name, which has an
// underscore and belongs to one library file.
func sourceFaults(t *testing.T, tree fs.FS) []string {
	t.Helper()
	var files []string
	home := map[string]string{}           // library file by function
	own := map[string]map[string]bool{}   // functions by file
	sources := map[string][]string{}      // library files by file
	calls := map[string]map[string]bool{} // words by file
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".sh") {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		files = append(files, name)
		own[name], calls[name] = map[string]bool{}, map[string]bool{}
		form := entrySource
		if strings.HasPrefix(name, "lib/") {
			form = librarySource
		}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			own[name][m[1]] = true
			if strings.HasPrefix(name, "lib/") {
				home[m[1]] = name
			}
		}
		for line := range strings.Lines(string(text)) {
			if m := form.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
				sources[name] = append(sources[name], "lib/"+m[1])
			}
		}
		for _, w := range word.FindAllString(comment.ReplaceAllString(string(text), ""), -1) {
			calls[name][w] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var reaches func(from, to string) bool
	reaches = func(from, to string) bool {
		return slices.ContainsFunc(sources[from], func(lib string) bool { return lib == to || reaches(lib, to) })
	}
	var faults []string
	for _, name := range files {
		for function, lib := range home {
			if calls[name][function] && !own[name][function] && !reaches(name, lib) {
				faults = append(faults, name+" calls "+function+" and does not source "+lib)
			}
		}
		for i, lib := range sources[name] {
			for j, other := range sources[name] {
				if i != j && (lib == other || reaches(other, lib)) {
					faults = append(faults, name+" sources "+lib+", which "+other+" brings")
				}
			}
		}
		// What announces a lease arms the timer whose program is made of the sweep.
		if (calls[name]["lease_announce"] || calls[name]["vm_destroy"]) && !own[name]["vm_destroy"] && !own[name]["lease_announce"] &&
			!own[name]["lease_sweep"] && !reaches(name, "lib/sweep.sh") {
			faults = append(faults, name+" announces leases and does not source lib/sweep.sh")
		}
	}
	return faults
}

func TestScripts_SourceWhatTheyCall(t *testing.T) {
	for _, fault := range sourceFaults(t, scripts.FS) {
		t.Error(fault)
	}
}

func TestScripts_SourceWhatTheyCall_FindsFaults(t *testing.T) {
	const (
		here   = `source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/`
		beside = `source "${BASH_SOURCE[0]%/*}/`
	)
	lib := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	tree := fstest.MapFS{
		"lib/log.sh":      lib("log_info() {\n  :\n}\n"),
		"lib/run.sh":      lib(beside + "log.sh\"\nrun_it() {\n  log_info x # not by stat_read\n}\n"),
		"lib/stat.sh":     lib("stat_read() {\n  if ! log_info x; then :; fi\n}\n"),
		"lib/lease.sh":    lib("lease_announce() {\n  :\n}\n"),
		"lib/create.sh":   lib(beside + "lease.sh\"\nmake_it() {\n  lease_announce 1\n}\n"),
		"proxmox/good.sh": lib(here + "run.sh\"\nlog_info; run_it\n"),
		"proxmox/bad.sh":  lib(here + "run.sh\"\n" + here + "log.sh\"\ntrap stat_read EXIT\n"),
	}
	got := sourceFaults(t, tree)
	slices.Sort(got)
	want := []string{
		"lib/create.sh announces leases and does not source lib/sweep.sh",
		"lib/stat.sh calls log_info and does not source lib/log.sh",
		"proxmox/bad.sh calls stat_read and does not source lib/stat.sh",
		"proxmox/bad.sh sources lib/log.sh, which lib/run.sh brings",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestScript_InlinesNothingTwice(t *testing.T) {
	for _, name := range Names() {
		f, err := Script(name)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, m := range definition.FindAllStringSubmatch(string(f.Body), -1) {
			if seen[m[1]] {
				t.Errorf("%s defines %s twice", name, m[1])
			}
			seen[m[1]] = true
		}
	}
}

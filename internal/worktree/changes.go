package worktree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// bounds are those of an archive of a VM.
type bounds struct {
	files int
	bytes int64 // of their contents, which may be more than was sent of them
}

var changed = bounds{files: 2 * MaxFiles, bytes: 128 << 20}

// Change is what a command has done to one file.
type Change struct {
	Name          string // with slashes, local to the tree
	Before, After *State // nil: there is none
}

// State is a file's content.
type State struct {
	Data []byte
	Exec bool   // it may be executed
	Link string // of a symbolic link, what it points to
}

func (s *State) equal(other *State) bool {
	return s != nil && other != nil && bytes.Equal(s.Data, other.Data) && s.Exec == other.Exec && s.Link == other.Link
}

// ReadChanges reads two archives of a VM, tar and gzip: files as they were before a
// command, and as they are after it. It returns what differs, by name, and for people
// what it leaves out because it has no place in a tree.
func ReadChanges(before, after io.Reader) (changes []Change, left []string, err error) {
	was, leftWas, err := readArchive(before, changed)
	if err != nil {
		return nil, nil, err
	}
	is, leftIs, err := readArchive(after, changed)
	if err != nil {
		return nil, nil, err
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(was)), maps.Keys(is))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if c := (Change{name, was[name], is[name]}); !c.Before.equal(c.After) {
			changes = append(changes, c)
		}
	}
	left = append(leftWas, leftIs...)
	slices.Sort(left)
	return changes, slices.Compact(left), nil
}

// readArchive reads one of them. Nothing of it is trusted: neither names nor sizes.
func readArchive(from io.Reader, most bounds) (files map[string]*State, left []string, err error) {
	broken := func(err error) error { return fmt.Errorf("what the VM sent of the tree cannot be read: %w", err) }
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, nil, broken(err)
	}
	files = map[string]*State{}
	tooMuch := fmt.Errorf("what the VM sent of the tree is more than %d MB, or %d files", most.bytes>>20, most.files)
	room := most.bytes
	limited := &io.LimitedReader{R: zip, N: 2*most.bytes + 1<<20} // with all that stands between the contents
	r := tar.NewReader(limited)
	for entries := 0; ; entries++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return files, left, nil
		case limited.N <= 0 || entries >= most.files:
			return nil, nil, tooMuch
		case err != nil:
			return nil, nil, broken(err)
		}
		name := path.Clean(h.Name)
		state := &State{Exec: h.Mode&0o100 != 0}
		switch {
		case Unsafe(name) != "":
			left = append(left, fmt.Sprintf("%q: %s", name, Unsafe(name)))
			continue
		case h.Typeflag == tar.TypeSymlink:
			state = &State{Link: h.Linkname}
		case h.Typeflag != tar.TypeReg:
			left = append(left, fmt.Sprintf("%q is neither a file nor a link", name))
			continue
		}
		if state.Data, err = io.ReadAll(io.LimitReader(r, room+1)); err != nil {
			return nil, nil, broken(err)
		}
		if room -= int64(len(state.Data)); room < 0 {
			return nil, nil, tooMuch
		}
		files[name] = state
	}
}

// Unsafe says why a name that a VM sent must not be written in a tree; "" for one that
// may. What git keeps in .git it also runs.
func Unsafe(name string) string {
	if !filepath.IsLocal(filepath.FromSlash(name)) || name == "." {
		return "leads out of the tree"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return "is not a text that can be shown"
	}
	for part := range strings.SplitSeq(filepath.ToSlash(name), "/") {
		// As file systems see it that fold case, drop dots and blanks at the end, and
		// ignore what is invisible; what follows a colon is a stream of the file.
		seen, _, _ := strings.Cut(part, ":")
		seen = strings.TrimRight(strings.Map(func(r rune) rune {
			if unicode.Is(unicode.Cf, r) {
				return -1
			}
			return r
		}, seen), ". ")
		if strings.EqualFold(seen, ".git") || strings.EqualFold(seen, "git~1") {
			return "is git's own"
		}
	}
	return ""
}

// Reachable returns why a name that a VM sent must not be written below root: it is unsafe,
// or a link of the tree's own leads to what a name may not.
func Reachable(root *os.Root, name string) error {
	if why := Unsafe(name); why != "" {
		return fmt.Errorf("%q: %s", name, why)
	}
	for dir := filepath.Dir(filepath.FromSlash(name)); dir != "."; dir = filepath.Dir(dir) {
		if info, err := root.Lstat(dir); err == nil && !info.IsDir() {
			return fmt.Errorf("%s is not a directory here", filepath.ToSlash(dir))
		}
	}
	return nil
}

// Ours leaves out of changes files that are new and that git ignores in the tree.
func (t Tree) Ours(ctx context.Context, changes []Change) []Change {
	var added []string
	for _, c := range changes {
		if c.Before == nil {
			added = append(added, c.Name)
		}
	}
	ignored := t.ignored(ctx, added)
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Before == nil && ignored[c.Name] })
}

// Diff shows a change as a patch, as git apply and patch -p1 take it.
func (c Change) Diff() []byte {
	before, after := "a/"+c.Name, "b/"+c.Name
	var b bytes.Buffer
	var was, is []byte
	mode := func(s *State) string {
		switch {
		case s.Link != "":
			return "120000"
		case s.Exec:
			return "100755"
		}
		return "100644"
	}
	fmt.Fprintf(&b, "diff --git %s %s\n", before, after)
	switch {
	case c.Before == nil:
		fmt.Fprintf(&b, "new file mode %s\n", mode(c.After))
		before = "/dev/null"
	case c.After == nil:
		fmt.Fprintf(&b, "deleted file mode %s\n", mode(c.Before))
		after = "/dev/null"
	case mode(c.Before) != mode(c.After):
		fmt.Fprintf(&b, "old mode %s\nnew mode %s\n", mode(c.Before), mode(c.After))
	}
	if c.Before != nil {
		was = append([]byte(c.Before.Link), c.Before.Data...)
	}
	if c.After != nil {
		is = append([]byte(c.After.Link), c.After.Data...)
	}
	if bytes.IndexByte(was, 0) >= 0 || bytes.IndexByte(is, 0) >= 0 {
		if !bytes.Equal(was, is) {
			fmt.Fprintf(&b, "Binary files %s and %s differ\n", before, after)
		}
		return b.Bytes()
	}
	_, patch, _ := bytes.Cut(diff.Diff(before, was, after, is), []byte("\n")) // its first line is not git's
	b.Write(patch)
	return b.Bytes()
}

// Apply makes a change in the tree, if the file there is what it was before the change.
func (t Tree) Apply(c Change) error {
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	name := filepath.FromSlash(c.Name)
	if err := Reachable(root, c.Name); err != nil {
		return err
	}
	if c.Before != nil && c.Before.Link != "" || c.After != nil && c.After.Link != "" {
		return errors.New("is a symbolic link, and links are not taken: make it by hand")
	}
	switch here, err := state(root, name); {
	case err != nil:
		return err
	case here.equal(c.After), here == nil && c.After == nil:
		return nil // it has been made
	case !here.equal(c.Before) && (here != nil || c.Before != nil):
		return errors.New("has changed here since it was sent")
	}
	if c.After == nil {
		return root.Remove(name)
	}
	mode := fs.FileMode(0o666)
	if info, err := root.Lstat(name); err == nil {
		mode = info.Mode().Perm() &^ 0o111
	}
	if c.After.Exec {
		mode |= mode >> 2 & 0o111 // for who may read it
	}
	return Put(root, name, mode, true, func(file *os.File) error {
		_, err := file.Write(c.After.Data)
		return err
	})
}

// Put writes a file below root, with the mode and what fill writes: to a temporary file, which
// takes the name when all is there. It replaces what has the name, a link included, if over
// is set, and is an error otherwise.
func Put(root *os.Root, name string, mode fs.FileMode, over bool, fill func(*os.File) error) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	part := filepath.Join(filepath.Dir(name), ".linus-"+rand.Text())
	file, err := root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer root.Remove(part) //nolint:errcheck // renamed by then, or to be removed
	if err := errors.Join(fill(file), file.Close()); err != nil {
		return err
	}
	if over {
		return root.Rename(part, name)
	}
	return root.Link(part, name) // never replaces a file created meanwhile
}

// state returns what is at a name; nil if nothing is.
func state(root *os.Root, name string) (*State, error) {
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file here")
	case info.Size() > MaxBytes:
		return nil, errors.New("has changed here since it was sent")
	}
	data, err := root.ReadFile(name)
	return &State{Data: data, Exec: info.Mode()&0o100 != 0}, err
}

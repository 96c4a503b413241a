package worktree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"linus/internal/intake"
)

// bounds limit an archive from a VM.
type bounds struct {
	files int
	bytes int64 // of the contents, which may be more than was sent
}

var changed = bounds{files: 2 * MaxFiles, bytes: 128<<20 + 2*MaxIndex}

// Change is what a command has done to one file.
type Change struct {
	Name          string // with slashes, local to the tree
	Before, After *State // nil: no file
	Left          string // why the change can be neither made nor shown; empty: it can
}

// State is the state of a file.
type State struct {
	Data []byte
	Exec bool   // it is executable
	Link string // target of a symbolic link

	sum string // of a content that is not in Data
}

func (s *State) equal(other *State) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Exec == other.Exec && s.Link == other.Link && s.content() == other.content()
}

// content returns the sha256 of the content, as in an index.
func (s *State) content() string {
	if s.sum != "" {
		return s.sum
	}
	return sum(s.Data)
}

// ReadChanges reads the archive that a VM has made after a command (scripts/guest/run-tree.sh) and
// returns the differences from what was sent, by name. It trusts nothing in the archive.
func ReadChanges(archive io.Reader) ([]Change, error) { return readChanges(archive, changed) }

func readChanges(archive io.Reader, most bounds) ([]Change, error) {
	files, err := readArchive(archive, most)
	if err != nil {
		return nil, err
	}
	if files["index"] == nil || files["changes"] == nil {
		return nil, errors.New("what the VM sent of the tree has no list of what has changed")
	}
	before := parseIndex(files["index"].Data)
	changes := map[string]Change{}
	for line := range strings.SplitSeq(string(files["changes"].Data), "\x00") {
		if len(line) < 2 || len(changes) >= most.files {
			continue
		}
		c := Change{Name: line[1:], After: files["tree/"+line[1:]]}
		c.Before, err = sentState(before[c.Name], files["base/"+c.Name])
		switch {
		case Unsafe(c.Name) != "":
			c.Left = Unsafe(c.Name)
		case err != nil:
			c.Left = err.Error()
		case line[0] == '-':
			c.After = nil
		case c.After == nil:
			c.Left = "is too large, or one too many, or neither a file nor a link, or cannot be read there"
		}
		if c.Left != "" || !c.Before.equal(c.After) {
			changes[c.Name] = c
		}
	}
	// A file that cannot be seen there is not removed.
	for name, c := range changes {
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if above := changes[dir]; above.Left != "" && c.After == nil && c.Left == "" {
				c.Left = fmt.Sprintf("is not seen there, for %s %s", dir, above.Left)
				changes[name] = c
			}
		}
	}
	return slices.SortedFunc(maps.Values(changes), func(a, b Change) int { return strings.Compare(a.Name, b.Name) }), nil
}

// sentState returns the state of a file that was sent, from its entry in the index. It has the content
// unless that was too large.
func sentState(entry string, base *State) (*State, error) {
	kind, hash, _ := strings.Cut(entry, ":")
	switch {
	case entry == "":
		return nil, nil
	case base != nil && (base.Link != "") == strings.HasPrefix(entry, "2") && sum([]byte(base.Link), base.Data) == hash:
		return base, nil
	case strings.HasPrefix(entry, "0"):
		mode, err := strconv.ParseUint(kind, 8, 32)
		return &State{Exec: mode&0o100 != 0, sum: hash}, err
	}
	return nil, errors.New("is a link, and not the one that was sent")
}

// readArchive reads a gzipped tar archive. It trusts neither names nor sizes.
func readArchive(from io.Reader, most bounds) (files map[string]*State, err error) {
	broken := func(err error) error { return fmt.Errorf("what the VM sent of the tree cannot be read: %w", err) }
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, broken(err)
	}
	files = map[string]*State{}
	tooMuch := fmt.Errorf("what the VM sent of the tree is more than %d MB, or %d files", most.bytes>>20, most.files)
	room := most.bytes
	limited := &io.LimitedReader{R: zip, N: 2*most.bytes + 1<<20} // includes what is skipped or lies between contents
	r := tar.NewReader(limited)
	for entries := 0; ; entries++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return files, nil
		case limited.N <= 0 || entries >= most.files:
			return nil, tooMuch
		case err != nil:
			return nil, broken(err)
		}
		state := &State{Exec: h.Mode&0o100 != 0}
		switch h.Typeflag {
		case tar.TypeReg:
		case tar.TypeSymlink:
			state = &State{Link: h.Linkname}
		default:
			continue
		}
		if state.Data, err = io.ReadAll(io.LimitReader(r, room+1)); err != nil {
			return nil, broken(err)
		}
		if room -= int64(len(state.Data)); room < 0 {
			return nil, tooMuch
		}
		files[h.Name] = state
	}
}

// Unsafe returns why a name that a VM sent must not be written in a tree, or "" if it may.
func Unsafe(name string) string {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return "is not a text that can be shown"
	}
	if err := intake.Check(name, true); err != nil {
		return err.Error()
	}
	return ""
}

// Ours returns changes without new files that git ignores in the tree.
func (t Tree) Ours(ctx context.Context, changes []Change) ([]Change, error) {
	var added []string
	for _, c := range changes {
		if c.Before == nil && Unsafe(c.Name) == "" {
			added = append(added, c.Name)
		}
	}
	ignored, err := t.ignored(ctx, added)
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.Before == nil && ignored[c.Name] }), err
}

// Diff returns a change as a patch for git apply and patch -p1.
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
	if c.Before != nil && c.Before.sum != "" || bytes.IndexByte(was, 0) >= 0 || bytes.IndexByte(is, 0) >= 0 {
		if c.Before == nil || c.After == nil || c.Before.content() != c.After.content() {
			fmt.Fprintf(&b, "Binary files %s and %s differ\n", before, after)
		}
		return b.Bytes()
	}
	_, patch, _ := bytes.Cut(diff.Diff(before, was, after, is), []byte("\n")) // the first line is not in git's format
	b.Write(patch)
	return b.Bytes()
}

// Package intake writes files of a VM on this machine, whatever brought them: it is the one
// place that says which of the names that a VM gave may be written, and what must not be
// replaced. It knows nothing of VMs, jobs and archives.
package intake

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"linus/internal/lazyregexp"
)

// Into is a directory that files of a VM are written to. Their names have slashes, and are
// relative to it.
type Into struct {
	Root    *os.Root
	Replace bool // what has the name is replaced, a link and not what it points to
	Any     bool // also what is run by itself
}

// RefusedError says why something is not written, after its name.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// File writes a file: fill writes it to a temporary one, made with the mode, which takes
// the name when all is there.
func (i Into) File(name string, mode fs.FileMode, fill func(*os.File) error) error {
	at, err := i.place(name)
	if err != nil {
		return err
	}
	part := filepath.Join(filepath.Dir(at), ".linus-"+rand.Text())
	file, err := i.Root.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer i.Root.Remove(part) //nolint:errcheck // renamed by then, or to be removed
	if err := errors.Join(fill(file), file.Close()); err != nil {
		return err
	}
	if i.Replace {
		return i.Root.Rename(part, at)
	}
	return i.Root.Link(part, at) // never replaces a file created meanwhile
}

// temporary is the name of what is written here until it is all there.
var temporary = lazyregexp.New(`^\.linus-[A-Z2-7]{26}$`)

// Left returns what of that there is in a directory, files or directories: who wrote it was killed,
// or is at work.
func Left(root *os.Root, dir string, dirs bool) (names []string) {
	entries, _ := fs.ReadDir(root.FS(), filepath.ToSlash(dir)) // one that cannot be read has none to be told of
	for _, e := range entries {
		if e.IsDir() == dirs && temporary.MatchString(e.Name()) {
			names = append(names, path.Join(filepath.ToSlash(dir), e.Name()))
		}
	}
	return names
}

// Link makes a symbolic link. That it does not lead out is the caller's to know.
func (i Into) Link(name, target string) error {
	at, err := i.place(name)
	if err != nil {
		return err
	}
	if !i.Replace {
		return i.Root.Symlink(target, at)
	}
	part := filepath.Join(filepath.Dir(at), ".linus-"+rand.Text())
	if err := i.Root.Symlink(target, part); err != nil {
		return err
	}
	defer i.Root.Remove(part) //nolint:errcheck // renamed by then, or to be removed
	return i.Root.Rename(part, at)
}

// Dir makes a directory, and says whether it was not there before.
func (i Into) Dir(name string) (made bool, err error) {
	if filepath.Clean(filepath.FromSlash(name)) == "." {
		return false, nil
	}
	if err := i.Reach(name); err != nil {
		return false, err
	}
	switch info, err := i.Root.Lstat(filepath.FromSlash(name)); {
	case err != nil:
		return true, i.Root.MkdirAll(filepath.FromSlash(name), 0o755)
	case !info.IsDir():
		return false, refuse("is not a directory here")
	}
	return false, nil
}

// place makes the directory of a file, and returns where the file is to be.
func (i Into) place(name string) (string, error) {
	if err := i.Reach(name); err != nil {
		return "", err
	}
	at := filepath.FromSlash(name)
	switch info, err := i.Root.Lstat(at); {
	case err != nil: // making it tells why
	case info.IsDir():
		return "", refuse("is a directory here")
	case !i.Replace:
		return "", refuse("already exists; --force replaces it")
	}
	return at, i.Root.MkdirAll(filepath.Dir(at), 0o755)
}

// Reach returns an error if the name must not be written, or if the way to it leads through a
// link: that could lead to where no name may.
func (i Into) Reach(name string) error {
	if err := Check(name, i.Any); err != nil {
		return err
	}
	for dir := filepath.Dir(filepath.FromSlash(name)); dir != "."; dir = filepath.Dir(dir) {
		switch info, err := i.Root.Lstat(dir); {
		case err != nil || info.IsDir():
		case info.Mode()&fs.ModeSymlink != 0:
			return refuse("%s is a link here, and nothing is written through links", filepath.ToSlash(dir))
		default:
			return refuse("%s is not a directory here", filepath.ToSlash(dir))
		}
	}
	return nil
}

// shortName is a name as Windows makes it up for a longer one, which it then means.
var shortName = lazyregexp.New(`^[^~.]{1,6}~[0-9]{1,6}(\.|$)`)

// Check returns why a name that a VM gave must not be written; nil for one that may. started
// allows also what is run by itself; nothing allows what is git's own, or leads out.
func Check(name string, started bool) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) || name == "." {
		return refuse("leads out of the directory")
	}
	before, runs := "", ""
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '/' || r == '\\' }) {
		folded := fold(part)
		switch {
		case folded == "" && part != ".":
			return refuse("leads out of the directory")
		case folded == ".git", strings.HasPrefix(folded, "git~"):
			return refuse("is git's own, and git runs what is in it")
		case shortName.MatchString(folded):
			runs = "what Windows takes it for"
		}
		for _, seen := range []string{folded, before + "/" + folded} {
			if by := startedBy(seen); by != "" {
				runs = by
			}
		}
		before = folded
	}
	if runs != "" && !started {
		return refuse("is run by itself (by %s); --force writes it", runs)
	}
	return nil
}

// Inert is a name that a browser or curl may save a file of a VM as: its own, unless that is
// one to which Check objects.
func Inert(name string) string {
	if Check(name, false) != nil {
		return "_" + strings.TrimLeft(strings.NewReplacer("~", "_", `\`, "_").Replace(name), ". ")
	}
	return name
}

// fold returns part of a path as file systems may see it: they compare without case, ignore
// what is invisible, drop dots and blanks at the end, and take what follows a colon for a
// stream of the file.
func fold(part string) string {
	part, _, _ = strings.Cut(norm.NFKC.String(part), ":")
	part = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, part)
	return strings.TrimRight(cases.Fold().String(part), ". ")
}

// Package intake writes a VM's files on this machine, however they were transferred. It is the only
// place that decides which names given by a VM may be written, and what must not be replaced. It
// knows nothing of VMs, jobs and archives.
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

// Into is a directory that files of a VM are written to. Names use slashes and are relative to Root.
type Into struct {
	Root    *os.Root
	Replace bool // replace existing files; of a link the link itself, not its target
	Any     bool // also write files that programs run by themselves
}

// RefusedError says why a file is not written. The text follows the file's name.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// File writes a file. fill writes to a temporary file with the given mode, which is renamed when it
// is complete.
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

// temporary matches the names of files that are not complete yet.
var temporary = lazyregexp.New(`^\.linus-[A-Z2-7]{26}$`)

// Left returns the temporary files, or with dirs the temporary directories, in a directory: their
// writer was killed, or is still at work.
func Left(root *os.Root, dir string, dirs bool) (names []string) {
	entries, _ := fs.ReadDir(root.FS(), filepath.ToSlash(dir)) // an unreadable directory has none to report
	for _, e := range entries {
		if e.IsDir() == dirs && temporary.MatchString(e.Name()) {
			names = append(names, path.Join(filepath.ToSlash(dir), e.Name()))
		}
	}
	return names
}

// Link creates a symbolic link. The caller must make sure that the link does not lead out of the directory.
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

// Dir creates a directory, and reports whether it is new.
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

// place creates the directory of a file, and returns the file's path.
func (i Into) place(name string) (string, error) {
	if err := i.Reach(name); err != nil {
		return "", err
	}
	at := filepath.FromSlash(name)
	switch info, err := i.Root.Lstat(at); {
	case err != nil: // the error shows when the file is created
	case info.IsDir():
		return "", refuse("is a directory here")
	case !i.Replace:
		return "", refuse("already exists; --force replaces it")
	}
	return at, i.Root.MkdirAll(filepath.Dir(at), 0o755)
}

// Reach returns an error if the name must not be written, or if its path leads through a link, which
// could lead anywhere.
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

// shortName matches short names that Windows generates for longer names, and accepts in their place.
var shortName = lazyregexp.New(`^[^~.]{1,6}~[0-9]{1,6}(\.|$)`)

// Check returns why a name given by a VM must not be written; nil if it may be. started also allows names
// that programs run by themselves; names of git's own, or that lead out of the directory, are never allowed.
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

// Inert returns a name under which a browser or curl may save a VM's file: the file's own, unless
// Check objects to it.
func Inert(name string) string {
	if Check(name, false) != nil {
		return "_" + strings.TrimLeft(strings.NewReplacer("~", "_", `\`, "_").Replace(name), ". ")
	}
	return name
}

// fold returns part of a path as file systems may see it: they ignore case and invisible characters,
// drop trailing dots and blanks, and take what follows a colon for a stream of the file.
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

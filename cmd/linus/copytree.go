package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"linus/internal/intake"
	"linus/internal/job"
)

// download fetches a file or a directory of a VM to target or, if into is set, below it.
func (a *app) download(ctx context.Context, e job.Files, from job.FileRef, target string, into, force bool) error {
	archive, err := e.ReadTree(ctx, from)
	if err != nil {
		return err
	}
	defer archive.Close() //nolint:errcheck // read to its end, or given up
	top := ownName(from.Path)
	if into {
		target = filepath.Join(target, filepath.FromSlash(top))
	}
	if into && top != "" && !filepath.IsLocal(filepath.FromSlash(top)) {
		return fmt.Errorf("%q is not a name for a file here; give one", top)
	}
	u := &unpacking{app: a, from: tar.NewReader(archive), force: force, dirs: map[string]bool{}}
	if err := u.run(target); err != nil {
		return err
	}
	// Only the end of the archive proves that it is complete.
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return err
	}
	if u.left > mostLeftOut {
		a.note("left out: %d more", u.left-mostLeftOut)
	}
	switch {
	case !u.refused:
		return nil
	case u.left == 1:
		return errors.New("1 item in the VM was not copied")
	}
	return fmt.Errorf("%d items in the VM were not copied", u.left)
}

// unpacking writes an archive from a VM, which the VM may have forged, to this machine. It writes
// nothing outside the target, whatever names and links the archive contains.
type unpacking struct {
	app     *app
	from    *tar.Reader
	force   bool
	root    *os.Root
	links   []*tar.Header   // symbolic links, made last, so that no earlier entry can go through one
	modes   []*tar.Header   // directories made here, whose modes are set after their contents are written
	dirs    map[string]bool // where files were written to
	left    int             // how many entries were left out
	refused bool            // one was left out because of its name, or of what exists here
	out     string          // a directory that was refused, along with its contents
}

// mostLinks limits how many links and directories are remembered.
const mostLinks = 1_000_000

// run unpacks to target: a directory, or a single file.
func (u *unpacking) run(target string) (err error) {
	first, err := u.from.Next()
	if err != nil {
		return unreadable(err)
	}
	dir, name := target, ""
	if first.Typeflag != tar.TypeDir {
		dir, name = filepath.Split(filepath.Clean(target))
		dir = filepath.Join(dir, ".")
	} else if own := ownName(filepath.ToSlash(target)); own != "" && intake.Check(own, u.force) != nil {
		return fmt.Errorf("%s %w", strconv.Quote(own), intake.Check(own, u.force))
	} else if err := os.Mkdir(dir, 0o755); err == nil { //nolint:gosec // as scp makes one; the umask narrows it
		u.modes = append(u.modes, &tar.Header{Name: ".", Mode: first.Mode})
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if u.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	defer u.root.Close() //nolint:errcheck // only a handle
	if name != "" {
		if first.Typeflag != tar.TypeReg || sparse(first) {
			return fmt.Errorf("the VM sent %q, which is neither a directory nor a file", first.Name)
		}
		if err := u.write(name, true, first.FileInfo().Mode().Perm(), u.from); err != nil { // the user named it
			return fmt.Errorf("%s: %w", strconv.Quote(target), err)
		}
		return nil
	}
	for h := first; err == nil; h, err = u.from.Next() {
		if err := u.entry(h); err != nil {
			return err
		}
	}
	if !errors.Is(err, io.EOF) {
		return unreadable(err)
	}
	return u.finish()
}

func unreadable(err error) error {
	if _, known := errors.AsType[*job.FieldError](err); known {
		return err
	}
	return fmt.Errorf("what the VM sends ends too early, or is no archive: %w", err)
}

func (u *unpacking) entry(h *tar.Header) error {
	name := filepath.FromSlash(path.Clean(h.Name))
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the VM sent %q, which leads out of the directory", h.Name)
	}
	if u.out != "" && strings.HasPrefix(name, u.out+string(filepath.Separator)) {
		return nil
	}
	switch {
	case sparse(h):
		return fmt.Errorf("the VM sent %q as a sparse file, which is not unpacked: its size is whatever it says", h.Name)
	case h.Typeflag == tar.TypeReg:
		return u.refuse(name, u.write(name, u.force, h.FileInfo().Mode().Perm(), u.from))
	case h.Typeflag == tar.TypeDir:
		made, err := u.into(u.force).Dir(filepath.ToSlash(name))
		if made {
			u.modes = append(u.modes, h)
		}
		if err != nil {
			u.out = name
		}
		return errors.Join(u.refuse(name, err), u.bounded())
	case h.Typeflag == tar.TypeSymlink:
		u.links = append(u.links, h)
		return u.bounded()
	case h.Typeflag == tar.TypeLink:
		old := filepath.FromSlash(path.Clean(h.Linkname))
		if !filepath.IsLocal(old) {
			return fmt.Errorf("the VM sent %q as a link to %q, which leads out of the directory", h.Name, h.Linkname)
		}
		return u.again(old, name)
	}
	u.leave(name, "is not a file but a socket, pipe or device")
	return nil
}

func (u *unpacking) bounded() error {
	if len(u.links)+len(u.modes) > mostLinks {
		return fmt.Errorf("the VM sent more than %d directories and links", mostLinks)
	}
	return nil
}

// sparse reports whether a file's size can differ from that of the data sent for it.
func sparse(h *tar.Header) bool {
	return h.Typeflag == tar.TypeGNUSparse || slices.ContainsFunc([]string{"GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.realsize"}, func(key string) bool {
		_, has := h.PAXRecords[key]
		return has
	})
}

// into returns where entries are written. named is for names that the user has given, or forced.
func (u *unpacking) into(named bool) intake.Into {
	return intake.Into{Root: u.root, Replace: u.force, Any: named}
}

// refuse reports a refused entry and returns nil, so that unpacking continues. It returns every
// other error, such as a malformed archive.
func (u *unpacking) refuse(name string, err error) error {
	if _, refused := errors.AsType[*intake.RefusedError](err); !refused {
		return err
	}
	u.refused = true
	u.leave(name, err.Error())
	return nil
}

// leave reports that an entry is left out, and why.
func (u *unpacking) leave(name, why string) {
	if u.left++; u.left <= mostLeftOut {
		u.app.note("left out: %s %s", strconv.Quote(filepath.ToSlash(name)), why)
	}
}

// again writes a file that was unpacked already under another name.
func (u *unpacking) again(old, name string) error {
	file, err := u.root.Open(old)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("the VM sent a link to %q, which is no file", old))
	}
	return u.refuse(name, u.write(name, u.force, info.Mode().Perm(), file))
}

func (u *unpacking) write(name string, named bool, mode fs.FileMode, from io.Reader) error {
	if in := path.Dir(filepath.ToSlash(name)); !u.dirs[in] && len(u.dirs) < mostLinks {
		u.dirs[in] = true
		u.app.noteLeft(u.root, u.root.Name(), map[string]bool{in: true}) // before anything from the VM is in it
	}
	return u.into(named).File(filepath.ToSlash(name), 0o600, func(file *os.File) error {
		if _, err := io.Copy(file, from); err != nil {
			return unreadable(err)
		}
		return file.Chmod(mode)
	})
}

// finish makes the symbolic links and sets the directories' modes.
func (u *unpacking) finish() error {
	for _, h := range u.links {
		name := path.Clean(h.Name)
		if !staysInside(u.root, name, h.Linkname) {
			u.leave(name, fmt.Sprintf("is a link to %s, which may lead out of the directory", strconv.Quote(h.Linkname)))
			continue
		}
		if err := u.refuse(name, u.into(u.force).Link(name, h.Linkname)); err != nil {
			return err
		}
	}
	slices.Reverse(u.modes)
	for _, h := range u.modes {
		if err := u.root.Chmod(filepath.FromSlash(path.Clean(h.Name)), h.FileInfo().Mode().Perm()|0o700); err != nil {
			return err
		}
	}
	return nil
}

// staysInside reports whether a symbolic link cannot lead out of root, whatever other such links
// there are: it goes up only at its beginning, by no more directories than it is below root, and
// none of these directories is a link.
func staysInside(root *os.Root, name, target string) bool {
	if target == "" || path.IsAbs(target) || filepath.IsAbs(filepath.FromSlash(target)) || filepath.VolumeName(filepath.FromSlash(target)) != "" {
		return false
	}
	above := strings.Split(name, "/")
	for i := 1; i < len(above); i++ {
		info, err := root.Lstat(filepath.FromSlash(path.Join(above[:i]...)))
		if err == nil && !info.IsDir() {
			return false
		}
	}
	up, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if down {
				return false
			}
			up++
		default:
			down = true
		}
	}
	return up <= len(above)-1
}

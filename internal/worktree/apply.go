package worktree

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/intake"
)

// Apply makes changes in the tree: all of them, or none if one cannot be made. Files must be here as they
// were when they were sent; files that are already as they should become are skipped. Files that are run
// automatically (internal/intake) are written only if started is set.
//
// Apply copies what it replaces or removes to the directory keep, whose old content is lost, and removes
// directories that become empty. It returns the changes it has made, even with an error, which then says
// that the copies are not in keep.
func (t Tree) Apply(changes []Change, keep string, started bool) (made []Change, err error) {
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only a handle
	problems := unfinished(root)
	for _, c := range changes {
		here, err := state(intake.Into{Root: root, Any: started || c.After == nil}, c, changes)
		switch {
		case c.Left != "":
			err = errors.New(c.Left)
		case err != nil || here.equal(c.After):
		case c.Before != nil && c.Before.Link != "" || c.After != nil && c.After.Link != "":
			err = errors.New("is a symbolic link, and links are not taken: make it by hand, and apply again")
		case !here.equal(c.Before):
			err = errors.New("has changed here since it was sent")
		default:
			made = append(made, c)
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	if problems != nil || len(made) == 0 {
		return nil, problems
	}
	next := keep + ".next"
	if err = keepBefore(root, made, next); err == nil {
		w := swap{root: root, stage: ".linus-" + rand.Text()}
		if err = w.run(made); !w.stuck {
			_ = root.RemoveAll(w.stage) // everything in it is elsewhere, too
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(next))
	}
	if err = errors.Join(os.RemoveAll(keep), os.Rename(next, keep)); err != nil {
		err = fmt.Errorf("what was replaced or removed is in %s: %w", next, err)
	}
	return made, err
}

// Unfinished returns an error if an Apply was killed in the middle. The error says where the files are
// that Apply had moved away.
func (t Tree) Unfinished() error {
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle
	return unfinished(root)
}

// stageTime is more than an Apply takes until it moves the first file.
const stageTime = time.Hour

func unfinished(root *os.Root) (err error) {
	for _, stage := range intake.Left(root, ".", true) {
		if _, none := root.Lstat(filepath.Join(stage, "old")); none == nil {
			stage = filepath.Join(root.Name(), stage)
			err = errors.Join(err, fmt.Errorf("an --apply was killed in the middle here, if it is not at work: what it had taken away is in %s; bring that back (cp -a %s/. %s), then remove %s",
				filepath.Join(stage, "old"), filepath.Join(stage, "old"), root.Name(), stage))
		} else if info, gone := root.Lstat(stage); gone == nil && time.Since(info.ModTime()) > stageTime {
			_ = errors.Join(root.RemoveAll(filepath.Join(stage, "new")), root.Remove(stage)) // it contains only copies
		}
	}
	return err
}

func keepBefore(root *os.Root, changes []Change, keep string) error {
	if err := errors.Join(os.RemoveAll(keep), os.MkdirAll(keep, 0o700)); err != nil {
		return err
	}
	to, err := os.OpenRoot(keep)
	if err != nil {
		return err
	}
	defer to.Close() //nolint:errcheck // only a handle
	for _, c := range changes {
		if c.Before == nil {
			continue
		}
		name := filepath.FromSlash(c.Name)
		data, err := root.ReadFile(name)
		if err == nil {
			err = intake.Into{Root: to, Any: true}.File(c.Name, c.mode(root), writing(data))
		}
		if err != nil {
			return fmt.Errorf("keep %s as it is: %w", c.Name, err)
		}
	}
	return nil
}

// mode returns the permissions of the existing file, or those of a new one.
func (c Change) mode(root *os.Root) fs.FileMode {
	if info, err := root.Lstat(filepath.FromSlash(c.Name)); err == nil && info.Mode().IsRegular() {
		return info.Mode().Perm()
	}
	return 0o666
}

func writing(data []byte) func(*os.File) error {
	return func(file *os.File) error {
		_, err := file.Write(data)
		return err
	}
}

// swap replaces files, and moves them back if one cannot be replaced.
type swap struct {
	root  *os.Root
	stage string // a directory for the new files, all written before the first move, and the old ones, by name
	moved [][2]string
	stuck bool // an old file is in stage only: another file has taken its place
}

func (w *swap) run(changes []Change) (err error) {
	fresh := func(i int) string { return path.Join(w.stage, "new", strconv.Itoa(i)) }
	for i, c := range changes {
		if c.After == nil {
			continue
		}
		mode := c.mode(w.root) &^ 0o111
		if c.After.Exec {
			mode |= mode >> 2 & 0o111 // for everybody who may read it
		}
		if err := (intake.Into{Root: w.root, Any: true}).File(fresh(i), mode, writing(c.After.Data)); err != nil {
			return fmt.Errorf("write %s: %w", c.Name, err)
		}
	}
	defer func() {
		for _, moved := range slices.Backward(w.moved) {
			if err == nil {
				return
			}
			if back := w.move(moved[1], moved[0]); back != nil {
				w.stuck = true
				err = errors.Join(err, fmt.Errorf("what was %s is in %s: %w", moved[0], moved[1], back))
			}
			w.prune(moved[1])
		}
	}()
	for _, c := range changes {
		if c.Before == nil {
			continue
		}
		old := path.Join(w.stage, "old", c.Name)
		if err := w.move(c.Name, old); err != nil {
			return err
		}
		// Somebody may have changed the file since it was compared.
		if was, err := stateOf(w.root, old); err != nil || !was.equal(c.Before) {
			return errors.Join(err, fmt.Errorf("%s: has changed here since it was sent", c.Name))
		}
		if c.After == nil {
			w.prune(c.Name)
		}
	}
	for i, c := range changes {
		if c.After == nil {
			continue
		}
		if info, err := w.root.Lstat(filepath.FromSlash(c.Name)); err == nil && !info.IsDir() {
			return fmt.Errorf("%s: has changed here since it was sent", c.Name)
		} else if err == nil {
			if err := w.root.Remove(filepath.FromSlash(c.Name)); err != nil {
				return fmt.Errorf("%s: is a directory here, with files that were not sent: %w", c.Name, err)
			}
		}
		if err := w.move(fresh(i), c.Name); err != nil {
			return err
		}
	}
	return nil
}

// move moves a file to a name that must not exist yet.
func (w *swap) move(from, to string) error {
	from, to = filepath.FromSlash(from), filepath.FromSlash(to)
	err := w.root.MkdirAll(filepath.Dir(to), 0o755)
	if err == nil {
		if _, err = w.root.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			err = w.root.Rename(from, to)
		} else if err == nil {
			err = &fs.PathError{Op: "move " + from + " to", Path: to, Err: fs.ErrExist}
		}
	}
	if err == nil {
		w.moved = append(w.moved, [2]string{from, to})
	}
	return err
}

// prune removes the empty directories above a name.
func (w *swap) prune(name string) {
	for dir := filepath.Dir(filepath.FromSlash(name)); dir != "." && w.root.Remove(dir) == nil; dir = filepath.Dir(dir) {
	}
}

// state returns the present state of the file to change, or nil if there is no file. A directory counts
// as no file: it is removed if it is empty by then. A name below a file counts as no file if the change
// removes it, or if the changes remove that file.
func state(into intake.Into, c Change, changes []Change) (*State, error) {
	if why := Unsafe(c.Name); why != "" {
		return nil, errors.New(why)
	}
	if err := into.Reach(c.Name); err != nil {
		removed := func(above Change) bool { return above.After == nil && strings.HasPrefix(c.Name, above.Name+"/") }
		if c.After == nil || intake.Check(c.Name, into.Any) == nil && slices.ContainsFunc(changes, removed) {
			return nil, nil
		}
		return nil, err
	}
	return stateOf(into.Root, c.Name)
}

func stateOf(root *os.Root, name string) (*State, error) {
	name = filepath.FromSlash(name)
	info, err := root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir():
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		link, err := root.Readlink(name)
		return &State{Link: filepath.ToSlash(link)}, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is neither a file nor a link here")
	case info.Size() > MaxBytes:
		return nil, errors.New("has changed here since it was sent")
	}
	data, err := root.ReadFile(name)
	return &State{Exec: info.Mode()&0o100 != 0, sum: sum(data)}, err
}

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// tree is what scp can copy of a source. scp follows links to files, stops at
// links to directories, and fails at dangling links and special files.
type tree struct {
	source string
	parts  []part
	out    []string // what cannot be copied, and why
	linked bool     // it contains directories behind links
}

// part is a file or directory of a tree.
type part struct {
	name string // in the tree; "" is the tree itself
	path string // absolute
	dir  bool
	mode fs.FileMode
}

// scanTree walks a source, including directories behind links.
func scanTree(source string) (tree, error) {
	t := tree{source: source}
	root, err := filepath.Abs(source)
	if err != nil {
		return t, err
	}
	var visit func(name string, above []fs.FileInfo)
	visit = func(name string, above []fs.FileInfo) {
		path := filepath.Join(root, name)
		leave := func(why string) {
			t.out = append(t.out, fmt.Sprintf("%s %s", strconv.Quote(filepath.Join(source, name)), why))
		}
		link, err := os.Lstat(path)
		isLink := err == nil && link.Mode()&fs.ModeSymlink != 0
		info, err := os.Stat(path)
		switch {
		case err != nil && isLink:
			leave("is a dangling link")
		case err != nil || info.Mode().IsRegular(): // scp reports what it cannot read
			t.parts = append(t.parts, part{name: name, path: path})
		case !info.IsDir():
			leave("is not a file but a socket, pipe or device")
		case slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }):
			leave("is a link to a directory that contains it")
		default:
			entries, err := os.ReadDir(path)
			if err != nil {
				t.parts = append(t.parts, part{name: name, path: path})
				return
			}
			t.linked = t.linked || isLink && name != ""
			t.parts = append(t.parts, part{name: name, path: path, dir: true, mode: info.Mode().Perm()})
			for _, e := range entries {
				visit(filepath.Join(name, e.Name()), append(slices.Clip(above), info))
			}
		}
	}
	visit("", nil)
	return t, nil
}

// stage returns sources that scp can copy whole. A source with something scp cannot
// copy is replaced by a temporary tree of links to the rest, which remove deletes.
// What is left out is reported.
func (a *app) stage(sources []string) (staged []string, remove func(), err error) {
	staged, remove = slices.Clone(sources), func() {}
	dir := ""
	for i, source := range sources {
		t, err := scanTree(source)
		base := filepath.Base(source)
		if err != nil || len(t.parts) == 0 || len(t.out) == 0 && !t.linked || base == ".." || base == string(filepath.Separator) {
			continue // scp copies it, or reports why not
		}
		for _, out := range t.out {
			a.note("left out: %s", out)
		}
		if dir == "" {
			if dir, err = os.MkdirTemp("", "linus-cp"); err != nil {
				return nil, remove, fmt.Errorf("create a temporary directory: %w", err)
			}
			remove = func() { _ = os.RemoveAll(dir) }
		}
		if staged[i], err = t.link(filepath.Join(dir, strconv.Itoa(i)), base); err != nil {
			return nil, remove, fmt.Errorf("list the files of %s: %w", source, err)
		}
	}
	return staged, remove, nil
}

// link creates the tree of links in dir, and returns its name for scp.
func (t tree) link(dir, base string) (string, error) {
	root := filepath.Join(dir, base)
	if base == "." {
		root = filepath.Join(dir, "here")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, p := range t.parts {
		at := filepath.Join(root, p.name)
		var err error
		if p.dir {
			if err = os.Mkdir(at, 0o700); err == nil {
				err = os.Chmod(at, p.mode|0o700)
			}
		} else {
			err = os.Symlink(p.path, at)
		}
		if err != nil {
			return "", err
		}
	}
	if base == "." {
		root += "/."
	}
	return root, nil
}

// runTool runs a program to its end on this process's streams and returns its exit
// code as an exitError.
func runTool(program string, argv []string) error {
	cmd := exec.Command(program, argv[1:]...) //nolint:noctx // Ctrl-C reaches it too
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitError(exit.ExitCode())
	}
	return err
}

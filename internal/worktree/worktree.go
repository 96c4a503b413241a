// Package worktree handles the tree of files that a person works in, as it is sent to a VM and as the VM's
// changes come back: which files are in it, which have changed since they were sent, a diff, and how changes
// get into the tree. What comes back is hostile. The package knows nothing of VMs, jobs and engines.
package worktree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Tree is a tree of files.
type Tree struct {
	Root string // absolute
	Sub  string // the requested directory in it, with slashes; empty: the root itself
	Git  bool   // git says which files are part of it
	Name string // of letters, digits, dashes and underscores; unique to the directory
}

// Find returns the tree that a directory is in: git's whole work tree or, without git, only the
// directory. It refuses a home directory and the root of a machine.
func Find(ctx context.Context, dir string) (Tree, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return Tree{}, err
	}
	t := Tree{Root: dir}
	if _, missing := exec.LookPath("git"); missing == nil && inGit(dir) {
		top, err := git(ctx, dir, "", "rev-parse", "--show-toplevel")
		if err != nil {
			return Tree{}, err
		}
		t.Root, t.Git = filepath.FromSlash(strings.TrimSuffix(string(top), "\n")), true
		sub, err := filepath.Rel(t.Root, dir)
		if err != nil {
			return Tree{}, err
		}
		if sub != "." {
			t.Sub = filepath.ToSlash(sub)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && !t.Git {
		if home, err = filepath.EvalSymlinks(home); err == nil && home == t.Root {
			return Tree{}, fmt.Errorf("%s is your home directory, and not a project: change to one, which may be a directory in it", t.Root)
		}
	}
	if filepath.Dir(t.Root) == t.Root {
		return Tree{}, fmt.Errorf("%s is this machine, and not a project: change to one", t.Root)
	}
	here, _ := os.Hostname()
	t.Name = name(filepath.Base(t.Root), here+"\x00"+t.Root)
	return t, nil
}

// name returns a readable name for base, made unique by a hash of identity.
func name(base, identity string) string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return r
		}
		return '-'
	}, base)
	sum := sha256.Sum256([]byte(identity))
	return plain[:min(len(plain), 40)] + "-" + hex.EncodeToString(sum[:4])
}

// inGit reports whether a directory is in a work tree of git.
func inGit(dir string) bool {
	for {
		if hasGit(dir) {
			return true
		}
		above := filepath.Dir(dir)
		if above == dir {
			return false
		}
		dir = above
	}
}

// wanted are the variables of git that say how a server is reached. Others are about one repository: git
// sets them for hooks and aliases, and they would make each git here work on that repository, not on the
// one in its directory.
var wanted = []string{
	"GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_PROXY_COMMAND", "GIT_ASKPASS", "GIT_TERMINAL_PROMPT", "GIT_ALLOW_PROTOCOL",
	"GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_NO_VERIFY", "GIT_HTTP_USER_AGENT",
	"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
}

// unwanted reports whether a variable, NAME=VALUE, is one of git's that is not wanted.
func unwanted(variable string) bool {
	name, _, _ := strings.Cut(strings.ToUpper(variable), "=")
	return strings.HasPrefix(name, "GIT_") && !slices.Contains(wanted, name)
}

// git runs git in a directory, with stdin, and returns its output.
func git(ctx context.Context, dir, stdin string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, strings.NewReader(stdin), &said
	cmd.Env = slices.DeleteFunc(cmd.Environ(), unwanted)
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(said.String()))
	}
	return out, nil
}

// OfRepository returns the tree that Clone will make of a repository in a directory.
func OfRepository(url, into string) Tree {
	base := strings.TrimSuffix(path.Base(strings.TrimRight(filepath.ToSlash(url), "/")), ".git")
	return Tree{Root: into, Git: true, Name: name(base, url) + ofRepository}
}

// ofRepository is the suffix of the names of repositories' trees. No directory's tree has it.
const ofRepository = "-repo"

// IsRepository reports whether a name is that of a repository's tree.
func IsRepository(name string) bool { return strings.HasSuffix(name, ofRepository) }

// Locate returns a repository's URL or, for local files, its absolute path.
func Locate(url string) (string, error) {
	if _, err := os.Stat(url); err != nil {
		return url, nil
	}
	return filepath.Abs(url)
}

// Clone fetches a repository into the tree, at a branch, a tag or a commit; "" is the repository's
// default. The caller removes the tree's root.
func (t Tree) Clone(ctx context.Context, url, ref string) error {
	if strings.HasPrefix(url, "-") || strings.HasPrefix(ref, "-") {
		return errors.New("neither the URL of a repository nor a ref begins with -")
	}
	if _, err := git(ctx, t.Root, "", "init", "-q"); err != nil {
		return err
	}
	full, err := fullRef(ctx, t.Root, url, ref)
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"fetch", "-q", "--depth", "1", "--", url, full},
		{"-c", "advice.detachedHead=false", "checkout", "-q", "FETCH_HEAD"},
	} {
		if _, err := git(ctx, t.Root, "", args...); err != nil {
			return err
		}
	}
	return nil
}

// fullRef returns the full name of a repository's ref: a branch before a tag, like the engine and git
// clone --branch. git fetch would choose the tag.
func fullRef(ctx context.Context, dir, url, ref string) (string, error) {
	switch {
	case ref == "":
		return "HEAD", nil
	case len(ref) == 40 && strings.Trim(ref, "0123456789abcdef") == "", strings.HasPrefix(ref, "refs/"): // servers only accept full hashes
		return ref, nil
	}
	names := []string{"refs/heads/" + ref, "refs/tags/" + ref}
	out, err := git(ctx, dir, "", append([]string{"ls-remote", "--", url}, names...)...)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.Contains(string(out), "\t"+name+"\n") {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s has no branch and no tag %q; a commit is named by all 40 digits of its hash", url, ref)
}

// file is a file or a symbolic link of a tree.
type file struct {
	name string // with slashes
	info fs.FileInfo
}

// files lists a tree's regular files and symbolic links, sorted by name.
func (t Tree) files(ctx context.Context) ([]file, error) {
	var list []file
	add := func(rel string) error {
		info, err := os.Lstat(filepath.Join(t.Root, rel))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // git lists it, but it is removed here
		}
		if err == nil && (info.Mode().IsRegular() || info.Mode()&fs.ModeSymlink != 0) {
			list = append(list, file{filepath.ToSlash(rel), info})
		}
		return err
	}
	var err error
	if t.Git {
		err = t.listed(ctx, "", add)
	} else {
		err = filepath.WalkDir(t.Root, func(at string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == ".git":
				return fs.SkipDir
			case d.IsDir():
				return ctx.Err()
			}
			rel, err := filepath.Rel(t.Root, at)
			if err != nil {
				return err
			}
			return add(rel)
		})
	}
	slices.SortFunc(list, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return list, err
}

// listed calls add for each file that git tracks or does not ignore, including those of submodules and of
// repositories in the tree.
func (t Tree) listed(ctx context.Context, dir string, add func(rel string) error) error {
	out, err := git(ctx, filepath.Join(t.Root, dir), "", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		rel := filepath.Join(dir, filepath.FromSlash(name))
		// git lists a file in conflict once for each side, and a file whose directory has become a file
		// or a link as if it were still there.
		if name == "" || name == "./" || seen[rel] || !t.within(filepath.ToSlash(rel)) {
			continue
		}
		seen[rel] = true
		info, err := os.Lstat(filepath.Join(t.Root, rel))
		switch {
		case err == nil && info.IsDir() && !hasGit(filepath.Join(t.Root, rel)): // a submodule that is not checked out
		case err == nil && info.IsDir():
			err = t.listed(ctx, rel, add)
		default:
			err = add(rel)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// within reports whether everything above a name is a directory, and not a link to one.
func (t Tree) within(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := os.Lstat(filepath.Join(t.Root, filepath.FromSlash(dir))); err == nil && !info.IsDir() {
			return false
		}
	}
	return true
}

func hasGit(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ".git"))
	return err == nil
}

// ignored returns which names git ignores in the tree. Each repository in the tree is asked about its own
// files, and no repository about files behind a link.
func (t Tree) ignored(ctx context.Context, names []string) (map[string]bool, error) {
	ignored := map[string]bool{}
	if !t.Git {
		return ignored, nil
	}
	asked := map[string][]string{} // by the repository's directory
	for _, name := range names {
		dir := path.Dir(name)
		for dir != "." && !hasGit(filepath.Join(t.Root, filepath.FromSlash(dir))) {
			dir = path.Dir(dir)
		}
		if t.within(name) {
			asked[dir] = append(asked[dir], strings.TrimPrefix(name, dir+"/"))
		}
	}
	for dir, names := range asked {
		out, err := git(ctx, filepath.Join(t.Root, filepath.FromSlash(dir)), strings.Join(names, "\x00"), "check-ignore", "-z", "--stdin")
		if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) { // 1: none is
			return nil, fmt.Errorf("which files git ignores here is not known: %w", err)
		}
		for name := range strings.SplitSeq(string(out), "\x00") {
			ignored[path.Join(dir, name)] = true
		}
	}
	return ignored, nil
}

package git

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// maxSubmodules bounds the submodules of a repository, including nested ones.
const maxSubmodules = 50

// submoduleName matches names that are also valid directory names; git accepts more.
var submoduleName = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// submodules fetches the submodules of a repository, recursively. It reaches all of them over the
// repository's own transport, which leads only to the repository's host.
type submodules struct {
	*Git

	w     *opened
	root  string // the repository
	count int
}

// fetch fetches the submodules of a commit to where git looks for them.
func (g *submodules) fetch(ctx context.Context, at, base, commit string) error {
	text, err := g.git(ctx, at, nil, nil, "ls-tree", "-z", commit, "--", ".gitmodules")
	if err != nil || text == "" {
		return err
	}
	text, err = g.git(ctx, at, nil, nil, "config", "-z", "--blob", commit+":.gitmodules", "--list")
	if err != nil {
		return fmt.Errorf("read its .gitmodules: %w", err)
	}
	found := map[string]map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		key, ours := strings.CutPrefix(key, "submodule.")
		last := strings.LastIndex(key, ".")
		if !ours || last < 0 {
			continue
		}
		name, what := key[:last], key[last+1:]
		if found[name] == nil {
			found[name] = map[string]string{}
		}
		found[name][what] = value
	}
	for name, of := range found {
		if of["path"] == "" {
			continue // it is nowhere in the tree
		}
		if g.count++; g.count > maxSubmodules {
			return fmt.Errorf("it has more than %d submodules", maxSubmodules)
		}
		if !submoduleName.MatchString(name) || len(name) > 200 {
			return fmt.Errorf("its submodule %.100q has a name that is not accepted", name)
		}
		if err := g.one(ctx, filepath.Join(at, "modules", filepath.FromSlash(name)), at, base, commit, of); err != nil {
			return fmt.Errorf("submodule %s: %w", name, err)
		}
	}
	return nil
}

func (g *submodules) one(ctx context.Context, module, at, base, commit string, of map[string]string) error {
	tree, err := g.git(ctx, at, nil, nil, "ls-tree", "-z", commit, "--", of["path"])
	fields := strings.Fields(tree)
	if err != nil || len(fields) < 3 || fields[1] != "commit" || !job.IsCommit(fields[2]) {
		return err // it is described, but not in the tree
	}
	from, err := submoduleURL(base, of["url"])
	if err == nil {
		err = g.w.reads(from)
	}
	if err != nil {
		return err
	}
	want := fields[2]
	if _, err := g.git(ctx, "", nil, nil, "init", "-q", "--bare", "--template=", module); err != nil {
		return err
	}
	if _, err := g.git(ctx, module, g.w, nil, "fetch", "-q", "--no-auto-maintenance", "--", from, "+"+want+":refs/remotes/origin/linus"); err != nil {
		return err
	}
	if err := g.fits(g.root); err != nil {
		return fmt.Errorf("with it, and what is fetched beside it, %w", err)
	}
	for _, args := range [][]string{{"config", "remote.origin.url", from}, {"config", "core.bare", "false"}, {"update-ref", "--no-deref", "HEAD", want}} {
		if _, err := g.git(ctx, module, nil, nil, args...); err != nil {
			return err
		}
	}
	return g.fetch(ctx, module, from, want)
}

// submoduleURL returns a submodule's URL from .gitmodules. It must be on the host of the repository at
// base, for the same user.
func submoduleURL(base, text string) (string, error) {
	if strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") {
		at, err := url.Parse(base)
		if err != nil || at.Scheme == "" {
			host, below, _ := strings.Cut(base, ":")
			text = host + ":" + path.Join(below, text)
		} else {
			at.Path = path.Join(at.Path, text)
			text = at.String()
		}
	}
	own, err := job.Repository{URL: base}.Where()
	if err != nil {
		return "", err
	}
	at, err := job.Repository{URL: text}.Where()
	if err != nil {
		return "", fmt.Errorf("its URL %w", err)
	}
	if at.SSH != own.SSH || at.User != own.User || at.Target() != own.Target() {
		return "", errors.New("it is not on the host of its repository: leave repository.submodules out, and have the task fetch it")
	}
	return text, nil
}

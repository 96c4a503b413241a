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

// maxSubmodules bounds those of a repository, and of these, together.
const maxSubmodules = 50

// submoduleName is what is a directory's name, too; git takes more.
var submoduleName = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// submodules fetches those that a commit has, and theirs, to where git looks for them. All are
// reached by the way of the repository, which leads to its host alone.
func (g *Git) submodules(ctx context.Context, at string, w *opened, base, commit string, count *int) error {
	text, err := g.git(ctx, at, nil, nil, "ls-tree", "-z", commit, "--", ".gitmodules")
	if err != nil || text == "" {
		return err
	}
	text, err = g.git(ctx, at, nil, nil, "config", "-z", "--blob", commit+":.gitmodules", "--get-regexp", `^submodule\..*\.(path|url)$`)
	if err != nil {
		return fmt.Errorf("read its .gitmodules: %w", err)
	}
	found := map[string]map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(text, "\x00"), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		name, what := strings.TrimPrefix(key[:max(0, strings.LastIndex(key, "."))], "submodule."), key[strings.LastIndex(key, ".")+1:]
		if found[name] == nil {
			found[name] = map[string]string{}
		}
		found[name][what] = value
	}
	for name, of := range found {
		if *count++; *count > maxSubmodules {
			return fmt.Errorf("it has more than %d submodules", maxSubmodules)
		}
		if !submoduleName.MatchString(name) || len(name) > 200 {
			return fmt.Errorf("its submodule %.100q has a name that is not taken", name)
		}
		if err := g.submodule(ctx, filepath.Join(at, "modules", filepath.FromSlash(name)), at, w, base, commit, of, count); err != nil {
			return fmt.Errorf("submodule %s: %w", name, err)
		}
	}
	return nil
}

func (g *Git) submodule(ctx context.Context, module, at string, w *opened, base, commit string, of map[string]string, count *int) error {
	tree, err := g.git(ctx, at, nil, nil, "ls-tree", "-z", commit, "--", of["path"])
	fields := strings.Fields(tree)
	if err != nil || len(fields) < 3 || fields[1] != "commit" || !job.IsCommit(fields[2]) {
		return err // it is described, and is not there
	}
	from, err := submoduleURL(base, of["url"])
	if err != nil {
		return err
	}
	want := fields[2]
	if _, err := g.git(ctx, "", nil, nil, "init", "-q", "--bare", "--template=", module); err != nil {
		return err
	}
	if _, err := g.git(ctx, module, w, nil, "fetch", "-q", "--no-auto-maintenance", "--", from, "+"+want+":refs/remotes/origin/linus"); err != nil {
		return err
	}
	for _, args := range [][]string{{"config", "remote.origin.url", from}, {"config", "core.bare", "false"}, {"update-ref", "--no-deref", "HEAD", want}} {
		if _, err := g.git(ctx, module, nil, nil, args...); err != nil {
			return err
		}
	}
	return g.submodules(ctx, module, w, from, want, count)
}

// submoduleURL is where a submodule is, as .gitmodules says it: on the host of the repository that
// has it.
func submoduleURL(base, text string) (string, error) {
	if strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../") {
		at, err := url.Parse(base)
		if err != nil || at.Scheme == "" {
			host, below, _ := strings.Cut(base, ":")
			return host + ":" + path.Join(below, text), nil
		}
		at.Path = path.Join(at.Path, text)
		text = at.String()
	}
	own, err := job.Repository{URL: base}.Where()
	if err != nil {
		return "", err
	}
	at, err := job.Repository{URL: text}.Where()
	if err != nil {
		return "", fmt.Errorf("its URL %w", err)
	}
	if at.SSH != own.SSH || at.Target() != own.Target() {
		return "", errors.New("it is not on the host of its repository: leave repository.submodules out, and have the task fetch it")
	}
	return text, nil
}

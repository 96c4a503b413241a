package git

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/job"
)

const (
	archiveName = "repository.tar"
	gitDir      = ".git"
)

// Fetch fetches a job's repository for its VM and, if commits are to be pushed, checks that they can be,
// as far as a dry run shows.
func (g *Git) Fetch(ctx context.Context, q job.RepositoryCall) (c job.Checkout, err error) {
	done, err := g.begin(ctx, g.far, q.Job)
	if err != nil {
		return c, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, g.o.Fetching, fmt.Errorf("it was tried for %s", g.o.Fetching))
	defer cancel()
	g.clear(q.Job)
	if err := os.MkdirAll(g.dir(q.Job), 0o700); err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			g.clear(q.Job)
		}
	}()
	way, err := g.o.Transport(ctx, q.Repository, q.Used)
	if err != nil {
		return c, err
	}
	w, ctx, err := way.open(ctx)
	if err != nil {
		return c, err
	}
	defer w.close()
	at := filepath.Join(g.dir(q.Job), gitDir)
	if _, err := g.git(ctx, "", nil, nil, "init", "-q", "--template=", "--initial-branch=linus", g.dir(q.Job)); err != nil {
		return c, err
	}
	if c.Ref, err = g.find(ctx, at, w, q.Repository); err != nil {
		return c, err
	}
	if c.Commit, err = g.fetch(ctx, at, w, q, c.Ref); err != nil {
		return c, err
	}
	if q.Push != "" {
		if err := g.canPush(ctx, at, w, q, c.Commit); err != nil {
			return c, err
		}
	}
	if q.Repository.Submodules {
		of := &submodules{Git: g, w: w, root: at}
		if err := of.fetch(ctx, at, q.Repository.URL, c.Commit); err != nil {
			return c, err
		}
	}
	if err := g.arrange(ctx, at, q, c); err != nil {
		return c, err
	}
	if q.Repository.LFS {
		if err := g.largeFiles(ctx, at, w, q, c.Commit); err != nil {
			return c, err
		}
	}
	return c, g.pack(q.Job)
}

// find returns the full name of the requested ref, a branch before a tag; "" for a commit.
func (g *Git) find(ctx context.Context, at string, w *opened, r job.Repository) (string, error) {
	if job.IsCommit(r.Ref) {
		return "", nil
	}
	patterns := []string{"HEAD"}
	if r.Ref != "" {
		patterns = []string{"refs/heads/" + r.Ref, "refs/tags/" + r.Ref}
		if strings.HasPrefix(r.Ref, "refs/") {
			patterns = append([]string{r.Ref}, patterns...)
		}
	}
	out, err := g.git(ctx, at, w, nil, append([]string{"ls-remote", "--symref", "--", r.URL}, patterns...)...)
	if err != nil {
		return "", err
	}
	there := map[string]bool{}
	for line := range strings.SplitSeq(out, "\n") {
		left, name, _ := strings.Cut(line, "\t")
		if head, ok := strings.CutPrefix(left, "ref: "); ok && name == "HEAD" && r.Ref == "" && strings.HasPrefix(head, "refs/heads/") {
			return head, nil
		}
		there[name] = true
	}
	for _, name := range patterns {
		if there[name] {
			return name, nil
		}
	}
	if r.Ref == "" {
		return "", errors.New("it has no commit yet")
	}
	return "", fmt.Errorf("it has no branch and no tag %q; a commit is named by all 40 digits of its hash", r.Ref)
}

// local returns the name under which a ref is fetched.
func local(ref string) string {
	if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
		return "refs/remotes/origin/" + branch
	}
	if strings.HasPrefix(ref, "refs/tags/") {
		return ref
	}
	return "refs/linus/base"
}

// fetch fetches a ref, or the requested commit, and returns the commit.
func (g *Git) fetch(ctx context.Context, at string, w *opened, q job.RepositoryCall, ref string) (string, error) {
	from := ref
	if ref == "" {
		from = q.Repository.Ref
	}
	get := func(from, to string) error {
		_, err := g.git(ctx, at, w, nil, "fetch", "-q", "--no-auto-maintenance", "--", q.Repository.URL, "+"+from+":"+to)
		return err
	}
	if err := get(from, local(ref)); err != nil {
		return "", err
	}
	if err := g.fits(at); err != nil {
		return "", err
	}
	commit, err := g.commit(ctx, at, local(ref))
	if err != nil || q.Commit == "" || q.Commit == commit {
		return commit, err
	}
	if _, err := g.commit(ctx, at, q.Commit); err == nil {
		return q.Commit, nil
	}
	if err := get(q.Commit, "refs/linus/base"); err != nil {
		return "", fmt.Errorf("it no longer has commit %s, which the job began with: %w", q.Commit, err)
	}
	return g.commit(ctx, at, q.Commit)
}

func (g *Git) commit(ctx context.Context, at, name string) (string, error) {
	out, err := g.git(ctx, at, nil, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	if out = strings.TrimSpace(out); err != nil || !job.IsCommit(out) {
		return "", fmt.Errorf("%s is not a commit of it: %w", name, cmp.Or(err, errors.New("git says nothing")))
	}
	return out, nil
}

// arrange sets up the repository as the task is to find it: its branch and origin.
func (g *Git) arrange(ctx context.Context, at string, q job.RepositoryCall, c job.Checkout) error {
	calls := [][]string{
		{"config", "remote.origin.url", q.Repository.URL},
		{"config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"},
	}
	fetched, isBranch := strings.CutPrefix(c.Ref, "refs/heads/")
	branch := q.Push
	if branch == "" && isBranch {
		branch = fetched
	}
	if branch == "" {
		calls = append(calls, []string{"update-ref", "--no-deref", "HEAD", c.Commit})
	} else {
		calls = append(calls, []string{"update-ref", "refs/heads/" + branch, c.Commit}, []string{"symbolic-ref", "HEAD", "refs/heads/" + branch})
	}
	if isBranch && branch == fetched {
		calls = append(calls, []string{"config", "branch." + branch + ".remote", "origin"}, []string{"config", "branch." + branch + ".merge", c.Ref})
	}
	for _, args := range append(calls, []string{"pack-refs", "--all"}) {
		if _, err := g.git(ctx, at, nil, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// pack makes the archive for the VM. Its first file names the job.
func (g *Git) pack(id string) (err error) {
	name := filepath.Join(g.dir(id), archiveName)
	f, err := os.OpenFile(name+".part", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	to := tar.NewWriter(f)
	err = to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: gitDir + "/linus-job", Mode: 0o644, Size: int64(len(id)) + 1})
	if err == nil {
		_, err = io.WriteString(to, id+"\n")
	}
	if err == nil {
		err = filepath.WalkDir(filepath.Join(g.dir(id), gitDir), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() == "FETCH_HEAD" {
				return err
			}
			return addTo(to, g.dir(id), at, d)
		})
	}
	if err = errors.Join(err, to.Close(), f.Close()); err != nil {
		return fmt.Errorf("pack the repository: %w", err)
	}
	return os.Rename(name+".part", name)
}

func addTo(to *tar.Writer, root, at string, d fs.DirEntry) error {
	rel, err := filepath.Rel(root, at)
	if err != nil {
		return err
	}
	head := &tar.Header{Name: filepath.ToSlash(rel), Typeflag: tar.TypeDir, Mode: 0o755}
	if d.IsDir() {
		head.Name += "/"
		return to.WriteHeader(head)
	}
	from, err := os.Open(at)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read
	info, err := from.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	head.Typeflag, head.Size, head.Mode = tar.TypeReg, info.Size(), 0o644
	if err = to.WriteHeader(head); err == nil {
		_, err = io.Copy(to, from)
	}
	return err
}

// Archive returns the tar archive of a repository's .git for its VM, and its size. The caller closes it.
func (g *Git) Archive(id string) (job.Archive, int64, error) {
	f, err := os.Open(filepath.Join(g.dir(id), archiveName))
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	return f, info.Size(), err
}

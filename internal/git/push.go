package git

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"linus/internal/job"
)

// canPush checks that commit may be pushed to a branch: the branch is new or was pushed by the owner's
// jobs, commit is based on it, and the server accepts a dry run with the credential.
func (g *Git) canPush(ctx context.Context, at string, w *opened, q job.RepositoryCall, commit string) error {
	is, err := g.branch(ctx, at, w, q)
	if err != nil {
		return err
	}
	if err := g.mayPush(ctx, at, q, is, commit); err != nil {
		return err
	}
	if _, err := g.git(ctx, at, w, nil, pushing(q, is, commit, "--dry-run")...); err != nil {
		return fmt.Errorf("its commits could not be pushed with credential %s: %w", q.Repository.Credential, err)
	}
	return nil
}

// branch returns the commit of the server's branch, or "" if there is no such branch. It returns an error if the
// server has a branch that git cannot store beside this one: otherwise only the final push would detect that.
func (g *Git) branch(ctx context.Context, at string, w *opened, q job.RepositoryCall) (string, error) {
	ref := "refs/heads/" + q.Push
	asked := []string{"ls-remote", "--", q.Repository.URL, ref, ref + "/*"}
	for above := path.Dir(ref); above != "refs/heads"; above = path.Dir(above) {
		asked = append(asked, above)
	}
	out, err := g.git(ctx, at, w, nil, asked...)
	for line := range strings.SplitSeq(out, "\n") {
		switch commit, name, _ := strings.Cut(line, "\t"); {
		case name == ref:
			return commit, err
		case strings.HasPrefix(name, ref+"/"), slices.Contains(asked[3:], name):
			return "", fmt.Errorf("branch %s exists, and git has no %s beside it: choose another push.branch", strings.TrimPrefix(name, "refs/heads/"), q.Push)
		}
	}
	return "", err
}

// mayPush checks that a branch, now at commit is, may be moved to commit.
func (g *Git) mayPush(ctx context.Context, at string, q job.RepositoryCall, is, commit string) error {
	switch {
	case is == "":
		return nil
	case !slices.Contains(q.Own, is):
		return fmt.Errorf("branch %s exists, and its current commit was not pushed by a job of yours: choose another push.branch", q.Push)
	}
	if _, err := g.git(ctx, at, nil, nil, "merge-base", "--is-ancestor", is, commit); err != nil {
		return fmt.Errorf("branch %s exists, pushed by a job of yours, but this job is not based on it: set repository.ref to it, or choose another push.branch", q.Push)
	}
	return nil
}

// pushing returns the arguments of a push that moves a branch to commit if it is still at commit is.
// mayPush has checked that this is a fast-forward: the lease alone would allow any move.
func pushing(q job.RepositoryCall, is, commit string, more ...string) []string {
	ref := "refs/heads/" + q.Push
	args := append([]string{"push", "-q", "--no-verify", "--no-follow-tags", "--no-signed", "--force-with-lease=" + ref + ":" + is}, more...)
	return append(args, "--", q.Repository.URL, commit+":"+ref)
}

// Push pushes a job's last commit to its branch. It can be repeated.
func (g *Git) Push(ctx context.Context, q job.RepositoryCall, head string) error {
	done, err := g.begin(ctx, g.far, q.Job)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, g.o.Pushing, fmt.Errorf("it was tried for %s", g.o.Pushing))
	defer cancel()
	way, err := g.o.Transport(ctx, q.Repository, q.Used)
	if err != nil {
		return err
	}
	w, ctx, err := way.open(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	at := filepath.Join(g.dir(q.Job), gitDir)
	is, err := g.branch(ctx, at, w, q)
	if err != nil || is == head {
		return err // if is == head, an interrupted call has pushed it
	}
	if err := g.mayPush(ctx, at, q, is, head); err != nil {
		return err
	}
	if q.Repository.LFS {
		if err := g.hasLargeFiles(ctx, at, q.Commit, head); err != nil {
			return err
		}
	}
	if _, err = g.git(ctx, at, w, nil, pushing(q, is, head)...); err != nil {
		// Only the answer may be lost, or a push by a killed engine has come in between.
		if is, again := g.branch(ctx, at, w, q); again == nil && is == head {
			return nil
		}
	}
	return err
}

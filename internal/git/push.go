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

// canPush checks that a branch may be pushed to: it is new or the job's own, what is pushed goes on
// from there, and the server lets the credential push at all.
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

// branch returns the commit at which the server has the branch; empty: it has none. Where it has
// another that git cannot have beside it, that is an error: a push would find it at the end only.
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

// mayPush checks that a branch, as it is, may be made to lead to a commit.
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

// pushing is a call that makes a branch lead to a commit if it still is where it was. That it never
// goes back was checked: the lease alone would allow it.
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
		return err // an interrupted call has pushed it
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
		// The answer may be what was lost, or a call of an engine that was killed came in between.
		if is, again := g.branch(ctx, at, w, q); again == nil && is == head {
			return nil
		}
	}
	return err
}

package git

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// headers of a bundle, as a VM writes it.
const (
	maxBundleLine = 64 << 10
	maxBundleRefs = 1000 // and what it builds on
	headRef       = "HEAD"
	looseRef      = "refs/linus/uncommitted" // a commit of what is in none
)

// Take checks the bundle of what a job has committed, says in c what that is, and writes a patch of
// it to patch, unless that would have more than so many bytes. It comes from the VM: nothing of it is used before all
// that it has was found whole and well-formed, and nothing is checked out.
func (g *Git) Take(ctx context.Context, q job.RepositoryCall, c *job.Checkout, bundle io.Reader, patch string, most int64) (patched bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.o.Pushing, fmt.Errorf("it was tried for %s", g.o.Pushing))
	defer cancel()
	at := filepath.Join(g.dir(q.Job), gitDir)
	refs, pack, err := readBundle(bundle)
	if err != nil {
		return false, fmt.Errorf("it is no bundle of git's: %w", err)
	}
	name := filepath.Join(g.dir(q.Job), "taken.pack")
	if err := writeFile(name, pack); err != nil {
		return false, err
	}
	defer os.Remove(name) //nolint:errcheck // it goes with the directory
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := g.git(ctx, at, nil, f, "index-pack", "--stdin", "--fix-thin", "--strict", "--fsck-objects", "--max-input-size="+strconv.FormatInt(g.o.MaxBytes, 10)); err != nil {
		return false, err
	}
	for ref, commit := range refs {
		if got, err := g.commit(ctx, at, commit); err != nil || got != commit {
			return false, fmt.Errorf("its %s is no commit", ref)
		}
		if _, err := g.git(ctx, at, nil, nil, "rev-list", "--objects", "--quiet", commit, "--not", c.Commit); err != nil {
			return false, fmt.Errorf("it lacks something of its %s: %w", ref, err)
		}
	}
	head := cmp.Or(refs[headRef], c.Commit)
	if head != c.Commit {
		count, err := g.git(ctx, at, nil, nil, "rev-list", "--count", c.Commit+".."+head)
		if err != nil {
			return false, err
		}
		if c.Commits, err = strconv.Atoi(strings.TrimSpace(count)); err != nil {
			return false, err
		}
		c.Head = head
	}
	last := head
	if loose := refs[looseRef]; loose != "" {
		c.Uncommitted, last = true, loose
	}
	short, err := g.git(ctx, at, nil, nil, "diff", "--no-ext-diff", "--no-textconv", "--shortstat", c.Commit, last)
	if err != nil {
		return false, err
	}
	c.Files, c.Insertions, c.Deletions = counts(short)
	limited := &Git{g.o}
	limited.o.MaxBytes = most
	_, err = limited.git(ctx, at, nil, nil, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--stat=120", "--patch", "--output="+patch, c.Commit, last)
	return err == nil, ctx.Err()
}

var shortstat = lazyregexp.New(`^ ([0-9]+) files? changed(?:, ([0-9]+) insertions?\(\+\))?(?:, ([0-9]+) deletions?\(-\))?\s*$`)

// counts reads git's own summary of a diff; it says nothing of an empty one.
func counts(text string) (files, insertions, deletions int) {
	part := shortstat.FindStringSubmatch(text)
	if part == nil {
		return 0, 0, 0
	}
	files, _ = strconv.Atoi(part[1])
	insertions, _ = strconv.Atoi(part[2])
	deletions, _ = strconv.Atoi(part[3])
	return files, insertions, deletions
}

// readBundle reads the head of a bundle: where its refs lead, and the pack behind it.
func readBundle(from io.Reader) (refs map[string]string, pack io.Reader, err error) {
	r := bufio.NewReaderSize(from, maxBundleLine)
	refs = map[string]string{}
	for n := range maxBundleRefs {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, nil, errors.New("its head does not end")
		}
		text := string(line[:len(line)-1])
		commit, name, _ := strings.Cut(text, " ")
		switch {
		case n == 0:
			if text != "# v2 git bundle" {
				return nil, nil, errors.New("it does not begin as one")
			}
		case text == "":
			if len(refs) == 0 {
				return nil, nil, errors.New("it has no refs")
			}
			return refs, r, nil
		case strings.HasPrefix(text, "-"):
			// What it builds on: whether that is all there is found out with the objects.
		case !job.IsCommit(commit) || name != headRef && name != looseRef || refs[name] != "":
			return nil, nil, fmt.Errorf("it has the ref %.100q", text)
		default:
			refs[name] = commit
		}
	}
	return nil, nil, fmt.Errorf("its head has more than %d lines", maxBundleRefs)
}

func writeFile(name string, from io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

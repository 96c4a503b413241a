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
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// Headers of a bundle, as a VM writes it.
const (
	maxBundleLine  = 64 << 10
	maxBundleRefs  = 1000 // lines with refs and prerequisites
	headRef        = "HEAD"
	uncommittedRef = "refs/linus/uncommitted" // a commit of the uncommitted changes
)

// Take checks the bundle with a job's commits, describes them in c, and returns a patch, or nil if that
// cannot be made or would have more than most bytes. The bundle comes from the VM: Take uses nothing of
// it before all its objects are found complete and well-formed, and checks nothing out. A bad bundle is a
// *job.MalformedBundle.
func (g *Git) Take(ctx context.Context, q job.RepositoryCall, c *job.Checkout, bundle io.Reader, most int64) (patch io.ReadCloser, err error) {
	done, err := g.begin(ctx, g.near, q.Job)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, g.o.Pushing, fmt.Errorf("it was tried for %s", g.o.Pushing))
	defer cancel()
	at := filepath.Join(g.dir(q.Job), gitDir)
	refs, pack, err := readBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("it is not a git bundle: %w", err)
	}
	if err := g.index(ctx, at, q.Job, pack); err != nil {
		return nil, malformed(err)
	}
	for ref, commit := range refs {
		if got, err := g.commit(ctx, at, commit); err != nil || got != commit {
			err = fmt.Errorf("its %s is not a commit: %w", ref, cmp.Or(err, error(&job.MalformedBundle{Err: errors.New("it is something else")})))
			return nil, malformed(err)
		}
		if _, err := g.git(ctx, at, nil, nil, "rev-list", "--objects", "--quiet", commit, "--not", c.Commit); err != nil {
			return nil, malformed(fmt.Errorf("it lacks something of its %s: %w", ref, err))
		}
	}
	head := cmp.Or(refs[headRef], c.Commit)
	if head != c.Commit {
		count, err := g.git(ctx, at, nil, nil, "rev-list", "--count", c.Commit+".."+head)
		if err != nil {
			return nil, err
		}
		if c.Commits, err = strconv.Atoi(strings.TrimSpace(count)); err != nil {
			return nil, err
		}
		c.Head = head
	}
	last := head
	if loose := refs[uncommittedRef]; loose != "" {
		c.Uncommitted, last = true, loose
	}
	patch, err = g.patch(ctx, at, q.Job, c, last, most)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return patch, nil
}

// index adds the objects of a pack to a repository.
func (g *Git) index(ctx context.Context, at, id string, pack io.Reader) error {
	name := filepath.Join(g.dir(id), "taken.pack")
	if err := writeFile(name, pack); err != nil {
		return err
	}
	defer os.Remove(name) //nolint:errcheck // it goes with the directory
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	_, err = g.git(ctx, at, nil, f, "index-pack", "--stdin", "--fix-thin", "--strict", "--fsck-objects", "--max-input-size="+strconv.FormatInt(g.o.MaxBytes, 10))
	return err
}

// wrong matches messages of git that blame the objects, not this machine.
var wrong = lazyregexp.New(`early EOF|used more bytes than|signature mismatch|version [0-9]+ unsupported|pack has |premature end of pack|pack is corrupted|` +
	`inflate returned|inflate inconsistency|COLLISION|invalid (blob|tree|commit|tag)|[Ee]rror in object|fsck error|[Nn]ot all child objects|failed to apply delta|` +
	`did not receive expected|unexpected type|missing (blob|tree|commit) object|bad (tree )?object|[Cc]ould not read [0-9a-f]{40}|Failed to traverse`)

// malformed wraps an error of git in a *job.MalformedBundle if git blames the bundle. Other causes, such
// as a signal, no memory or a full disk, say nothing about the bundle.
func malformed(err error) error {
	var of *failure
	if errors.As(err, &of) && (of.verb == "rev-parse" && of.code == 1 || of.code > 0 && wrong.MatchString(of.why) && !strings.Contains(of.why, "ut of memory")) {
		return &job.MalformedBundle{Err: err}
	}
	return err
}

// Bounds of a patch: it includes no changed file larger than maxDiffed, and binary files only if all
// included files together are at most maxBinary.
const (
	maxDiffed = 4 << 20
	maxBinary = 16 << 20
	maxNamed  = 100 << 10 // bytes of the names of larger files, which are passed on a command line
)

// patch describes in c the differences between the job's base commit and last, and returns a patch. The
// commit comes from the VM, and a huge file of zeros is tiny in a bundle. So no content is read before
// its size is known, and that of large files never is. Only renames without changes are detected.
func (g *Git) patch(ctx context.Context, at, id string, c *job.Checkout, last string, most int64) (io.ReadCloser, error) {
	diff := []string{"diff", "--no-ext-diff", "--no-textconv", "--no-color", "--find-renames=100%"}
	short, err := g.git(ctx, at, nil, nil, append(diff, "--shortstat", c.Commit, last)...)
	if err != nil {
		return nil, err
	}
	c.Files, c.Insertions, c.Deletions = counts(short)
	large, rest, err := g.changed(ctx, at, c.Commit, last)
	if err != nil {
		return nil, err
	}
	stat, err := g.git(ctx, at, nil, nil, append(diff, "--stat=120", c.Commit, last)...)
	if err != nil {
		return nil, err
	}
	if rest <= maxBinary {
		diff = append(diff, "--binary")
	}
	name := filepath.Join(g.dir(id), job.PatchArtifact)
	defer os.Remove(name) //nolint:errcheck // it stays open
	limited := &Git{o: g.o}
	limited.o.MaxBytes = max(0, most-int64(len(stat))) // a negative limit would be none to a shell
	diff = append(diff, "--output="+name, c.Commit, last, "--")
	for _, path := range large {
		diff = append(diff, ":(exclude,literal)"+path)
	}
	if _, err = limited.git(ctx, at, nil, nil, diff...); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if stat != "" {
		stat += "\n"
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(stat), f), f}, nil
}

// changed returns the large files that differ between two commits, and the total size of the others in
// both commits, in bytes. It includes renamed files, since git reads them, too.
func (g *Git) changed(ctx context.Context, at, base, last string) (large []string, rest int64, err error) {
	listed, err := g.git(ctx, at, nil, nil, "diff-tree", "-r", "-z", "--find-renames=100%", base, last)
	if err != nil {
		return nil, 0, err
	}
	var ids strings.Builder
	var of []string // their paths
	for parts := strings.Split(listed, "\x00"); len(parts) > 2; {
		entry, paths := strings.Fields(parts[0]), []string{parts[1], parts[1]} // :MODE MODE HASH HASH STATUS; renames have two paths
		if len(entry) != 5 {
			return nil, 0, fmt.Errorf("git diff-tree says %.100q", parts[0])
		}
		if parts = parts[2:]; entry[4][0] == 'R' {
			paths[1], parts = parts[0], parts[1:]
		}
		for i, id := range entry[2:4] {
			if strings.Trim(id, "0") != "" {
				ids.WriteString(id + "\n")
				of = append(of, paths[i])
			}
		}
	}
	sizes, err := g.objects(ctx, at, ids.String(), "--batch-check=%(objectsize)")
	for i, text := range strings.Split(sizes, "\n") {
		size, _ := strconv.ParseInt(text, 10, 64) // 0 for a submodule's commit, which is not here
		if size > maxDiffed && i < len(of) {
			large = append(large, of[i])
		} else {
			rest += size
		}
	}
	if slices.Sort(large); len(strings.Join(large, "")) > maxNamed {
		err = errors.Join(err, fmt.Errorf("%d large files are too many to be named", len(large)))
	}
	return slices.Compact(large), rest, err
}

var shortstat = lazyregexp.New(`^ ([0-9]+) files? changed(?:, ([0-9]+) insertions?\(\+\))?(?:, ([0-9]+) deletions?\(-\))?\s*$`)

// counts parses the output of git diff --shortstat, which is empty for an empty diff.
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

// readBundle reads the head of a bundle. It returns the commits of its refs, and its pack.
func readBundle(from io.Reader) (refs map[string]string, pack io.Reader, err error) {
	r := bufio.NewReaderSize(from, maxBundleLine)
	refs = map[string]string{}
	bad := func(format string, args ...any) (map[string]string, io.Reader, error) {
		return nil, nil, &job.MalformedBundle{Err: fmt.Errorf(format, args...)}
	}
	for n := range maxBundleRefs {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, nil, err
		}
		if err != nil {
			return bad("its head does not end")
		}
		text := string(line[:len(line)-1])
		commit, name, _ := strings.Cut(text, " ")
		switch {
		case n == 0:
			if text != "# v2 git bundle" {
				return bad("it does not begin as one")
			}
		case text == "":
			if len(refs) == 0 {
				return bad("it has no refs")
			}
			return refs, r, nil
		case strings.HasPrefix(text, "-"):
			// A prerequisite: the check of the objects shows whether it is here.
		case !job.IsCommit(commit) || name != headRef && name != uncommittedRef || refs[name] != "":
			return bad("it has the ref %.100q", text)
		default:
			refs[name] = commit
		}
	}
	return bad("its head has more than %d lines", maxBundleRefs)
}

func writeFile(name string, from io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

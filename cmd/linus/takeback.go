package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/internal/intake"
	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/term"
	"linus/internal/worktree"
)

// takeFlags say what to fetch from a run.
type takeFlags struct {
	pull        []string
	diff, apply bool
	junit       string // the file for the report of its tests
	force       bool   // pull what exists here, too, and what programs run by themselves

	anyway bool   // apply the changes of a failed command, too
	below  string // of several jobs, the name of the one to pull from
	to     string // the directory to pull files to
}

// For versions that sent two archives, this matches the second.
var runArchive = lazyregexp.New(`^linus-run/\.([A-Za-z0-9_-]+)/([A-Z2-7]+)\.(changes|after)\.tgz$`)

// runOf returns the run of a job, if the job is one.
func runOf(j job.Job) (treeRun, bool) {
	for _, pattern := range j.Manifest.Artifacts {
		if m := runArchive.FindStringSubmatch(pattern); m != nil {
			return treeRun{name: m[1], token: m[2]}, true
		}
	}
	return treeRun{}, false
}

// takeUp continues with a run that somebody has detached from, or fetches from one that has ended.
func (a *app) takeUp(cmd *cobra.Command, args []string, f runFlags) error {
	if len(args) > 0 || f.repository != "" {
		return usage("--job follows an existing run; give neither a command nor --repo")
	}
	s, err := a.attach(cmd.Context(), false)
	if err != nil {
		return err
	}
	defer s.Close()
	j, err := s.Job(cmd.Context(), f.job)
	if err != nil {
		return err
	}
	r, ok := runOf(j)
	if !ok {
		return usage("job %s is not one of linus run; linus job attach and linus job artifacts get are for all jobs", j.ID)
	}
	if worktree.IsRepository(r.name) && f.apply {
		return errNoTree
	}
	t, err := worktree.Find(cmd.Context(), ".")
	if err == nil && t.Name != r.name {
		err = fmt.Errorf("%s was sent from another directory (%s) than this one (%s)", j.ID, r.name, t.Name)
	}
	switch {
	case worktree.IsRepository(r.name): // its clone is gone
		t = worktree.Tree{Root: "."}
	case err != nil && (f.apply || len(f.pull) > 0):
		return asUsage(err)
	case err != nil: // this directory's ignored files say nothing about the run's
		t = worktree.Tree{}
	}
	f.to, f.anyway = t.Root, true
	return a.finishRun(cmd.Context(), s, j, t, r, f.takeFlags, conversation{
		input: !j.Status.Terminal() && j.Manifest.Stdin == job.StdinOpen && !j.Stdin.Closed && hasInput(a.stdin), joining: true,
	})
}

// finishRun follows a run to its end and fetches what f asks for.
func (a *app) finishRun(ctx context.Context, s *session, j job.Job, t worktree.Tree, r treeRun, f takeFlags, c conversation) error {
	c.again = "linus run --job " + j.ID
	if f.diff {
		c.again += " --diff"
	}
	if f.apply {
		c.again += " --apply"
	}
	for _, name := range f.pull {
		c.again += " --pull " + shellescape.Quote(name)
	}
	if f.force {
		c.again += " --force"
	}
	if f.junit != "" {
		c.again += " --junit " + shellescape.Quote(f.junit)
	}
	var ended error
	_, agent := j.Manifest.AgentType.Agent()
	if agent || len(j.Children) > 0 { // it shows its steps, and then its answer
		ended = a.waitFor(ctx, s, j.ID)
	} else {
		ended = a.converse(ctx, s, j, c)
	}
	var code exitError
	if ended != nil && !errors.As(ended, &code) {
		return fmt.Errorf("%w\nthe run continues: %s", ended, c.again)
	}
	after, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Ctrl-C was for the command
	defer cancel()
	j, err := s.Job(after, j.ID)
	switch {
	case err != nil || !j.Status.Terminal(): // detached
		if agent {
			a.note("  changes: %s", c.again)
		}
		return errors.Join(err, ended)
	case j.StartedAt.IsZero() || j.Outcome.Reason == job.ReasonLost: // it has left nothing, and the reason was shown
		if j.Outcome.Reason == job.ReasonLost && j.Manifest.Retry != "" {
			a.note("linus job status %s names the job that runs it again; linus run --job takes that up", j.ID)
		}
		return ended
	}
	err = a.takeRun(after, s, j, t, r, f)
	if f.junit != "" {
		err = errors.Join(err, a.writeReport(after, s, j.ID, f.junit))
	}
	if err != nil {
		a.note("linus: %s", strings.ReplaceAll(err.Error(), "\n", "\n  "))
		if ended == nil {
			ended = exitError(exitFailure)
		}
	}
	return ended
}

// takeRun fetches what f asks for from a run that has ended.
func (a *app) takeRun(ctx context.Context, s *session, j job.Job, t worktree.Tree, r treeRun, f takeFlags) error {
	if len(j.Children) > 0 {
		return a.pullChildren(ctx, s, j, t, r, f)
	}
	failed := a.pullRun(ctx, s, j, t, r, f)
	if !f.diff && !f.apply {
		return failed
	}
	changes, err := a.changesOf(ctx, s, j, t, r)
	switch {
	case err != nil:
		return errors.Join(failed, err)
	case len(changes) == 0:
		a.note("the command changed no files")
		return failed
	}
	if f.diff {
		if err := a.showDiff(changes); err != nil {
			return errors.Join(failed, err)
		}
	}
	if !f.apply {
		return failed
	}
	if j.Status != job.Success && !f.anyway {
		return errors.Join(failed, fmt.Errorf("the command failed, so its changes are not applied; to apply them: linus run --job %s --apply", j.ID))
	}
	keep := filepath.Join(s.config.StateDir, "applied", t.Name)
	made, err := t.Apply(changes, keep, f.force)
	if made == nil && err != nil {
		return errors.Join(failed, fmt.Errorf("nothing is applied, for not all of it can be:\n%w\n--diff shows it, --pull brings single files", err))
	}
	kept := false
	for _, c := range made {
		what := ""
		switch {
		case c.Before == nil:
			what = " (new)"
		case c.After == nil:
			what = " (removed)"
		}
		kept = kept || c.Before != nil
		a.note("applied: %s%s", c.Name, what)
	}
	if kept && err == nil {
		a.note("what was replaced or removed is in %s until the next --apply here", keep)
	}
	return errors.Join(failed, err)
}

// pullRun fetches files of a run, each to its place in the tree.
func (a *app) pullRun(ctx context.Context, s *session, j job.Job, t worktree.Tree, r treeRun, f takeFlags) (failed error) {
	if len(f.pull) == 0 {
		return nil
	}
	root, err := os.OpenRoot(f.to)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing is written through it
	dirs := map[string]bool{}
	more := j.ArtifactsSkippedCount - len(j.ArtifactsSkipped) // skipped artifacts that are not listed
	for _, name := range f.pull {
		from := r.pulled(path.Join(t.Sub, filepath.ToSlash(name)))
		isPart := func(of string) bool { return of == from || strings.HasPrefix(of, from+"/") }
		found := false
		for _, file := range j.Artifacts {
			to, ok := strings.CutPrefix(file.Path, r.tree()+"/")
			if !isPart(file.Path) || !ok {
				continue
			}
			found, dirs[path.Dir(to)] = true, true
			into := intake.Into{Root: root, Replace: f.force, Any: f.force || file.Path == from}
			if err := fetch(ctx, s, j.ID, file.Path, into, to); err != nil {
				failed = errors.Join(failed, fmt.Errorf("not pulled: %w", err))
				continue
			}
			a.note("pulled: %s", path.Join(f.below, to))
		}
		for _, skipped := range j.ArtifactsSkipped {
			if isPart(skipped.Path) && !strings.Contains(skipped.Reason, "nothing there matches") {
				found = true
				failed = errors.Join(failed, fmt.Errorf("not pulled: %s: %s", strings.TrimPrefix(skipped.Path, r.tree()+"/"), skipped.Reason))
			}
		}
		switch {
		case found:
		case more > 0:
			failed = errors.Join(failed, fmt.Errorf("not pulled: %s: there is no such file in the VM, or it was not kept", name))
		case slices.Contains(j.Manifest.Artifacts, wildcards.Replace(from)):
			failed = errors.Join(failed, fmt.Errorf("not pulled: %s: there is no such file in the VM", name))
		default:
			failed = errors.Join(failed, fmt.Errorf("not pulled: %s: it was not asked for when the run began", name))
		}
	}
	a.noteLeft(root, f.below, dirs)
	told := fmt.Sprintf("%d more files or patterns are not listed that the job could not keep: what --pull asks for may be among them", more)
	switch {
	case more > 2*len(f.pull), more > 0 && failed != nil: // each name is two patterns, of which one matches
		failed = errors.Join(failed, errors.New(told))
	case more > 0:
		a.note("%s", told)
	}
	return failed
}

// noteLeft reports partial files that a killed linus has left where files are being written.
func (a *app) noteLeft(root *os.Root, below string, dirs map[string]bool) {
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		for _, left := range intake.Left(root, dir, false) {
			a.note("%s is a partial file; if no linus is writing there, a killed one left it: remove it", path.Join(below, left))
		}
	}
}

// changesOf returns what a run's command has changed in the tree.
func (a *app) changesOf(ctx context.Context, s *session, j job.Job, t worktree.Tree, r treeRun) ([]worktree.Change, error) {
	name := r.archive()
	if !slices.Contains(j.Manifest.Artifacts, name) {
		return nil, fmt.Errorf("another version of linus sent the files, and must fetch their changes: linus run --job %s", j.ID)
	}
	archive, _, err := s.OpenArtifact(ctx, j.ID, name)
	if none, is := errors.AsType[*job.FieldError](err); is {
		_, why, _ := strings.Cut(none.Problem, strconv.Quote(name)+": ")
		if why == "" || strings.Contains(why, "nothing there matches") {
			why = "the command was ended before that"
		}
		return nil, fmt.Errorf("its changes were not kept: %s", why)
	}
	if err != nil {
		return nil, err
	}
	defer archive.Close() //nolint:errcheck // only read
	changes, err := worktree.ReadChanges(archive)
	if err != nil {
		return nil, err
	}
	return t.Ours(ctx, changes)
}

// showDiff writes changes as a patch. On a terminal, control sequences are escaped, so that nothing
// in the changes can hide others.
func (a *app) showDiff(changes []worktree.Change) error {
	for _, c := range changes {
		if c.Left != "" {
			a.note("not shown: %q %s", c.Name, c.Left)
			continue
		}
		patch := c.Diff()
		if isTerminal(a.stdout) {
			patch = []byte(term.Visible(string(patch)))
		}
		if _, err := a.stdout.Write(patch); err != nil {
			return err
		}
	}
	return nil
}

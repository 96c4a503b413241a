package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/intake"
	"linus/internal/job"
)

func (a *app) artifactsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "artifacts ID",
		Short:   "List and fetch a job's artifacts",
		Long:    "Lists the files collected from a job: those that its manifest's artifacts (submit --artifact) matched when it ended.",
		Example: "  linus job artifacts ID\n  linus job artifacts get ID --dir out\n  linus job artifacts get ID dist/app.tar.gz",
		Args:    oneArg("the job's ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			j, err := ended(ctx, e, args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct {
					Artifacts []job.Artifact `json:"artifacts"`
					job.SkippedArtifacts
				}{append([]job.Artifact{}, j.Artifacts...), j.SkippedArtifacts})
			}
			defer a.noteLeftOut(j)
			return printAll(a, j.Artifacts, "no artifacts", "SIZE\tMODE\tSHA256\tPATH", func(f job.Artifact) string {
				return fmt.Sprintf("%d\t%s\t%s\t%s", f.Size, f.Mode, f.SHA256, oneLine(f.Path, 200))
			})
		}),
	}
	cmd.AddCommand(a.artifactsGetCommand())
	return a.completeJobs(cmd)
}

func (a *app) diffCommand() *cobra.Command {
	var stat bool
	cmd := &cobra.Command{
		Use:   "diff ID",
		Short: "Show what a job has changed in its repository",
		Long: "Writes the job's artifact repository.patch to stdout: what differs from what the task started with, committed or not, as\n" +
			"git apply takes it. A terminal gets only text, unless --raw. Its commits are in repository.bundle: git fetch FILE HEAD.",
		Example: "  linus job diff ID | less\n  linus job diff ID --stat\n  linus job diff ID | git apply",
		Args:    oneArg("the job's ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			j, err := ended(ctx, e, args[0])
			switch {
			case err != nil:
				return err
			case !j.Manifest.Repository.Given():
				return errors.New("the job had no repository; linus job artifacts ID lists its artifacts")
			case j.Repository == nil:
				return fmt.Errorf("the job's task did not begin: %s", j.Outcome.Error)
			case !j.HasPatch():
				if j.Repository.Problem != "" {
					return errors.New(j.Repository.Problem)
				}
				a.note("the job changed no files")
				return nil
			}
			from, _, err := e.OpenArtifact(ctx, args[0], job.PatchArtifact)
			if err != nil {
				return err
			}
			defer from.Close() //nolint:errcheck // only read
			to, done := a.output(a.stdout)
			if stat {
				return errors.Join(writeStat(to, from), done())
			}
			_, err = io.Copy(to, from)
			return errors.Join(err, done())
		}),
	}
	cmd.Flags().BoolVar(&stat, "stat", false, "show only which files were changed, and how much")
	a.rawFlag(cmd)
	return a.completeJobs(cmd)
}

// writeStat writes the summary that precedes a patch.
func writeStat(to io.Writer, patch io.Reader) error {
	lines := bufio.NewReader(patch)
	for {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "diff --git ") {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		if _, err := io.WriteString(to, line); err != nil {
			return err
		}
	}
}

func (a *app) noteLeftOut(j job.Job) {
	for _, line := range leftOut(j.SkippedArtifacts) {
		a.note("no artifact: %s", line)
	}
}

var errNoneKept = errors.New("no artifacts: nothing the job's manifest asks for was collected")

// ended returns a job that has ended, so its artifacts are known. For any other job it returns
// *job.NotCompleteError.
func ended(ctx context.Context, e outputs, id string) (job.Job, error) {
	j, err := e.Job(ctx, id)
	if err == nil && !j.Status.Terminal() {
		err = &job.NotCompleteError{Status: j.Status}
	}
	return j, err
}

// keeper is the part of an engine that fetching artifacts needs.
type keeper interface {
	outputs
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error)
}

func (a *app) artifactsGetCommand() *cobra.Command {
	var dir string
	var force bool
	cmd := &cobra.Command{
		Use:   "get ID [PATH...]",
		Short: "Fetch a job's artifacts",
		Long: "Fetches all of the job's artifacts, or those at the given paths (a directory includes everything below it), into --dir,\n" +
			"keeping paths and modes, and checks each against its sha256. An existing file is not replaced, nor is one written that programs\n" +
			"run in place (.envrc, .bashrc, .vscode; linus help guarantees), unless --force or it is named alone; .git never is.\n" +
			"What was left out, and why, is reported on stderr; it is an error if nothing the manifest asks for was collected.",
		Example: "  linus job artifacts get ID --dir out\n  linus job artifacts get ID report.xml --force",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s takes the job's ID, and the paths to fetch (default: all)", cmd.CommandPath())
			}
			return nil
		},
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			j, err := ended(ctx, e, args[0])
			if err != nil {
				return err
			}
			if !a.json {
				defer a.noteLeftOut(j)
			}
			if len(j.Artifacts) == 0 && j.ArtifactsSkippedCount > 0 {
				return errNoneKept
			}
			chosen, err := choose(j.Artifacts, args[1:])
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a user's ordinary directory
				return fmt.Errorf("make the directory: %w; choose another with --dir", err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				return fmt.Errorf("open the directory: %w; choose another with --dir", err)
			}
			defer root.Close() //nolint:errcheck // nothing is written through it
			type row struct {
				job.Artifact

				File string `json:"file"` // its local path
			}
			rows := make([]row, 0, len(chosen))
			var lines []string
			var failed error
			dirs := map[string]bool{}
			for _, f := range chosen {
				dirs[path.Dir(f.Path)] = true
				named := slices.ContainsFunc(args[1:], func(p string) bool { return cleanPath(p) == f.Path })
				if err := fetch(ctx, e, args[0], f.Path, intake.Into{Root: root, Replace: force, Any: force || named}, f.Path); err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				rows = append(rows, row{f, filepath.Join(dir, f.Path)})
				lines = append(lines, oneLine(filepath.Join(dir, f.Path), 300))
			}
			a.noteLeft(root, dir, dirs)
			if len(chosen) == 0 {
				a.note("no artifacts")
			}
			if a.json || len(lines) > 0 {
				if err := a.print(rows, strings.Join(lines, "\n")); err != nil {
					return err
				}
			}
			return failed
		}),
	}
	cmd.Flags().StringVarP(&dir, "dir", "d", ".", "destination directory; created if missing")
	cmd.Flags().BoolVar(&force, "force", false, "replace existing files")
	_ = cmd.MarkFlagDirname("dir")
	return a.completeJobs(cmd)
}

// cleanPath returns a path in the form that artifacts have.
func cleanPath(p string) string { return path.Clean(strings.TrimPrefix(p, "/")) }

// choose returns the artifacts at or below the paths, or all artifacts if there is no path.
func choose(all []job.Artifact, paths []string) ([]job.Artifact, error) {
	if len(paths) == 0 {
		return all, nil
	}
	var chosen []job.Artifact
	taken := map[string]bool{}
	for _, p := range paths {
		clean, found := cleanPath(p), false
		for _, f := range all {
			if f.Path != clean && clean != "." && !strings.HasPrefix(f.Path, clean+"/") {
				continue
			}
			found = true
			if !taken[f.Path] {
				chosen = append(chosen, f)
			}
			taken[f.Path] = true
		}
		if !found {
			return nil, usage("the job has no artifact %q; linus job artifacts ID lists them", p)
		}
	}
	return chosen, nil
}

// fetch writes an artifact to a file. If the artifact is incomplete or altered, no file is left.
func fetch(ctx context.Context, e keeper, id, name string, into intake.Into, to string) error {
	err := into.File(to, 0o600, func(file *os.File) error {
		from, about, err := e.OpenArtifact(ctx, id, name)
		if err != nil {
			return err
		}
		defer from.Close() //nolint:errcheck // only read
		sum := sha256.New()
		_, err = io.Copy(io.MultiWriter(file, sum), from)
		if got := hex.EncodeToString(sum.Sum(nil)); err == nil && got != about.SHA256 {
			err = fmt.Errorf("its sha256 is %s, not %s: not kept; fetch it again", got, about.SHA256)
		}
		if mode, modeErr := strconv.ParseUint(about.Mode, 8, 32); err == nil && modeErr == nil {
			err = file.Chmod(fs.FileMode(mode) & fs.ModePerm)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/embed"
	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/worktree"
)

type runFlags struct {
	manifestFlags

	repository string
	job        string // a run to take up, instead of a new one
	takeFlags
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run -- COMMAND [ARG...]",
		Short: "Run a command on the files of the current directory, in a VM of its own",
		Long: "Sends the files you stand in to a new VM, runs the command in the same directory there, shows its output live, and exits\n" +
			"with its exit code (124: timed out; 125: no exit code). In a git repository these are all files of the work tree that are\n" +
			"tracked or not ignored, without .git; elsewhere all files of this directory. The VM is destroyed afterwards.\n\n" +
			"--diff shows the command's changes, and --apply makes them here, all or none, in files that are still as they were sent:\n" +
			"review them as you would a stranger's patch. The replaced files are kept, and the output says where.\n" +
			"--pull also brings back files that git ignores, and replaces no file here without --force.\n" +
			"With --agent-type claude, codex or gemini what follows -- is a prompt instead of a command, and that agent works on the files.\n" +
			"With --matrix or --shard it is run in a VM for each combination: a line says how each ended, --pull puts each one's files below\n" +
			"its name, and the exit code is that of the first that failed.\n" +
			"With --vm the files stay in that VM, with whatever commands leave beside them, and the next run sends only changes.\n\n" +
			"Ctrl-C interrupts the command; a second Ctrl-C detaches from it. The run then continues, and its changes are kept:\n" +
			"linus run --job ID follows it again.",
		Example: "  linus run -- make test\n" +
			"  linus run --pull dist --memory 8G -- npm run build\n" +
			"  linus run --apply -- gofmt -w .\n" +
			"  linus run --vm dev -- go test ./...\n" +
			"  linus run --agent-type claude --diff -- 'Make ./tests.sh pass'\n" +
			"  linus run --repo https://github.com/junegunn/fzf#master --egress internet -- make test\n" +
			"  linus run --repo https://github.com/acme/app --repo-credential git --push fix/typo -- sh -c './fix && git commit -am fixed'\n" +
			"  linus run --matrix go=1.25,1.26 --shard 2 --pull report.xml --junit all.xml -- sh -c './test $LINUS_SHARD/$LINUS_SHARDS'\n" +
			"  linus run --job ID --diff",
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.json && (f.diff || len(f.pull) > 0 || f.apply) {
				return usage("-o json shows only the run's result; fetch its changes with linus run --job ID")
			}
			if f.job != "" {
				return a.takeUp(cmd, args, f)
			}
			if f.given.FansOut() && (f.diff || f.apply) {
				return usage("--diff and --apply are for a single job's changes; of --matrix and --shard fetch files with --pull")
			}
			return a.runTree(cmd, args, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.repository, "repo", "", "URL[#REF] of a repository to run on instead, which is cloned here and sent; with --push, --repo-credential, --submodules or --lfs the engine fetches it")
	flags.StringVar(&f.job, "job", "", "follow the run with this job's ID again, instead of starting one, and fetch its changes")
	flags.StringArrayVar(&f.pull, "pull", nil, "path or pattern, relative to the current directory, of files to bring back; may be repeated")
	flags.BoolVar(&f.force, "force", false, "let --pull replace existing files here, and let --pull and --apply write files that programs run in place, such as .envrc")
	flags.BoolVar(&f.diff, "diff", false, "show what the command has changed, as a patch")
	flags.BoolVar(&f.apply, "apply", false, "make the same changes here, all or none, if the command succeeds")
	flags.StringVar(&f.junit, "junit", "", "write the JUnit reports (.xml) among the files of --pull to this file, as one")
	f.register(a, cmd, field.Run)
	a.rawFlag(cmd)
	_ = cmd.MarkFlagFilename("junit", "xml")
	_ = cmd.RegisterFlagCompletionFunc("job", a.jobIDs())
	return cmd
}

// runTree submits a new run and follows it to its end.
func (a *app) runTree(cmd *cobra.Command, args []string, f runFlags) error {
	ctx := cmd.Context()
	if _, err := commandManifest(cmd, args); err != nil {
		return err
	}
	if f.given.Push.Branch != "" || f.given.Repository.Given() {
		return a.runRepository(cmd, args, f)
	}
	if f.repository != "" && f.apply {
		return errNoTree
	}
	url, ref, _ := strings.Cut(f.repository, "#")
	url, err := worktree.Locate(url)
	if err != nil {
		return err
	}
	t, done, err := treeOf(ctx, url)
	if err != nil {
		return err
	}
	defer done()
	if err := t.Unfinished(); err != nil {
		if f.apply {
			return asUsage(err)
		}
		a.note("%v", err)
	}
	if f.to = t.Root; f.repository != "" {
		f.to = "."
	}
	s, err := a.attach(ctx, true)
	if err != nil {
		return err
	}
	defer s.Close()
	r := treeRun{name: t.Name, token: rand.Text()}
	held, err := r.held(ctx, s, f.given.VM)
	if err != nil {
		return err
	}
	if f.repository != "" { // not before the VM is known to exist
		if err := asUsage(t.Clone(ctx, url, ref)); err != nil {
			return err
		}
	}
	p, err := t.Pack(ctx, held)
	if err != nil {
		return usage("%w", err)
	}
	m, input, err := a.runManifest(cmd, args, f, t, r, p, held)
	if err != nil {
		return err
	}
	a.note("sending %s: %d of %d files, %s", t.Name, p.Sent, p.Files, bytesText(int64(len(p.Archive))))
	// The key makes one run of a submission that is repeated because its answer was lost.
	j, err := s.Submit(ctx, job.Submission{Manifest: m, IdempotencyKey: "run-" + r.token, Client: "cli"})
	if err != nil {
		return err
	}
	if !isTerminal(a.stderr) {
		a.note("job %s", j.ID)
	}
	a.warnEgress(j.Manifest.Network)
	return a.finishRun(ctx, s, j, t, r, f.takeFlags, conversation{input: input})
}

var errNoTree = usage("--apply makes changes in the tree here, and --repo runs on another one; use --diff")

// runRepository runs the command on a repository that the engine fetches and may push.
func (a *app) runRepository(cmd *cobra.Command, args []string, f runFlags) error {
	switch {
	case f.repository == "":
		return usage("--push, --repo-credential, --submodules and --lfs are for --repo")
	case f.apply || f.diff || len(f.pull) > 0:
		return usage("--diff, --apply and --pull are for trees that are sent; of this one see linus job diff")
	}
	m, err := commandManifest(cmd, args)
	if err == nil {
		err = f.override(cmd, &m, a.stdout)
	}
	if err != nil {
		return err
	}
	if _, agent := m.AgentType.Agent(); agent {
		m.Task = strings.Join(args, " ") + "\n"
	}
	m.StatusMode = job.StatusStreaming
	m.Repository.URL, m.Repository.Ref, _ = strings.Cut(f.repository, "#")
	if err := m.Validate(); err != nil {
		return err
	}
	s, err := a.attach(cmd.Context(), true)
	if err != nil {
		return err
	}
	defer s.Close()
	j, err := s.Submit(cmd.Context(), job.Submission{Manifest: m, IdempotencyKey: "run-" + rand.Text(), Client: "cli"})
	if err != nil {
		return err
	}
	a.warnEgress(j.Manifest.Network)
	a.note("job %s", j.ID)
	return a.waitFor(cmd.Context(), s, j.ID)
}

// treeOf returns the tree to send; that of a repository is still empty. done removes its temporary
// directory.
func treeOf(ctx context.Context, url string) (t worktree.Tree, done func(), err error) {
	if url == "" {
		t, err = worktree.Find(ctx, ".")
		return t, func() {}, asUsage(err)
	}
	dir, err := os.MkdirTemp("", "linus-run-")
	if err != nil {
		return t, nil, err
	}
	return worktree.OfRepository(url, dir), func() { _ = os.RemoveAll(dir) }, nil
}

func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return usage("%w", err)
}

// treeRun identifies a run, here and in the VM.
type treeRun struct {
	name  string // the tree's
	token string // the run's
}

// Where the run is in the VM, below its user's home (scripts/guest/run-tree.sh).
func (r treeRun) tree() string              { return "linus-run/" + r.name }
func (r treeRun) index() string             { return job.RunKept + r.name + "/index" }
func (r treeRun) archive() string           { return job.RunKept + r.name + "/" + r.token + ".changes.tgz" }
func (r treeRun) sent(name string) string   { return job.RunFiles + r.token + "/" + name }
func (r treeRun) pulled(name string) string { return path.Join(r.tree(), name) }

// wildcards escapes a name for use in a pattern.
var wildcards = strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")

// held returns the index of the tree that an existing VM has, or nil if it has none.
func (r treeRun) held(ctx context.Context, s *session, vm string) ([]byte, error) {
	if vm == "" {
		return nil, nil
	}
	var index []byte
	for len(index) <= worktree.MaxIndex {
		chunk, err := s.ReadFile(ctx, job.FileRange{VM: vm, Path: r.index(), Offset: int64(len(index))})
		var none *job.FieldError
		switch {
		case errors.As(err, &none) && none.Field == "path":
			return nil, nil
		case err != nil:
			return nil, err
		}
		index = append(index, chunk.Data...)
		if chunk.End || len(chunk.Data) == 0 {
			return index, nil
		}
	}
	return nil, nil // linus writes no index that long: the whole tree is made again
}

// runManifest returns the manifest of a run. input reports whether stdin goes to the command.
func (a *app) runManifest(cmd *cobra.Command, args []string, f runFlags, t worktree.Tree, r treeRun, p worktree.Packed, held []byte) (m job.Manifest, input bool, err error) {
	script, err := embed.Script("run-tree")
	if err != nil {
		return m, false, err
	}
	var sum string
	if len(held) > 0 {
		hash := sha256.Sum256(held)
		sum = hex.EncodeToString(hash[:])
	}
	m = job.Manifest{
		AgentType: job.AgentScript, StatusMode: job.StatusStreaming,
		Task:      "exec -- " + shellescape.QuoteCommand(append([]string{r.sent("run")}, args...)) + "\n",
		Artifacts: []string{r.archive()},
	}
	for _, file := range []struct {
		name, mode string
		data       []byte
	}{
		{"run", "0755", script.Body},
		{"settings", "0600", []byte(strings.Join([]string{r.name, r.token, t.Sub, sum, ""}, "\x00"))},
		{"tree.tgz", "0600", p.Archive}, {"gone", "0600", p.Gone}, {"index", "0600", p.Index},
	} {
		m.Files = append(m.Files, job.File{Path: r.sent(file.name), Mode: file.mode, Content: base64.StdEncoding.EncodeToString(file.data)})
	}
	for _, name := range f.pull {
		from := path.Join(t.Sub, filepath.ToSlash(name))
		if why := worktree.Unsafe(from); why != "" {
			return m, false, usage("--pull %q: %s; give a file or a directory of the tree", name, why)
		}
		// It may be a file or a directory: that is not known yet.
		literal := wildcards.Replace(r.pulled(from))
		m.Artifacts = append(m.Artifacts, literal, literal+"/**")
	}
	if err = f.override(cmd, &m, a.stdout); err != nil {
		return m, false, err
	}
	if _, agent := m.AgentType.Agent(); agent {
		m.Task, m.Agent.Command = strings.Join(args, " ")+"\n", "exec "+r.sent("run")+` "$@"`
		return m, false, m.Validate()
	}
	if input = !m.FansOut() && hasInput(a.stdin); input {
		m.Stdin = job.StdinOpen
	}
	return m, input, m.Validate()
}

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/field"
	"linus/internal/gitlab"
	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

const (
	gitlabSlack   = 30 * time.Minute // how long a VM may outlive its job's timeout
	gitlabCleanUp = 5 * time.Minute
	maxStage      = 64 << 20 // bytes of a stage's script
)

func (a *app) gitlabCommand() *cobra.Command {
	g := group("gitlab-executor", "Run the jobs of a GitLab runner, each in a VM of its own",
		a.gitlabConfigCommand(), a.gitlabPrepareCommand(), a.gitlabRunCommand(), a.gitlabCleanupCommand())
	g.Long = "The stages of GitLab Runner's custom executor: config.toml of the runner names this program for each of them, as the document on\n" +
		"dispatchers shows. The runner says in the environment which job it is; these commands are not meant to be typed."
	return g
}

type gitlabDirs struct{ builds, caches string }

func (d *gitlabDirs) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.builds, "builds-dir", "/builds", "directory in the VM for the jobs' sources: the same for config and prepare")
	cmd.Flags().StringVar(&d.caches, "cache-dir", "/cache", "directory in the VM for caches: the same for config and prepare")
	_ = cmd.RegisterFlagCompletionFunc("builds-dir", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("cache-dir", cobra.NoFileCompletions)
}

func (d *gitlabDirs) check() error {
	for option, path := range map[string]string{"--builds-dir": d.builds, "--cache-dir": d.caches} {
		if err := gitlab.CheckDirectory(path); err != nil {
			return usage("%s: %w", option, err)
		}
	}
	return nil
}

// gitlabStage makes a stage's RunE, which reports failures to the runner as GitLab expects them.
func (a *app) gitlabStage(work func(cmd *cobra.Command, j *gitlab.Job, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		env := config.GitLab()
		failure := gitlab.Failures(env)
		j, err := gitlab.Read(env)
		if err == nil {
			err = work(cmd, j, args)
		}
		if err == nil {
			return nil
		}
		code := failure.System
		if script, is := errors.AsType[scriptError](err); is {
			if err := failure.Tell(int(script)); err != nil {
				a.note("linus: the exit code cannot be reported: %v", err)
			}
			return exitError(failure.Build)
		}
		if _, is := errors.AsType[*gitlab.JobError](err); is {
			code = failure.Build
		}
		a.note("linus: %s", asTyped(cmd, words.In(err.Error())))
		if next := nextStep(err); next != "" {
			a.note("%s", next)
		}
		return exitError(code)
	}
}

// scriptError is the exit code of a job's script that failed.
type scriptError int

func (e scriptError) Error() string { return fmt.Sprintf("the script has exited with %d", int(e)) }

func (a *app) gitlabConfigCommand() *cobra.Command {
	var dirs gitlabDirs
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Tell GitLab Runner where the job's files are (config_exec)",
		Args:  noArgs,
		RunE: a.gitlabStage(func(_ *cobra.Command, j *gitlab.Job, _ []string) error {
			if err := dirs.check(); err != nil {
				return err
			}
			answer, err := j.Config(buildVersion(), dirs.builds, dirs.caches)
			if err == nil {
				_, err = fmt.Fprintf(a.stdout, "%s\n", answer)
			}
			return err
		}),
	}
	dirs.register(cmd)
	return cmd
}

// gitlabVariables are what a job may choose of its VM by variables, if the runner's owner allows
// it.
var gitlabVariables = []string{"template", "os", "cpu", "memory", "disk"}

func (a *app) gitlabPrepareCommand() *cobra.Command {
	var f manifestFlags
	var dirs gitlabDirs
	var allowed []string
	images := map[string]string{}
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Create the job's VM, with its services (prepare_exec)",
		Long: "Creates a VM for the job, and starts its services in it with Docker, which the template then needs. The options are those of\n" +
			"linus vm create; --ttl is the job's timeout and half an hour, so that nothing stays when the runner dies. With --allow-variables\n" +
			"a job's own variables LINUS_TEMPLATE, LINUS_OS, LINUS_CPU, LINUS_MEMORY and LINUS_DISK come before the options. The image that a\n" +
			"job asks for counts only if --image maps it to a template.",
		Example: "  linus gitlab-executor prepare --template ci --image go=ci-go --cpu 4 --memory 8G --egress internet\n" +
			"  linus gitlab-executor prepare --allow-variables cpu,memory",
		Args: noArgs,
		RunE: a.gitlabStage(func(cmd *cobra.Command, j *gitlab.Job, _ []string) error {
			var m job.Manifest
			if err := errors.Join(dirs.check(), f.override(cmd, &m, nil)); err != nil {
				return err
			}
			if m.AtEnd != "" || m.IdleSuspend != 0 {
				return usage("--at-end and --idle-suspend are not for the VMs of jobs, which end with them")
			}
			if template := images[j.Image]; template != "" {
				m.VMTemplate, m.OS = template, ""
			} else if j.Image != "" {
				a.note("warning: the image %s is ignored: it is not one of the runner's (--image)", gitlab.Line(j.Image, 100))
			}
			chosen, err := a.gitlabShape(j, &m, allowed)
			if err != nil {
				return err
			}
			m.VMName, m.Lifecycle = j.VM, vm.Persistent
			if m.TTL == 0 {
				m.TTL = int((j.Timeout + gitlabSlack) / time.Second)
			}
			labels := j.Labels()
			maps.Copy(labels, m.Labels)
			m.Labels = labels
			return a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
				return a.gitlabPrepare(ctx, s, j, m, dirs, chosen)
			})(cmd, nil)
		}),
	}
	f.register(a, cmd, field.CreateVM)
	dirs.register(cmd)
	cmd.Flags().Var((*pairsFlag)(&images), "image", "the template of jobs that ask for an image, NAME=TEMPLATE; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("image", cobra.NoFileCompletions)
	cmd.Flags().StringSliceVar(&allowed, "allow-variables", nil, "what a job may choose for its VM with its variables: "+strings.Join(gitlabVariables, ", "))
	_ = cmd.RegisterFlagCompletionFunc("allow-variables", cobra.FixedCompletions(gitlabVariables, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// gitlabShape applies the job's variables to its VM, as far as the runner's owner allows it.
func (a *app) gitlabShape(j *gitlab.Job, m *job.Manifest, allowed []string) (chosen bool, err error) {
	for _, what := range allowed {
		if !slices.Contains(gitlabVariables, what) {
			return false, usage("--allow-variables %q: give some of %s", what, strings.Join(gitlabVariables, ", "))
		}
	}
	for _, what := range gitlabVariables {
		name := "LINUS_" + strings.ToUpper(what)
		value := j.Variable(name)
		switch {
		case value == "":
			continue
		case !slices.Contains(allowed, what):
			a.note("warning: %s is ignored: the runner's owner does not allow it (--allow-variables %s)", name, what)
			continue
		}
		switch chosen = true; what {
		case "template":
			m.VMTemplate, m.OS = value, ""
		case "os":
			m.OS, m.VMTemplate = value, ""
		case "cpu":
			if m.Resources.CPU, err = strconv.Atoi(value); err != nil {
				return true, &gitlab.JobError{Err: fmt.Errorf("%s: %.40q is not a number", name, value)}
			}
		case "memory":
			m.Resources.Memory = value
		case "disk":
			m.Resources.Disk = value
		}
	}
	return chosen, nil
}

// gitlabPrepare creates the job's VM and prepares it. It can be repeated: a VM of that name that
// exists, or is being created, belongs to the job.
func (a *app) gitlabPrepare(ctx context.Context, s *session, j *gitlab.Job, m job.Manifest, dirs gitlabDirs, chosen bool) error {
	ready, err := j.Ready(dirs.builds, dirs.caches)
	if err != nil {
		return err
	}
	began := time.Now()
	begin, end := gitlab.Section("linus_vm", "Creating the VM "+j.VM, began)
	_, _ = io.WriteString(a.stderr, begin)
	info, err := a.gitlabVM(ctx, s, j, m, chosen)
	if err == nil {
		err = a.gitlabScript(ctx, s, j, "ready", strings.NewReader(ready))
	}
	_, _ = io.WriteString(a.stderr, end(time.Now()))
	code, isScript := errors.AsType[scriptError](err)
	switch {
	case isScript && code == gitlab.NoDocker:
		return &gitlab.JobError{Err: errors.New("the job's services need Docker, which its VM does not have: use a template that has it")}
	case isScript:
		return fmt.Errorf("the VM could not be made ready: %w", code) // not the job's fault
	case err != nil:
		return err
	}
	a.note("VM %s (%d) runs on node %s after %s; linus vm ssh %s logs in to it", info.Name, info.ID, info.Node, seconds(time.Since(began)), info.Name)
	return nil
}

func (a *app) gitlabVM(ctx context.Context, s *session, j *gitlab.Job, m job.Manifest, chosen bool) (job.VMInfo, error) {
	info, err := s.VM(ctx, j.VM)
	if err == nil && info.Unwanted { // from an earlier attempt, which was cleaned up
		if _, err := a.follow(ctx, s, info.Job, following{quiet: true, until: func(j job.Job) bool { return j.VM == nil || j.VM.State.Settled() }}); err != nil {
			return info, err
		}
		info, err = s.VM(ctx, j.VM)
	}
	for waits := false; err != nil; waits = true {
		if unknown, is := errors.AsType[*job.FieldError](err); !is || unknown.Fault != job.FaultUnknown && unknown.Fault != job.FaultLimit {
			return info, err
		}
		if waits {
			if err := sleep.For(ctx, 5*time.Second); err != nil {
				return info, err
			}
		}
		info, err = s.CreateVM(ctx, job.Submission{Manifest: m, Client: "gitlab"})
		full, is := errors.AsType[*job.FieldError](err)
		invalid, are := errors.AsType[*job.InvalidError](err)
		switch {
		case is && full.Fault == job.FaultLimit && !waits:
			a.note("waiting for room: %v", err)
		case chosen && (are && len(invalid.Fields) > 0 || is && full.Fault != job.FaultLimit):
			return info, &gitlab.JobError{Err: err} // the job's choice was refused
		case is && full.Fault == job.FaultUnknown:
			return info, err
		}
	}
	made, err := a.follow(ctx, s, info.Job, following{phase: job.PhaseProvision, until: func(j job.Job) bool { return j.Status.Terminal() }})
	switch {
	case err != nil:
		return info, err
	case made.Status != job.Success:
		return info, fmt.Errorf("the VM %s was not created: %s", j.VM, made.Outcome.Error)
	}
	return s.VM(ctx, j.VM)
}

func (a *app) gitlabRunCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run SCRIPT STAGE",
		Short: "Run a stage's script in the job's VM (run_exec)",
		Long: "Runs the script as a job in the VM. What it prints is printed here, and is that job's log too. When the runner ends the stage because\n" +
			"the job was cancelled or has timed out, the script is ended in the VM.",
		Args: theseArgs("the script's file", "the stage's name"),
		RunE: a.gitlabStage(func(cmd *cobra.Command, j *gitlab.Job, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("the stage's script: %w", err)
			}
			defer f.Close() //nolint:errcheck // read only
			script, err := io.ReadAll(io.LimitReader(f, maxStage+1))
			if err == nil && len(script) > maxStage {
				err = &gitlab.JobError{Err: fmt.Errorf("the script of stage %s is longer than %d bytes", gitlab.Line(args[1], 63), maxStage)}
			}
			if err != nil {
				return err
			}
			return a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
				return a.gitlabScript(ctx, s, j, args[1], bytes.NewReader(script))
			})(cmd, nil)
		}),
	}
}

// gitlabScript runs a script in the job's VM. When ctx ends, it cancels the script.
func (a *app) gitlabScript(ctx context.Context, s *session, j *gitlab.Job, stage string, script io.Reader) error {
	labels := j.Labels()
	labels["gitlab/stage"] = gitlab.Line(stage, 63)
	m := job.Manifest{
		AgentType: job.AgentScript, Task: gitlab.Stage, Stdin: job.StdinOpen, StatusMode: job.StatusStreaming, VM: j.VM, Labels: labels,
		Timeout: min(int((j.Timeout+gitlabSlack)/time.Second), job.MaxTimeout),
	}
	run, err := s.Submit(ctx, job.Submission{Manifest: m, Client: "gitlab"})
	if err != nil {
		return err
	}
	inner, done := context.WithCancel(context.WithoutCancel(ctx)) // to wait for the script's end
	defer done()
	ended := context.AfterFunc(ctx, func() {
		if err := s.Cancel(inner, run.ID); err != nil && !errors.Is(err, job.ErrCompleted) {
			a.note("linus: the stage's script could not be ended: %v", err)
		}
		select { // output that the script writes as it ends is still shown
		case <-inner.Done():
		case <-time.After(time.Minute):
			done()
		}
	})
	defer ended()
	r, err := a.gitlabTalk(inner, s, run.ID, script)
	switch {
	case ctx.Err() != nil:
		return errors.New("the stage was ended by the runner")
	case err != nil:
		if err := s.Cancel(inner, run.ID); err != nil && !errors.Is(err, job.ErrCompleted) { // it waits for the rest
			a.note("linus: the stage's script could not be ended: %v", err)
		}
		return err
	case r.Reason != job.ReasonExitStatus || r.ExitCode == nil:
		return fmt.Errorf("the script has no exit code: %s", r.Error)
	case *r.ExitCode != 0:
		return scriptError(*r.ExitCode)
	}
	return nil
}

// gitlabTalk sends a stage its script and shows its output. The stage reads the whole script before
// it begins.
func (a *app) gitlabTalk(ctx context.Context, s *session, id string, script io.Reader) (r job.Result, err error) {
	if _, err := a.follow(ctx, s, id, following{quiet: true, until: job.Job.Begun}); err != nil {
		return r, err
	}
	if _, err := sendInput(ctx, s, id, script, true, func() {}); err != nil && !errors.Is(err, job.ErrCompleted) {
		return r, fmt.Errorf("give the VM the stage's script: %w", err)
	}
	l := &logs{engine: s, id: id, follow: true}
	l.add(job.Stdout, a.stdout)
	l.add(job.Stderr, a.stderr)
	if err := l.copy(ctx); err != nil {
		return r, err
	}
	l.noteDropped(a)
	return s.Result(ctx, id)
}

func (a *app) gitlabCleanupCommand() *cobra.Command {
	var keep bool
	var keepFor time.Duration
	var most int
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Destroy the job's VM, and end what runs in it (cleanup_exec)",
		Long: "Destroys the job's VM. With --keep-on-failure that of a job whose script has failed stays for --keep-for, so that somebody can log\n" +
			"in to it: at most --keep-at-most of all GitLab jobs that the runner's user or token has run, of which the one that was not used\n" +
			"for longest goes first. One that was cancelled or has timed out does not stay.",
		Args: noArgs,
		RunE: a.gitlabStage(func(cmd *cobra.Command, j *gitlab.Job, _ []string) error {
			if keepFor < time.Minute {
				return usage("--keep-for %s: give a minute or more", keepFor)
			}
			if most < 1 || most > job.MaxKeep {
				return usage("--keep-at-most %d: give 1 to %d", most, job.MaxKeep)
			}
			ctx, done := context.WithTimeout(context.WithoutCancel(cmd.Context()), gitlabCleanUp)
			defer done()
			cmd.SetContext(ctx) // an interrupt does not stop this: nothing else would clean up
			err := a.attached(func(ctx context.Context, s *session, _ []string) error {
				if !keep {
					keepFor = 0
				}
				return a.gitlabCleanup(ctx, s, j, keepFor, most)
			})(cmd, nil)
			if err != nil {
				return fmt.Errorf("the VM %s may still be there, at most until its --ttl is over: linus vm list --label gitlab/job=%d shows it, linus vm destroy %[1]s ends it: %[3]w", j.VM, j.ID, err)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&keep, "keep-on-failure", false, "keep the VM of a job whose script has failed for --keep-for")
	cmd.Flags().DurationVar(&keepFor, "keep-for", time.Hour, "how long to keep it, as in 2h")
	cmd.Flags().IntVar(&most, "keep-at-most", job.DefaultKeep, "how many VMs of GitLab's jobs are kept; the one that was not used for longest goes first")
	_ = cmd.RegisterFlagCompletionFunc("keep-for", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("keep-at-most", cobra.NoFileCompletions)
	return cmd
}

// gitlabFailed reports whether a script of the job itself failed in its VM.
func gitlabFailed(ctx context.Context, s *session, j *gitlab.Job) (bool, error) {
	page, err := s.List(ctx, job.Filter{Label: []string{fmt.Sprintf("gitlab/job=%d", j.ID)}, Reason: job.ReasonExitStatus, Limit: 200})
	return slices.ContainsFunc(page.Jobs, func(run job.Summary) bool {
		stage := run.Labels["gitlab/stage"]
		return run.VM != nil && run.VM.Name == j.VM && run.Status == job.Failed && (strings.HasPrefix(stage, "step_") || stage == "build_script")
	}), err
}

// gitlabCleanup ends what runs in the job's VM, and destroys the VM unless it stays for a while.
func (a *app) gitlabCleanup(ctx context.Context, s *session, j *gitlab.Job, keepFor time.Duration, most int) error {
	info, err := s.VM(ctx, j.VM)
	if unknown, is := errors.AsType[*job.FieldError](err); is && unknown.Fault == job.FaultUnknown {
		return nil
	}
	if err != nil {
		return err
	}
	for _, id := range info.Jobs { // jobs that the runner has not ended
		if err := s.Cancel(ctx, id); err != nil && !errors.Is(err, job.ErrCompleted) {
			return err
		}
		if _, err := a.follow(ctx, s, id, following{quiet: true}); err != nil {
			return err
		}
	}
	if info.Unwanted {
		_, err := a.follow(ctx, s, info.Job, following{quiet: true, until: func(j job.Job) bool { return j.VM == nil || j.VM.State.Settled() }})
		return err
	}
	if keepFor > 0 {
		failed, err := gitlabFailed(ctx, s, j)
		if err != nil {
			return err
		}
		if ttl := int(keepFor / time.Second); failed {
			if _, err = s.SetVM(ctx, info.Name, job.VMChange{TTL: &ttl, KeptOf: "gitlab", KeptMost: most}); err == nil {
				a.note("the job has failed: VM %s stays for %s; linus vm ssh %[1]s logs in to it, linus vm destroy %[1]s ends it", info.Name, keepFor)
			}
			return err
		}
	}
	return a.destroyVM(ctx, s, info, []string{info.Name})
}

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/dispatch"
	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/secret"
)

// dispatchFlags are the options common to all dispatchers.
type dispatchFlags struct {
	manifestFlags

	name     string
	sessions int
	keep     int
	drain    time.Duration
	maps     []string
	mapFile  string
}

func (f *dispatchFlags) register(a *app, cmd *cobra.Command, sessions int, what string) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "this dispatcher's name, by which it finds its jobs again: two on one machine need two (default: the machine's)")
	flags.IntVar(&f.sessions, "sessions", sessions, what)
	flags.IntVar(&f.keep, "keep-at-most", job.DefaultKeep, "how many VMs --keep-on-failure and --keep-always may keep of this queue's work; the one that was not used for longest goes first")
	flags.DurationVar(&f.drain, "drain-timeout", time.Hour, "how long sessions may keep running after an interrupt, as in 30m; a second interrupt ends the wait")
	f.manifestFlags.register(a, cmd, field.Dispatch)
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("keep-at-most", cobra.NoFileCompletions)
}

// registerMap adds the options for shapes, for queues whose work has labels.
func (f *dispatchFlags) registerMap(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.maps, "map", nil, "LABEL=SHAPE: work with this label gets a VM with these job options beside the others, as in big=memory=16G,cpu=8; the first of several counts, and work without any is left alone; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("map", cobra.NoFileCompletions)
	cmd.Flags().StringVar(&f.mapFile, "map-file", "", "file with more of --map, one a line, after those of the command; # begins a comment")
}

func (f *dispatchFlags) allMaps() ([]string, error) {
	if f.mapFile == "" {
		return f.maps, nil
	}
	data, err := os.ReadFile(f.mapFile)
	if err == nil && len(data) > maxDispatchFile {
		err = fmt.Errorf("%s is larger than %d bytes", f.mapFile, maxDispatchFile)
	}
	if err != nil {
		return nil, usage("--map-file: %w", err)
	}
	all := slices.Clone(f.maps)
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			all = append(all, line)
		}
	}
	return all, nil
}

// shapes returns the manifests of --map. Each also has the command's own options.
func (f *dispatchFlags) shapes(cmd *cobra.Command, a *app) (all []dispatch.Shape, err error) {
	maps, err := f.allMaps()
	if err != nil {
		return nil, err
	}
	if f.mapFile != "" && len(maps) == 0 { // otherwise all work would get the command's own shape
		return nil, usage("--map-file: %s has no LABEL=SHAPE", f.mapFile)
	}
	for _, text := range maps {
		label, options, ok := strings.Cut(text, "=")
		if !ok || label == "" {
			return nil, usage("--map %q: give LABEL=SHAPE, as in big=memory=16G,cpu=8", text)
		}
		var own manifestFlags
		of := &cobra.Command{Use: cmd.Use}
		own.register(a, of, field.Dispatch)
		var args []string
		for option := range strings.SplitSeq(options, ",") {
			if options != "" {
				args = append(args, "--"+option)
			}
			if name, _, ok := strings.Cut(option, "="); options != "" && (!ok || of.Flags().Lookup(name) == nil) {
				return nil, usage("--map %q: %q is not a job option with a value, such as memory=16G; give several separated by commas, and a list's entries one by one", text, option)
			}
		}
		s := dispatch.Shape{Label: label}
		if err := of.ParseFlags(args); err != nil {
			return nil, usage("--map %q: %w", text, err)
		}
		for _, from := range []struct {
			flags *manifestFlags
			of    *cobra.Command
		}{{&f.manifestFlags, cmd}, {&own, of}} {
			s.Manifest.Volumes, s.Manifest.Credentials = slices.Clip(s.Manifest.Volumes), slices.Clip(s.Manifest.Credentials)
			if err := from.flags.override(from.of, &s.Manifest, nil); err != nil {
				return nil, usage("--map %q: %w", text, err)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// own is an engine in this process, which a dispatcher uses instead of attaching to one. hurry is
// closed when the dispatcher, once stopped, may no longer wait for its sessions.
type own struct {
	job.Engine

	config config.Config
	hurry  <-chan struct{}
	hooks  *hooks
	begun  bool // a dispatcher has been started
}

// Caller returns the operator.
func (own) Caller(context.Context) (job.Principal, error) { return job.Operator(), nil }

// run attaches to an engine and runs a dispatcher until it is interrupted. It calls queue before
// that, so that no engine is started for a queue that is refused. A nil queue refuses nothing.
func (f *dispatchFlags) run(cmd *cobra.Command, a *app, queue func(o dispatch.Options) error, serve func(ctx context.Context, o dispatch.Options) error) error {
	if f.sessions < 1 || f.sessions > 1000 {
		return usage("--sessions %d: give 1 to 1000", f.sessions)
	}
	if f.keep < 1 || f.keep > job.MaxKeep {
		return usage("--keep-at-most %d: give 1 to %d", f.keep, job.MaxKeep)
	}
	o := dispatch.Options{Name: f.name, Sessions: f.sessions, Keep: f.keep, Drain: f.drain}
	err := f.override(cmd, &o.Manifest, nil)
	if err == nil {
		o.Shapes, err = f.shapes(cmd, a)
	}
	if err != nil {
		return err
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return usage("this machine has no name (%w): give --name", err)
		}
		o.Name = host
	}
	ctx := cmd.Context()
	if a.own != nil {
		o.Engine, o.Hurry, o.Log = a.own, a.own.hurry, logger(a.stderr, a.own.config).With("dispatcher", o.Name)
	} else {
		c, err := a.settings(ctx)
		if err != nil {
			return err
		}
		o.Log = logger(a.stderr, c)
	}
	if queue != nil {
		if err := queue(o); err != nil {
			return usage("%w", err)
		}
	}
	if a.own != nil {
		a.own.begun = true
		return serve(ctx, o)
	}
	s, err := a.attach(ctx, true)
	if err != nil {
		return err
	}
	defer s.Close()
	a.warnEgress(o.Manifest.Network)
	o.Engine = s
	hurry, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	o.Hurry = hurry.Done()
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	go func() { // the first one also ends cmd's context
		for range 2 {
			select {
			case <-interrupts:
			case <-hurry.Done():
				return
			}
		}
		giveUp()
	}()
	return serve(ctx, o)
}

func (a *app) dispatchClaudeCommand() *cobra.Command {
	var f dispatchFlags
	var c dispatch.Claude
	var keyFile, worker string
	cmd := &cobra.Command{
		Use:   "claude --environment ID --key-file FILE",
		Short: "Serve a self-hosted environment of Claude Managed Agents, one VM a session",
		Long: "Claims the work of a self-hosted environment, and serves each session by a job in a VM of its own, until it is interrupted.\n" +
			"The environment's key stays with this command: a VM gets its own session's secret, into its memory. The options for VMs are\n" +
			"those of linus job submit; a VM has to reach the API (--egress internet, or --allow api.anthropic.com).\n\n" +
			"After an interrupt it claims nothing more and waits for its sessions; after a second one it lists those that keep running in their\n" +
			"VMs without it. The next dispatcher of the same name takes them up. Several share a queue: each claims its own.",
		Example: "  linus dispatch claude --environment env_01 --key-file env.key --sessions 8 --allow api.anthropic.com\n" +
			"  linus dispatch claude --environment env_01 --key-file env.key --memory 8G --egress internet --label team=web",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Environment == "" || strings.ContainsAny(c.Environment, "/?# \n") {
				return usage("--environment %q is not an environment's ID; give the one that the console shows, as in env_01...", c.Environment)
			}
			if u, err := url.Parse(c.API); c.API != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
				return usage("--api %q is not the URL of an API; give one such as https://api.anthropic.com, or leave it out", c.API)
			}
			if c.Key, err = a.secretLine(cmd.Context(), "--key-file", keyFile); err != nil {
				return err
			}
			if c.Worker, err = workerProgram(worker); err != nil {
				return err
			}
			return f.run(cmd, a, nil, func(ctx context.Context, o dispatch.Options) error {
				a.note("serving environment %s as %s: at most %d sessions at once", c.Environment, o.Name, o.Sessions)
				return dispatch.ServeClaude(ctx, o, c)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Environment, "environment", "", "the environment's ID (required)")
	flags.StringVar(&keyFile, "key-file", "", "file with the environment's key alone, that only you can read; - is stdin (required)")
	flags.StringVar(&c.API, "api", "", "URL of the API (default: Anthropic's)")
	flags.DurationVar(&c.MaxIdle, "max-idle", 0, "how long a session's VM waits for more when the agent's turn has ended, as in 5m (default 1m)")
	flags.StringVar(&worker, "worker", "", "the program that serves a session in its VM (default: the linus-worker beside this program)")
	f.register(a, cmd, 4, "sessions at the same time, each in a VM")
	_ = cmd.MarkFlagFilename("key-file")
	_ = cmd.MarkFlagFilename("worker")
	for _, name := range []string{"environment", "api"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// secretLine returns the only line of a file that only its owner can read, or of stdin.
func (a *app) secretLine(ctx context.Context, option, path string) (string, error) {
	var data []byte
	var err error
	switch path {
	case "":
		return "", usage("%s is missing: give a file with the key alone, or - for stdin", option)
	case "-":
		path = "stdin"
		data, err = secret.UnlessEnded(ctx, path, func() ([]byte, error) { return io.ReadAll(io.LimitReader(a.stdin, maxCredential+1)) })
	default:
		data, err = secret.ReadGiven(ctx, path)
	}
	line := strings.TrimSpace(string(data))
	switch {
	case ctx.Err() != nil && err != nil:
		return "", err
	case err != nil:
	case len(data) > maxCredential:
		err = fmt.Errorf("%s is longer than %d bytes: give the key alone", path, maxCredential)
	case line == "":
		err = fmt.Errorf("%s is empty: give the key alone", path)
	case strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = fmt.Errorf("%s does not contain a key alone: it has blanks, several lines or characters that are not ASCII", path)
	}
	if err != nil {
		return "", usage("%s: %w", option, err)
	}
	return line, nil
}

const workerName = "linus-worker"

// workerProgram returns the program, compressed once, so that each VM is sent a third of its size.
// Without a path it is beside this program, or where packages have it.
func workerProgram(path string) ([]byte, error) {
	if path == "" {
		at, self, err := daemon.Beside(workerName)
		if err != nil {
			return nil, err
		}
		if at == "" {
			return nil, usage("%s, which serves sessions in their VMs, is missing: it comes with linus, next to %s; or name it with --worker", workerName, self)
		}
		path = at
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a FIFO blocks until somebody writes
		return nil, usage("--worker: %s is not a regular file", path)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("--worker: %w", err)
	}
	if len(program) < 20 || string(program[:5]) != "\x7fELF\x02" || program[18] != 62 { // EM_X86_64
		return nil, usage("--worker: %s is not a program for linux/amd64, which VMs run; give a %s", path, workerName)
	}
	var b bytes.Buffer
	to, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err == nil {
		_, err = to.Write(program)
		err = errors.Join(err, to.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("compress %s: %w", path, err)
	}
	return b.Bytes(), nil
}

func (a *app) dispatchClaudeCodeCommand() *cobra.Command {
	var f dispatchFlags
	var c dispatch.ClaudeCode
	var secretFile string
	cmd := &cobra.Command{
		Use:   "claude-code --secret-file FILE [-- ARG...]",
		Short: "Keep VMs with runners of Claude Code, replaced after each session",
		Long: "Keeps --sessions VMs, in each of which claude self-hosted-runner waits for one session of a self-hosted environment of Claude\n" +
			"Code. After the session, or after --replace-after, the VM is destroyed and another one takes its place. The template needs\n" +
			"the Claude CLI. The runner polls by itself: the environment's secret is in the VM's memory, where a session can find it.\n" +
			"What follows -- is passed to the runner.\n\n" +
			"After an interrupt no VM is replaced any more, and it waits for the runners; after a second one it lists those that keep running\n" +
			"without it: the next dispatcher of the same name takes them up, and linus job cancel ends one.",
		Example: "  linus dispatch claude-code --secret-file env.secret --sessions 3 --egress internet\n" +
			"  linus dispatch claude-code --secret-file env.secret --replace-after 4h -- --use-anthropic-git-proxy",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage("%s takes no arguments of its own; those of the runner come after --", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if c.Replace < 10*time.Minute || c.Replace > dispatch.MaxReplace {
				return usage("--replace-after %s: give 10m to %s", c.Replace, dispatch.MaxReplace)
			}
			if c.Secret, err = a.secretLine(cmd.Context(), "--secret-file", secretFile); err != nil {
				return err
			}
			c.Args = args
			return f.run(cmd, a, nil, func(ctx context.Context, o dispatch.Options) error {
				a.note("keeping %d VMs with runners of Claude Code as %s", o.Sessions, o.Name)
				return dispatch.KeepClaudeCode(ctx, o, c)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&secretFile, "secret-file", "", "file with the environment's secret alone, that only you can read; - is stdin (required)")
	flags.DurationVar(&c.Replace, "replace-after", 8*time.Hour, "how long a runner takes sessions before its VM is replaced, 10m to 23h")
	f.register(a, cmd, 2, "VMs to keep, each for one session")
	_ = cmd.MarkFlagFilename("secret-file")
	return cmd
}

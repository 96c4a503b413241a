// Command linus runs each job in its own Proxmox VE virtual machine, for an MCP client (linus mcp)
// or on the command line. Both are clients of one engine per state directory, which is the same
// program (linus serve).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/lategc"
	"linus/internal/term"
)

// version is set by the linker: -X main.version=...
var version = ""

func main() { os.Exit(process(daemon.Proxmox)) }

// process calls run with this process's arguments, streams and signals.
func process(backend daemon.NewBackend) int {
	stdout := os.Stdout
	os.Stdout = os.Stderr     // stray prints must not get into a protocol
	log.SetOutput(io.Discard) // net/http would log what a VM sends out of turn
	time.AfterFunc(time.Second, lategc.End)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	return run(ctx, backend, os.Args[1:], os.Stdin, stdout, os.Stderr)
}

// app is the state that all verbs share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	backend        daemon.NewBackend
	json           bool           // -o json
	raw            bool           // --raw
	unasked        int            // rows of a list that its options exclude
	sources        config.Sources // settings given as flags
	service        string         // home directory of the packaged service
	own            *own           // the engine that runs in this process, for its dispatchers; nil: there is none
}

// run is the whole program, without the process around it. It returns the exit code.
func run(ctx context.Context, backend daemon.NewBackend, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, backend: backend, service: "/var/lib/linus-engine"}
	root := a.root(args) //nolint:contextcheck // the verbs use their command's context
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && strings.HasPrefix(err.Error(), "required flag(s) ") { // cobra has no type for it
		err = usage("%s needs %s; see %[1]s --help", cmd.CommandPath(), strings.Join(missing(cmd), " and "))
	}
	if code, ok := errors.AsType[exitError](err); ok {
		return int(code)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s %s\n", a.colours(stderr).paint("linus:"), strings.ReplaceAll(asTyped(cmd, words.In(term.Text(err.Error()))), "\n", "\n  "))
		if next := nextStep(err); next != "" {
			_, _ = fmt.Fprintln(stderr, next)
		}
	}
	return exitCode(err)
}

// verbs returns linus's commands. MCP clients start linus mcp each time, and linus mcp starts
// linus serve, so these two do not wait until the options of eighty others are built.
func (a *app) verbs(args []string) []*cobra.Command {
	often := []*cobra.Command{a.mcpCommand(), a.serveCommand()}
	if len(args) > 0 && (args[0] == often[0].Name() || args[0] == often[1].Name()) {
		return often
	}
	return append(often,
		a.runCommand(),
		group("job", "Submit and follow jobs",
			a.submitCommand(), a.execCommand(), a.attachCommand(), a.inputCommand(), a.statusCommand(), a.waitCommand(),
			a.logsCommand(), a.resultCommand(), a.artifactsCommand(), a.diffCommand(), a.junitCommand(), a.listCommand(), a.killCommand(), a.cancelCommand(),
			a.cleanupCommand()),
		group("vm", "Create and manage persistent VMs for jobs and people",
			a.vmCreateCommand(), a.vmListCommand(), a.vmShowCommand(), a.vmSSHCommand(), a.vmSSHConfigCommand(), a.vmOpenCommand(), a.vmProxyCommand(), a.vmCopyCommand(), a.vmListFilesCommand(), a.vmCatCommand(), a.vmForwardCommand(),
			a.vmExposeCommand(), a.vmPortsCommand(), a.vmUnexposeCommand(),
			a.vmVerb("start NAME|ID", "Start a stopped VM", "runs", (*session).StartVM),
			a.vmVerb("stop NAME|ID", "Shut down a VM; no job may be running in it", "is stopped", (*session).StopVM),
			a.vmVerb("suspend NAME|ID", "Write a VM's memory to its disk and turn it off; no job may be running in it", "is suspended", (*session).SuspendVM),
			a.vmVerb("resume NAME|ID", "Continue a suspended VM where it was", "runs", (*session).ResumeVM),
			a.vmSetCommand(), a.vmForkCommand(), a.vmSnapshotCommand(), a.vmSnapshotsCommand(), a.vmSaveCommand(), a.vmRevertCommand(), a.vmRemoveSnapshotCommand(),
			a.vmDestroyCommand(), a.vmForgetCommand()),
		group("pool", "Keep VMs ready, so that jobs start at once",
			a.poolCreateCommand(), a.poolListCommand(), a.poolShowCommand(), a.poolResizeCommand(), a.poolDrainCommand(), a.poolRemoveCommand()),
		a.volumeCommand(),
		group("dispatch", "Serve external queues, one VM for each piece of work",
			a.dispatchClaudeCommand(), a.dispatchClaudeCodeCommand(), a.dispatchGitHubCommand(), a.dispatchForgejoCommand(), a.dispatchGiteaCommand(), a.dispatchCursorCommand(),
			a.dispatchListCommand(), a.dispatchStatusCommand(), a.dispatchDrainCommand(), a.dispatchUndrainCommand()),
		a.gitlabCommand(),
		group("network", "Show and test where a VM may connect to", a.networkShowCommand(), a.networkTestCommand()),
		group("node", "List and cordon the nodes that VMs are created on",
			a.nodeListCommand(), a.cordonCommand("cordon", "Keep new VMs off a node; existing ones stay", job.Engine.CordonNode),
			a.cordonCommand("uncordon", "Allow new VMs on a node again", job.Engine.UncordonNode)),
		group("engine", "List the engines that share the database", a.engineListCommand()),
		group("token", "Create, list and revoke tokens for other users of this engine",
			a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand()),
		group("credential", "Add, list and remove credentials that VMs use but never have",
			a.credentialAddCommand(), a.credentialListCommand(), a.credentialRemoveCommand()),
		group("host", "Check, test and trust the Proxmox host, and remove linus from it", a.checkCommand(), a.hostTestCommand(), a.trustCommand(), a.uninstallCommand()),
		group("template", "Build the template that jobs' VMs are cloned from",
			a.templateBuildCommand(), a.templateListCommand(), a.templateShowCommand(), a.templateRemoveCommand(), a.checkpointCommand()),
		group("e2b", "Use sandboxes from programs made for E2B", a.e2bEnvCommand()),
		a.scriptsCommand(),
		group("store", "Move this engine's jobs to PostgreSQL", a.storeMigrateCommand()),
		group("schedule", "Submit jobs at given times", a.scheduleCommands()...),
		a.usageCommand(), a.configCommand(), a.manCommand(), a.versionCommand(),
	)
}

func (a *app) root(args []string) *cobra.Command {
	var output string
	verbs := a.verbs(args)
	root := group("linus", "Run jobs in ephemeral Proxmox VE virtual machines", verbs...)
	root.Long = exitHelp()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			return usage("--%s %q: %s; see %s --help", wrong.GetFlag().Name, wrong.GetValue(), wanted(wrong), cmd.CommandPath())
		}
		return usage("%w; see %s --help", err, cmd.CommandPath())
	})
	withDays(root)
	a.settingFlags(root)
	if len(verbs) > 2 {
		root.SetHelpCommand(a.helpCommand())
	}
	root.PersistentFlags().StringVarP(&output, "output", "o", "text", "text or json")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		a.json = output == "json"
		if !a.json && output != "text" {
			return usage("-o %q is unknown; use text or json", output)
		}
		return nil
	}
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return root
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use: use, Short: short,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usage("unknown command %q for %s; %ssee %s --help", args[0], cmd.CommandPath(), meant(cmd, args[0]), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	g.AddCommand(commands...)
	return g
}

// elsewhere maps words to commands that have other names here.
var elsewhere = map[string]string{
	"docs": "help", "doc": "help", "login": "vm ssh", "shell": "vm ssh", "ps": "job list", "scp": "vm cp", "doctor": "host check",
}

// alike are groups of words with the same meaning, of which a command has one as its name.
var alike = [][]string{
	{"list", "ls", "ps"},
	{"destroy", "remove", "delete", "revoke", "cancel", "rm", "del"},
	{"show", "status", "get", "info", "describe", "inspect"},
	{"create", "add", "new", "make"},
}

// meant suggests the command that a word may stand for: one of this group with the same meaning,
// one of another group, or one of this group with a similar spelling.
func meant(group *cobra.Command, word string) string {
	if group.HasParent() {
		for _, words := range alike {
			for _, name := range words {
				same := func(sub *cobra.Command) bool { return sub.Name() == name && !sub.Hidden }
				if slices.Contains(words, word) && slices.ContainsFunc(group.Commands(), same) {
					return "did you mean " + group.CommandPath() + " " + name + "? "
				}
			}
		}
	}
	var paths []string
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == word && !sub.Hidden {
				paths = append(paths, sub.CommandPath())
			}
			visit(sub)
		}
	}
	visit(group.Root())
	near := group.SuggestionsFor(word)
	switch path, ok := elsewhere[word]; {
	case ok && !group.HasParent():
		paths = []string{group.Name() + " " + path}
	case len(paths) == 0 && len(near) > 0:
		paths = []string{group.CommandPath() + " " + near[0]}
	case len(paths) == 0 || len(paths) > 4: // too many commands have this name
		return ""
	}
	return "did you mean " + strings.Join(paths, " or ") + "? "
}

// exitError ends the program with a code and prints nothing more.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is an error in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// noArgs and oneArg are cobra's argument checks, but return usage errors.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usage("%s takes no arguments", cmd.CommandPath())
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage("%s takes one argument: %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// theseArgs requires one argument for each thing named.
func theseArgs(what ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(what) {
			return usage("%s takes %d arguments: %s", cmd.CommandPath(), len(what), strings.Join(what, ", "))
		}
		return nil
	}
}

func exitCode(err error) int {
	var (
		wrong    *usageError
		settings *config.Error
		invalid  *job.InvalidError
		field    *job.FieldError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrong), errors.As(err, &settings), errors.As(err, &invalid), errors.As(err, &field):
		return exitUsage
	default:
		return exitFailure
	}
}

// nextStep returns what to do about errors whose own text does not say it.
func nextStep(err error) string {
	var notComplete *job.NotCompleteError
	switch {
	case errors.Is(err, job.ErrNotFound):
		return "linus job list shows the jobs there are"
	case errors.Is(err, job.ErrCompleted):
		return "linus job result ID shows its result"
	case errors.As(err, &notComplete):
		return "linus job status ID --wait waits for its end"
	case errors.Is(err, control.ErrLost):
		return "linus job list shows what was recorded; engine.log in the state directory may say why"
	case errors.Is(err, control.ErrStopped):
		return "the job keeps running in its VM; the next linus command follows it again"
	}
	return ""
}

// buildVersion returns the linker's version or, without one, the module's.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

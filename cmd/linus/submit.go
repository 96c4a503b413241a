package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/secret"
)

type submitFlags struct {
	manifestFlags

	file string
	wait bool
	key  string
}

func (a *app) submitCommand() *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [-f MANIFEST | -- COMMAND [ARG...]]",
		Short: "Run a job in a VM of its own, or in an existing one",
		Long: "Submits the manifest in a file (- is stdin), or the command after --, and prints the job's ID; with --wait it follows\n" +
			"the job, shows each phase as it happens and then the result, and exits with the task's exit code (124: the task timed\n" +
			"out; 125: the job ended without an exit code; 130: Ctrl-C, the job keeps running).\n\n" +
			"The command gets exactly these arguments; for pipes and variables run a shell: -- sh -c 'env | sort'.\n" +
			"With --agent-type custom or an agent, or --agent-command, what follows -- is no command but the prompt or the input, and ends\n" +
			"with a newline.\n" +
			"To talk to a command while it runs, see linus job exec.",
		Example: "  linus job submit --wait -- uname -a\n" +
			"  linus job submit --memory 4G --file ./build.sh:/root/build.sh --artifact 'dist/**' --wait -- /root/build.sh\n" +
			"  linus job submit --vm dev --cwd /srv/app -- make test\n" +
			"  linus job submit --agent-type claude --wait -- 'What is in /etc/os-release?'\n" +
			"  linus job submit -f manifest.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.manifest(cmd, args, a)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			s, err := a.attach(ctx, true)
			if err != nil {
				return err
			}
			defer s.Close()
			j, err := s.Submit(ctx, job.Submission{Manifest: m, IdempotencyKey: f.key, Client: "cli"})
			if err != nil {
				return err
			}
			a.warnEgress(j.Manifest.Network)
			if f.wait {
				a.note("job %s", j.ID)
				return a.waitFor(ctx, s, j.ID)
			}
			if !a.json {
				defer a.note("follow: linus job status %s --wait", j.ID)
			}
			return a.print(j, j.ID)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "manifest", "f", "", "manifest, JSON; - is stdin")
	flags.BoolVar(&f.wait, "wait", false, "follow the job to its end and show its result")
	flags.StringVar(&f.key, "idempotency-key", "", "idempotency key: submitting again with the same key returns the first job; with another manifest it is an error")
	_ = cmd.MarkFlagFilename("manifest", "json")
	f.register(a, cmd, field.Submit)
	a.rawFlag(cmd)
	return cmd
}

// manifest returns the manifest that the command line asks for, validated.
func (f *submitFlags) manifest(cmd *cobra.Command, args []string, a *app) (m job.Manifest, err error) {
	if len(args) > 0 && f.file == "" {
		if _, err := commandManifest(cmd, args); err != nil {
			return m, err
		}
	}
	return f.manifestOf(cmd, args, a)
}

// manifestOf is manifest for a command that is known to come after --.
func (f *submitFlags) manifestOf(cmd *cobra.Command, args []string, a *app) (m job.Manifest, err error) {
	switch {
	case f.file != "" && len(args) > 0:
		return m, usage("give a manifest (-f) or a command (after --), not both")
	case f.file != "":
		data, err := secret.UnlessEnded(cmd.Context(), "the manifest", func() ([]byte, error) { return readManifest(f.file, a.stdin) })
		if err != nil {
			return m, err
		}
		if m, err = job.DecodeManifest(data); err != nil {
			return m, err
		}
	case len(args) == 0:
		return m, usage("nothing to run; give a command after --, or a manifest with -f")
	default:
		m = manifestFor(args)
	}
	if err := f.override(cmd, &m, a.stdout); err != nil {
		return m, err
	}
	if len(args) > 0 && (m.AgentType != job.AgentScript || m.Agent.Command != "") {
		m.Task = strings.Join(args, " ") + "\n"
	}
	return m, m.Validate()
}

// commandManifest returns the manifest of a job that runs the command after --.
func commandManifest(cmd *cobra.Command, args []string) (job.Manifest, error) {
	if len(args) == 0 {
		return job.Manifest{}, usage("nothing to run; give a command after --")
	}
	if cmd.ArgsLenAtDash() != 0 {
		return job.Manifest{}, usage("put the command after --, as in: %s -- %s", cmd.CommandPath(), strings.Join(args, " "))
	}
	return manifestFor(args), nil
}

func manifestFor(args []string) job.Manifest {
	// exec runs exactly this argv, even if it looks like shell keywords.
	return job.Manifest{AgentType: job.AgentScript, Task: "exec -- " + shellescape.QuoteCommand(args) + "\n"}
}

func readManifest(name string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usage("read the manifest: %w", err)
		}
		defer file.Close() //nolint:errcheck // opened for reading
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, job.MaxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the manifest: %w", err)
	case len(data) > job.MaxManifest:
		return nil, usage("the manifest is larger than %d bytes; fetch large inputs from inside the job", job.MaxManifest)
	}
	return data, nil
}

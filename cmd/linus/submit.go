package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/remote"
)

// maxManifest bounds a manifest file: 64 MiB of files in base64, and a task.
const maxManifest = 96 << 20

// submitFlags are submit's options; those given override the manifest's fields.
type submitFlags struct {
	file           string
	wait, keep     bool
	key            string
	cpu, timeout   int
	memory, disk   string
	template, mode string
	env, files     []string
}

func (a *app) submitCommand() *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit [-f MANIFEST | -- COMMAND [ARG...]]",
		Short: "Run a job in a VM of its own",
		Long: "Submits the manifest in a file (- is stdin), or the command after --, and answers the job's id; with --wait it follows\n" +
			"the job, shows each phase as it happens and then the result, and exits with the task's exit code (124: the task ran\n" +
			"out of time; 125: the job ended without an exit code; 130: Ctrl-C, the job goes on).\n\n" +
			"The command gets exactly these arguments; for pipes and variables give a shell: -- sh -c 'env | sort'.",
		Example: "  linus job submit --wait -- uname -a\n  linus job submit --memory 4G --file ./build.sh:/root/build.sh --wait -- /root/build.sh\n  linus job submit -f manifest.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.manifest(cmd, args, a.stdin)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			s, err := a.attach(ctx, true)
			if err != nil {
				return err
			}
			defer s.close()
			j, err := s.Submit(ctx, job.Submission{Manifest: m, IdempotencyKey: f.key, Client: "cli"})
			if err != nil {
				return err
			}
			if f.wait {
				a.note("job %s", j.ID)
				return a.waitFor(ctx, s, j.ID)
			}
			if !a.json {
				defer a.note("follow: linus job status %s --wait", j.ID)
			}
			return a.print(map[string]any{"job_id": j.ID, "status": j.Status}, j.ID)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "manifest", "f", "", "manifest, JSON; - is stdin")
	flags.BoolVar(&f.wait, "wait", false, "follow the job to its end and show its result")
	flags.BoolVar(&f.keep, "keep", false, "keep the VM after the job (lifecycle persistent)")
	flags.StringVar(&f.key, "idempotency-key", "", "a repeated submit with the same key answers the first job")
	flags.IntVar(&f.cpu, "cpu", 0, "cores, 1 to 32")
	flags.StringVar(&f.memory, "memory", "", "memory, as in 2G")
	flags.StringVar(&f.disk, "disk", "", "disk, as in 20G")
	flags.IntVar(&f.timeout, "timeout", 0, "seconds the task may run")
	flags.StringVar(&f.template, "template", "", "name or VM ID of the template to clone")
	flags.StringVar(&f.mode, "status-mode", "", "simple, detailed or streaming")
	flags.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for the task; may be repeated")
	flags.StringArrayVar(&f.files, "file", nil, "LOCAL:REMOTE[:MODE], a file to put into the VM; may be repeated")
	return cmd
}

// manifest is the job the command line asks for, validated.
func (f *submitFlags) manifest(cmd *cobra.Command, args []string, stdin io.Reader) (job.Manifest, error) {
	var m job.Manifest
	switch {
	case f.file != "" && len(args) > 0:
		return m, usage("give a manifest (-f) or a command (after --), not both")
	case f.file != "":
		data, err := readManifest(f.file, stdin)
		if err != nil {
			return m, err
		}
		if m, err = job.DecodeManifest(data); err != nil {
			return m, err
		}
	case len(args) > 0 && cmd.ArgsLenAtDash() != 0:
		return m, usage("put the command after --, as in: linus job submit -- %s", strings.Join(args, " "))
	case len(args) > 0:
		// exec: exactly this argv, whatever words of the shell it looks like.
		m = job.Manifest{AgentType: job.AgentScript, Task: "exec -- " + remote.Quote(args...) + "\n"}
	default:
		return m, usage("nothing to run; give a command after --, or a manifest with -f")
	}
	if err := f.override(cmd, &m); err != nil {
		return m, err
	}
	return m, m.Validate()
}

func readManifest(name string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usage("read the manifest: %w", err)
		}
		defer file.Close() //nolint:errcheck // only read
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the manifest: %w", err)
	case len(data) > maxManifest:
		return nil, usage("the manifest is larger than %d bytes; fetch large inputs from inside the job", maxManifest)
	}
	return data, nil
}

// override puts the flags that were given into the manifest.
func (f *submitFlags) override(cmd *cobra.Command, m *job.Manifest) error {
	for _, option := range []struct {
		name string
		set  func()
	}{
		{"cpu", func() { m.Resources.CPU = f.cpu }},
		{"memory", func() { m.Resources.Memory = f.memory }},
		{"disk", func() { m.Resources.Disk = f.disk }},
		{"timeout", func() { m.Timeout = f.timeout }},
		{"template", func() { m.VMTemplate = f.template }},
		{"status-mode", func() { m.StatusMode = job.StatusMode(f.mode) }},
	} {
		flag := cmd.Flags().Lookup(option.name)
		if !flag.Changed {
			continue
		}
		if value := flag.Value.String(); value == "" || value == "0" {
			return usage("--%s: give a value, or leave it out for the default", option.name)
		}
		option.set()
	}
	if f.keep {
		m.Lifecycle = job.Persistent
	}
	for _, entry := range f.env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			return usage("--env %q has no value; give NAME=VALUE", entry)
		}
		if m.Env == nil {
			m.Env = map[string]string{}
		}
		m.Env[name] = value
	}
	for _, entry := range f.files {
		file, err := localFile(entry)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, file)
	}
	return nil
}

var fileArg = regexp.MustCompile(`^(.+?):(/[^:]*)(?::(0?[0-7]{3,4}))?$`)

// localFile reads LOCAL:REMOTE[:MODE]; without MODE the file keeps its own.
func localFile(arg string) (job.File, error) {
	part := fileArg.FindStringSubmatch(arg)
	if part == nil {
		return job.File{}, usage("--file %q: give LOCAL:REMOTE[:MODE] with REMOTE an absolute path, as in ./in.csv:/root/in.csv", arg)
	}
	file := job.File{Path: part[2], Mode: part[3]}
	info, err := os.Stat(part[1])
	if err != nil {
		return file, usage("--file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > job.MaxFiles {
		return file, usage("--file %s: is not a regular file of at most %d bytes", part[1], job.MaxFiles)
	}
	if file.Mode == "" {
		file.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
	}
	data, err := os.ReadFile(part[1])
	if err != nil {
		return file, usage("--file: %w", err)
	}
	file.Content = base64.StdEncoding.EncodeToString(data)
	return file, nil
}

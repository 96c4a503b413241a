package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// taskFlags are the options of a job's task. They override the manifest's fields.
type taskFlags struct {
	vm, cwd, mode             string
	timeout                   int
	sudo, tty                 bool
	env, secrets, files, kept []string
}

func (f *taskFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SetInterspersed(false) // options after a command are the command's: it belongs after --
	flags.StringVar(&f.vm, "vm", "", "name or VM ID of an existing VM to run in, instead of a new one")
	flags.StringArrayVar(&f.env, "env", nil, "environment variable NAME=VALUE for the task; may be repeated")
	flags.StringArrayVar(&f.secrets, "secret", nil, "name of a configured secret, passed to the task as an environment variable; may be repeated")
	flags.StringArrayVar(&f.files, "file", nil, "LOCAL:REMOTE[:MODE], a file to copy into the VM; may be repeated")
	flags.BoolVar(&f.sudo, "sudo", false, "run as root")
	flags.BoolVar(&f.tty, "tty", false, "run on a terminal the size of this one")
	flags.Var((*secondsFlag)(&f.timeout), "timeout", "the task's time limit: seconds, or as in 90m or 1h30m")
	flags.StringVar(&f.mode, "status-mode", "", "simple, detailed or streaming")
}

// secondsFlag is a time in whole seconds: a number of them, or a duration such as 1h30m.
type secondsFlag int

func (s *secondsFlag) String() string { return strconv.Itoa(int(*s)) }

// Type is the placeholder for the value in help.
func (s *secondsFlag) Type() string { return "duration" }

// Set is called each time the flag is given.
func (s *secondsFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		d, wrong := time.ParseDuration(text)
		if wrong != nil || d%time.Second != 0 {
			return errors.New("give a number of seconds, or a duration such as 90m or 1h30m")
		}
		n = int(d / time.Second)
	}
	*s = secondsFlag(n)
	return nil
}

// registerPlace adds the options of a task that runs in a directory of its choice.
func (f *taskFlags) registerPlace(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cwd, "cwd", "", "absolute directory to run in (default: the VM user's home)")
	cmd.Flags().StringArrayVar(&f.kept, "artifact", nil, "path or pattern such as 'dist/**' of files to collect at the end; may be repeated")
}

// override writes the given options into the manifest.
func (f *taskFlags) override(cmd *cobra.Command, m *job.Manifest, terminal any) error {
	err := override(cmd, map[string]func(){
		"vm":          func() { m.VM = f.vm },
		"cwd":         func() { m.Cwd = f.cwd },
		"timeout":     func() { m.Timeout = f.timeout },
		"status-mode": func() { m.StatusMode = job.StatusMode(f.mode) },
	})
	if err != nil {
		return err
	}
	m.Sudo = m.Sudo || f.sudo
	if f.tty {
		m.TTY, m.TTYSize = true, terminalSize(terminal)
	}
	m.Secrets = append(m.Secrets, f.secrets...)
	m.Artifacts = append(m.Artifacts, f.kept...)
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

// terminalSize returns a terminal's size in the manifest's form; "" for no terminal.
func terminalSize(stream any) string {
	if file, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 && rows > 0 {
			return fmt.Sprintf("%dx%d", rows, columns)
		}
	}
	return ""
}

// vmFlags are the options of a new VM.
type vmFlags struct {
	cpu              int
	memory, disk     string
	template, system string
	name             string
	keep             bool
	start            string
	ttl              time.Duration
	network          job.Network
	egress           string
}

// register adds the options of every new VM, registerKeeping those that make a
// job's VM persistent, and whether it may be a pool's.
func (f *vmFlags) register(cmd *cobra.Command) {
	f.registerMachine(cmd)
	cmd.Flags().DurationVar(&f.ttl, "ttl", 0, "destroy the VM after this time, as in 8h, once no job runs in it")
}

// registerMachine adds the options that say what a VM is.
func (f *vmFlags) registerMachine(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.cpu, "cpu", 0, "cores, 1 to 32")
	flags.StringVar(&f.memory, "memory", "", "memory, as in 2G")
	flags.StringVar(&f.disk, "disk", "", "disk, as in 20G")
	flags.StringVar(&f.template, "template", "", "name or VM ID of the template to clone")
	flags.StringVar(&f.system, "os", "", "create the VM from a cloud image instead: "+strings.Join(job.Systems, ", "))
	flags.StringVar(&f.network.Bridge, "bridge", "", "bridge on the host, as in vmbr0")
	flags.IntVar(&f.network.VLAN, "vlan", 0, "VLAN tag, 1 to 4094")
	flags.StringVar(&f.network.IP, "ip", "", "dhcp, auto6 or dhcp6, or an address with its prefix length, as in 10.0.0.50/24, or a pool of them, as in 10.0.0.50-10.0.0.99/24")
	flags.StringVar(&f.network.Gateway, "gateway", "", "gateway to use with --ip")
	flags.StringVar(&f.egress, "egress", "", "where the VM may connect to: lan, internet, allow (names only) or none")
	flags.StringSliceVar(&f.network.Allow, "allow", nil, "names the VM may reach, as in github.com,*.npmjs.org; implies --egress allow")
}

func (f *vmFlags) registerKeeping(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.keep, "keep", false, "keep the VM after the job (lifecycle persistent); implied by --name and --ttl")
	cmd.Flags().StringVar(&f.name, "name", "", "name of the VM, which is then persistent")
	cmd.Flags().StringVar(&f.start, "start", "", "any (default): in a VM of a pool, if one like this is ready; cold: always in a new one")
}

func (f *vmFlags) override(cmd *cobra.Command, m *job.Manifest) error {
	err := override(cmd, map[string]func(){
		"cpu":      func() { m.Resources.CPU = f.cpu },
		"memory":   func() { m.Resources.Memory = f.memory },
		"disk":     func() { m.Resources.Disk = f.disk },
		"template": func() { m.VMTemplate = f.template },
		"os":       func() { m.OS = f.system },
		"name":     func() { m.VMName = f.name },
		"start":    func() { m.Start = job.StartMode(f.start) },
		"ttl":      func() { m.TTL = int(f.ttl / time.Second) },
		"bridge":   func() { m.Network.Bridge = f.network.Bridge },
		"vlan":     func() { m.Network.VLAN = f.network.VLAN },
		"ip":       func() { m.Network.IP = f.network.IP },
		"gateway":  func() { m.Network.Gateway = f.network.Gateway },
		"egress":   func() { m.Network.Egress = job.Egress(f.egress) },
		"allow":    func() { m.Network.Allow = f.network.Allow },
	})
	if f.keep || f.name != "" || f.ttl != 0 {
		m.Lifecycle = job.Persistent
	}
	return err
}

// override calls set for each given option. An empty value is an error: omitting
// the option means the default.
func override(cmd *cobra.Command, set map[string]func()) error {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || !flag.Changed {
			continue
		}
		if slices.Contains([]string{"", "0", "0s"}, flag.Value.String()) {
			return usage("--%s: give a value, or omit it for the default", name)
		}
		set[name]()
	}
	return nil
}

var fileArg = lazyregexp.New(`^(.+?):(/[^:]*)(?::(0?[0-7]{3,4}))?$`)

// localFile parses LOCAL:REMOTE[:MODE] and reads the file; without MODE it keeps its own.
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

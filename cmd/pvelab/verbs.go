package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"al.essio.dev/pkg/shellescape"
	flag "github.com/spf13/pflag"

	"linus/internal/lab"
	"linus/internal/lab/process"
)

const usage = `pvelab: a stand-in Proxmox VE host

  pvelab up [--driver process|qemu] [--version 9.2|8.2] [--storage local-lvm|local]
            [--image plain] [--direct] [--block-callbacks] [--slow-ms N]
            [--systemd simulated|real]   real: the host is a container (root, systemd-nspawn)
            [--nodes N] [--node-memory 32G,16G,...] [--node-cpus 8,4,...]   a cluster (process driver)
  pvelab down           stop everything and remove the lab
  pvelab reboot         reset the host: sessions, units and VMs are gone, files stay
  pvelab status         what runs (--json)
  pvelab env            the settings to use it: eval "$(pvelab env)"
  pvelab node list | down NODE | up NODE     a cluster's nodes: cut a node's power, boot it
  pvelab node maintenance NODE on|off
  pvelab quorum lost|back [NODE]   cut a node, or all of them, from each other
  pvelab fault list | set NAME VALUE | clear
  pvelab qm|pvesh|pvesm|pveversion ARGS...   run a command of the lab here

Each takes --dir DIR, the lab's state directory; default: $PVELAB_DIR, else
~/.local/state/linus-lab. Of a cluster that is the first node's; the others have
theirs in DIR/nodes, for reboot, fault and the commands. With the process driver a VM is a process of this
machine: it isolates nothing.
`

// errUsage means that the command line is wrong.
var errUsage = errors.New("see `pvelab help`")

func verb(ctx context.Context, args []string, std lab.Streams) int {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		fmt.Fprint(std.Out, usage)
		return 0
	}
	if slices.Contains(lab.Tools(), args[0]) {
		return tool(ctx, args[0], args[1:], std)
	}
	verbs := map[string]func(context.Context, []string, lab.Streams) error{
		"up": up, "down": down, "reboot": reboot, "status": status, "env": env, "fault": fault,
		"node": node, "quorum": quorum,
	}
	f, ok := verbs[args[0]]
	if !ok {
		fmt.Fprintf(std.Err, "pvelab: unknown command %q\n\n%s", args[0], usage)
		return 2
	}
	err := f(ctx, args[1:], std)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(std.Err, "pvelab %s: %v\n", args[0], err)
		return 2
	}
	fmt.Fprintf(std.Err, "pvelab %s: %v\n", args[0], err)
	return 1
}

// flags returns a verb's flag set, with the flag all verbs share.
func flags(name string, std lab.Streams) (*flag.FlagSet, *string) {
	set := flag.NewFlagSet("pvelab "+name, flag.ContinueOnError)
	set.SetOutput(std.Err)
	return set, set.String("dir", defaultDir(), "state directory")
}

// parse reads a verb's flags, before, between and after its words.
func parse(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	return nil
}

// open parses a verb's flags and opens the lab that they name. It also returns the arguments that
// are not flags.
func open(set *flag.FlagSet, dir *string, args []string) (*lab.Lab, []string, error) {
	if err := parse(set, args); err != nil {
		return nil, nil, err
	}
	l, err := lab.Open(*dir)
	return l, set.Args(), err
}

func defaultDir() string {
	if dir := os.Getenv("PVELAB_DIR"); dir != "" { //nolint:forbidigo // the lab is not the product, and reads its environment itself
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "linus-lab"
	}
	return filepath.Join(home, ".local", "state", "linus-lab")
}

func up(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("up", std)
	opts := lab.Options{Log: std.Err}
	set.StringVar(&opts.Driver, "driver", "", "process or qemu")
	set.StringVar(&opts.Version, "version", "", "PVE version to play: 9.2 or 8.2")
	set.StringVar(&opts.Storage, "storage", "", "local-lvm or local")
	set.StringVar(&opts.ImageVariant, "image", "", "qemu: plain for an unmodified guest image")
	set.StringVar(&opts.Systemd, "systemd", "", "simulated, or real: the host is a container with a systemd of its own (needs root and systemd-nspawn)")
	set.BoolVar(&opts.Direct, "direct", false, "qemu: a route from outside to the guests")
	set.BoolVar(&opts.BlockCallbacks, "block-callbacks", false, "qemu: guests cannot reach the outside")
	set.IntVar(&opts.SlowMS, "slow-ms", 0, "start-up time of each command, and what loading their modules takes")
	set.IntVar(&opts.CallMS, "call-ms", 0, "what a command takes where the modules are loaded")
	set.IntVar(&opts.Nodes, "nodes", 0, "number of nodes of a cluster")
	set.StringSliceVar(&opts.NodeMemory, "node-memory", nil, "memory of each node, 32G,16G: further nodes have the last")
	set.IntSliceVar(&opts.NodeCPUs, "node-cpus", nil, "CPUs of each node, 8,4: further nodes have the last")
	asJSON := set.Bool("json", false, "print the settings as JSON")
	if err := parse(set, args); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	opts.Dir, opts.Binary = *dir, binary
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(std.Out).Encode(l.Env())
	}
	return nil
}

func down(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("down", std)
	if err := parse(set, args); err != nil {
		return err
	}
	err := lab.Down(ctx, *dir)
	if err == nil {
		fmt.Fprintf(std.Err, "lab: %s is down\n", *dir)
	}
	return err
}

func reboot(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("reboot", std)
	s, _, err := open(set, dir, args)
	if err != nil {
		return err
	}
	return s.Reboot(ctx)
}

func status(ctx context.Context, args []string, std lab.Streams) error {
	set, dir := flags("status", std)
	asJSON := set.Bool("json", false, "print JSON")
	s, _, err := open(set, dir, args)
	if err != nil {
		return err
	}
	report, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if *asJSON {
		encoder := json.NewEncoder(std.Out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	fmt.Fprintf(std.Out, "%s: %s driver, PVE %s\n", s.Dir, report.Driver, report.Version)
	fmt.Fprintf(std.Out, "sshd: %s, %s\n", report.SSH, map[bool]string{true: "running", false: "not running"}[report.SSHRunning])
	tw := tabwriter.NewWriter(std.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "VM\tNAME\tSTATUS\tPID")
	printVMs := func(vms []lab.VMStatus) {
		for _, vm := range vms {
			fmt.Fprintf(tw, "%d\t%s\t%s\t%d\n", vm.ID, vm.Name, vm.Status, vm.PID)
		}
	}
	if len(report.Nodes) == 0 {
		printVMs(report.VMs)
	}
	for _, n := range report.Nodes {
		fmt.Fprintf(tw, "node %s\t%s\t%s\t\n", n.Name, n.SSH, n.State)
		printVMs(n.VMs)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for name, value := range report.Faults {
		fmt.Fprintf(std.Out, "fault: %s = %s\n", name, value)
	}
	return nil
}

func env(_ context.Context, args []string, std lab.Streams) error {
	set, dir := flags("env", std)
	asJSON := set.Bool("json", false, "print JSON")
	s, _, err := open(set, dir, args)
	if err != nil {
		return err
	}
	settings := s.Env()
	if *asJSON {
		return json.NewEncoder(std.Out).Encode(settings)
	}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(std.Out, "export %s=%s\n", name, shellescape.Quote(settings[name]))
	}
	return nil
}

func fault(_ context.Context, args []string, std lab.Streams) error {
	set, dir := flags("fault", std)
	s, words, err := open(set, dir, args)
	if err != nil {
		return err
	}
	switch {
	case len(words) == 1 && words[0] == "clear":
		return s.ClearFaults()
	case len(words) == 3 && words[0] == "set":
		return s.SetFault(lab.Fault(words[1]), words[2])
	case len(words) == 1 && words[0] == "list":
		active, err := s.ActiveFaults()
		if err != nil {
			return err
		}
		for _, f := range lab.Faults() {
			fmt.Fprintf(std.Out, "%-26s %s\n", f, strings.TrimSpace(active[f]))
		}
		return nil
	}
	return errUsage
}

// tool plays one of Proxmox's commands.
func tool(ctx context.Context, name string, args []string, std lab.Streams) int {
	s, err := lab.Open(defaultDir())
	if err != nil {
		fmt.Fprintln(std.Err, err)
		return 1
	}
	return s.Command(ctx, name, args, std)
}

// guest is the init process of a process VM.
func guest(std lab.Streams) int {
	if err := process.Run(std.In); err != nil {
		fmt.Fprintln(std.Err, err)
		return 1
	}
	return 0
}

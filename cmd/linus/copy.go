package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/lazyregexp"
)

func (a *app) vmCopyCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "cp SRC... DST",
		Short: "Copy files and directories to or from a VM",
		Long: "Copies by SFTP, logging in as linus vm ssh does; directories recursively, symbolic links as what they point to.\n" +
			"Dangling links, sockets, pipes and devices are not copied into a VM; each is reported.\n" +
			"A path in a VM is NAME:PATH, with the VM's name or ID, or the ID of a job that runs in it; a PATH without a leading /\n" +
			"is relative to its user's home. Write a local file with a colon in its name as ./NAME.\n" +
			"If this machine has no scp, files go through the engine instead, and links inside a copied directory stay links.",
		Example: "  linus vm cp ./src dev:/srv/app\n" +
			"  linus vm cp dev:/var/log/syslog dev:core .\n" +
			"  linus vm cp data.csv 01a1fcf5-c104-77fc-a46b-1716a403d4ed:",
		Args: func(cmd *cobra.Command, args []string) error {
			_, err := parseCopy(cmd, args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			copied, err := parseCopy(cmd, args)
			if err != nil {
				return err
			}
			s, remote, err := a.attachRemote(cmd.Context(), show)
			if err != nil {
				return err
			}
			if remote {
				defer s.Close()
				return a.copyThrough(cmd.Context(), s, copied)
			}
			if _, none := exec.LookPath("scp"); none != nil && !show {
				return a.attached(func(ctx context.Context, s *session, _ []string) error { return a.copyThrough(ctx, s, copied) })(cmd, args)
			}
			start := become
			if copied.toVM && !show {
				staged, remove, err := a.stage(copied.sources)
				defer remove()
				if err != nil {
					return err
				}
				if !slices.Equal(staged, copied.sources) {
					copied.sources, start = staged, runTool
				}
			}
			return a.withLogin(cmd.Context(), copied.vm, show, start, copied.command)
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the scp command instead of running it")
	return a.completePaths(cmd)
}

// completePaths completes the VM of NAME:PATH.
func (a *app) completePaths(cmd *cobra.Command) *cobra.Command {
	names := a.vmNames()
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		var words []string
		if !strings.ContainsAny(typed, "/:.") {
			all, _ := names(cmd, args, typed)
			for _, word := range all {
				name, about, _ := strings.Cut(word, "\t")
				words = append(words, name+":\t"+about)
			}
		}
		return words, cobra.ShellCompDirectiveNoSpace // without suggestions the shell completes files
	}
	return cmd
}

// copying is a copy between one VM and this machine.
type copying struct {
	vm      string   // its name, its ID, or a job's ID
	toVM    bool     // false: from the VM
	sources []string // paths
	target  string   // path
}

// inVM is NAME:PATH. With a slash before the colon it is a local path.
var inVM = lazyregexp.New(`(?s)^([^/:]+):(.*)$`)

// parseCopy parses SRC... DST. One side is in a VM, and all its paths in the same one.
func parseCopy(cmd *cobra.Command, args []string) (c copying, err error) {
	wrong := func(problem string) (copying, error) {
		return c, usage("%s %s; as in: linus vm cp ./x dev:/path, linus vm cp dev:/path .", cmd.CommandPath(), problem)
	}
	if len(args) < 2 {
		return wrong("takes one source or more, and a destination")
	}
	last := len(args) - 1
	c.sources, c.target = make([]string, last), args[last]
	if m := inVM.FindStringSubmatch(args[last]); m != nil {
		c.vm, c.target, c.toVM = m[1], m[2], true
	}
	for i, source := range args[:last] {
		m := inVM.FindStringSubmatch(source)
		switch {
		case m == nil && !c.toVM:
			return wrong("copies between a VM and this machine: give NAME:PATH on one side")
		case m == nil:
			c.sources[i] = source
		case c.toVM:
			return wrong("copies between a VM and this machine, not from VM to VM")
		case c.vm != "" && m[1] != c.vm:
			return wrong("copies from one VM at a time")
		default:
			c.vm, c.sources[i] = m[1], m[2]
		}
	}
	return c, nil
}

// command returns the scp command that copies.
func (c copying) command(l daemon.Login) ([]string, error) {
	options, err := l.Options()
	if err != nil {
		return nil, err
	}
	host := l.VM.IP
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	there := func(path string) string { return l.VM.User + "@" + host + ":" + path }
	here := func(path string) string { return path } // never NAME:PATH, so scp takes it for a local path too
	source, target := here, there
	if !c.toVM {
		source, target = there, here
	}
	// -s: by SFTP, which takes paths literally; the old protocol lets a shell expand them.
	argv := append(append([]string{"scp", "-s", "-r"}, options...), "-P", strconv.Itoa(l.Config.VMSSHPort), "--")
	for _, path := range c.sources {
		argv = append(argv, source(path))
	}
	return append(argv, target(c.target)), nil
}

func (a *app) vmForwardCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "forward NAME|ID [LOCAL:]PORT...",
		Short: "Forward ports of this machine's loopback to a VM",
		Long: "Listens on 127.0.0.1 and forwards each connection to the VM's own loopback, through the Proxmox host, until Ctrl-C. PORT is\n" +
			"the VM's port, LOCAL this machine's (default: the same). Prints what it listens on once it does.",
		Example: "  linus vm forward dev 8080:80 5432",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s takes the VM's name or ID and one or more ports, as in: %s dev 8080:80", cmd.CommandPath(), cmd.CommandPath())
			}
			_, err := parseForwards(args[1:])
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			forwards, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			if done, err := a.forwardRemote(cmd.Context(), args[0], forwards, show); done {
				return err
			}
			return a.withLogin(cmd.Context(), args[0], show, become, func(l daemon.Login) ([]string, error) {
				return forwardCommand(l, forwards)
			})
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the ssh command instead of running it")
	return a.completeVMs(cmd)
}

// forward is a local port that is forwarded to one of a VM.
type forward struct{ local, there uint16 }

var portPair = lazyregexp.New(`^(?:(\d+):)?(\d+)$`)

// parseForwards parses pairs such as 8080:80.
func parseForwards(args []string) ([]forward, error) {
	forwards := make([]forward, len(args))
	for i, arg := range args {
		m := portPair.FindStringSubmatch(arg)
		if m == nil {
			return nil, usage("%q is not a pair of ports; give LOCAL:PORT as in 8080:80, or PORT", arg)
		}
		if m[1] == "" {
			m[1] = m[2]
		}
		local, wrongLocal := strconv.ParseUint(m[1], 10, 16)
		there, wrong := strconv.ParseUint(m[2], 10, 16)
		if wrongLocal != nil || wrong != nil || local == 0 || there == 0 {
			return nil, usage("%q: a port is a number from 1 to 65535", arg)
		}
		forwards[i] = forward{uint16(local), uint16(there)}
	}
	return forwards, nil
}

// forwardCommand returns the ssh command that forwards. ssh runs its LocalCommand
// once it listens on all ports; the command prints them.
func forwardCommand(l daemon.Login, forwards []forward) ([]string, error) {
	options, err := l.Options()
	if err != nil {
		return nil, err
	}
	argv := append([]string{"ssh", "-N"}, options...)
	said := make([]string, len(forwards))
	for i, f := range forwards {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.local)))
		argv = append(argv, "-L", fmt.Sprintf("%s:localhost:%d", at, f.there))
		said[i] = fmt.Sprintf("echo '%s is port %d of VM %s'", at, f.there, l.VM.Name)
	}
	return append(argv, "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
		"-o", "PermitLocalCommand=yes", "-o", "LocalCommand="+strings.Join(said, "; "),
		"-p", strconv.Itoa(l.Config.VMSSHPort), l.VM.User+"@"+l.VM.IP), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/vm"
)

func (a *app) vmSSHConfigCommand() *cobra.Command {
	var install, uninstall bool
	cmd := &cobra.Command{
		Use:   "ssh-config [NAME|ID...]",
		Short: "Print what ssh and editors need to know VMs as NAME.linus, or keep it where they look",
		Long: "Prints a block of ssh_config for each VM, or all of yours that stay: ssh, scp, rsync, VS Code, Cursor, JetBrains Gateway and Zed\n" +
			"then reach VM dev as dev.linus, through linus, also through a server (--server). A VM that is suspended because it was idle is\n" +
			"resumed. Its host key is the one that the hypervisor reported, and a key of linus's own is let in for two minutes each time.\n" +
			"--install keeps the blocks of all your VMs that stay in ~/.ssh/linus.config, and one line that includes it at the top of\n" +
			"~/.ssh/config. Run it again when your VMs have changed; linus vm open does that.",
		Example: "  linus vm ssh-config --install && ssh dev.linus\n  linus vm ssh-config dev\n  linus vm ssh-config --uninstall",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case install && uninstall:
				return usage("--install and --uninstall are opposites; give one of them")
			case (install || uninstall) && len(args) > 0:
				return usage("%s --install and --uninstall are about all VMs that stay; give no names", cmd.CommandPath())
			case uninstall:
				return a.uninstallHosts()
			}
			return a.attached(func(ctx context.Context, s *session, args []string) error {
				hosts, err := a.sshHosts(ctx, s, args)
				if err != nil {
					return err
				}
				if install {
					return a.installHosts(hosts)
				}
				if len(hosts) == 0 && !a.json {
					a.note("no VM stays; linus vm create makes one")
					return nil
				}
				return a.print(map[string]any{"hosts": hostNames(hosts), "config": blocks(hosts)}, strings.TrimSuffix(blocks(hosts), "\n"))
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&install, "install", false, "keep the blocks in ~/.ssh/linus.config, and include that in ~/.ssh/config")
	cmd.Flags().BoolVar(&uninstall, "uninstall", false, "remove what --install has put there")
	cmd.ValidArgsFunction = a.vmNames()
	return cmd
}

// vmProxyCommand is the command that ssh runs to reach a VM.
func (a *app) vmProxyCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "proxy NAME|ID",
		Short:  "Connect stdin and stdout to a VM's SSH server, as a ProxyCommand of ssh",
		Hidden: true,
		Args:   oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			info, err := s.loginVM(ctx, args[0])
			if err != nil {
				return err
			}
			host, public, err := s.sshHost(info.VM)
			if err != nil {
				return err
			}
			if !info.SuspendedAt.IsZero() { // a connection that is being made cannot report it
				a.note("resuming VM %s (%d), suspended since %s because it was idle", info.Name, info.ID, local(info.SuspendedAt))
			}
			far, err := s.LoginVM(ctx, args[0], public)
			if err != nil {
				return err
			}
			defer far.Close()                  //nolint:errcheck // all of it was copied, or it is lost anyway
			if err := host.Pin(); err != nil { // while ssh still waits for the first byte
				return err
			}
			defer context.AfterFunc(ctx, func() { _ = far.Close() })()
			go func() { // ssh ends its input after the VM's SSH server has ended the connection, or never
				if _, err := io.Copy(far, a.stdin); err == nil {
					_ = far.CloseWrite()
				}
			}()
			_, err = io.Copy(a.stdout, far)
			return err
		}),
	}
}

// throughEngine returns a login through the engine, and the public key that belongs to it.
func (s *session) throughEngine(v vm.VM) (l daemon.Login, public string, err error) {
	l = daemon.Login{Config: s.config, VM: v}
	if l.Proxy, err = thisProgram(s.config, "vm", "proxy", v.Name); err == nil {
		l.Key, public, err = daemon.LoginKey(s.config)
	}
	return l, public, err
}

// sshHost returns a VM as a host of ssh_config, and the public key that the VM is to accept.
func (s *session) sshHost(v vm.VM) (host daemon.Host, public string, err error) {
	l, public, err := s.throughEngine(v)
	if err != nil {
		return host, "", err
	}
	host, err = daemon.NewHost(l)
	return host, public, err
}

// thisProgram returns a command line of this program with the settings that were given to it,
// because whoever runs it has another environment. Secrets are left out, as others can see a
// command line.
func thisProgram(c config.Config, args ...string) ([]string, error) {
	program, err := os.Executable() // programs started from a desktop do not have the shell's PATH
	if err != nil {
		return nil, fmt.Errorf("find the path of this program: %w", err)
	}
	argv := []string{program}
	given, _ := givenHere(c)
	for _, v := range given {
		if v.Name == "LINUS_ENV_FILE" {
			argv = append(argv, "--env-file", v.Value)
			continue
		}
		argv = append(argv, "--set", v.Name+"="+v.Value)
	}
	return append(argv, args...), nil
}

// sshHosts returns VMs as hosts of ssh_config: those with the given names, or all persistent ones
// of the caller.
func (a *app) sshHosts(ctx context.Context, s *session, names []string) (hosts []daemon.Host, err error) {
	var vms []job.VMInfo
	for _, name := range names {
		info, err := s.VM(ctx, name)
		if err != nil {
			return nil, err
		}
		vms = append(vms, info)
	}
	if len(names) == 0 {
		caller, err := s.Caller(ctx)
		if err != nil {
			return nil, err
		}
		if vms, err = s.VMs(ctx); err != nil {
			return nil, err
		}
		vms = slices.DeleteFunc(vms, func(v job.VMInfo) bool { return !workedIn(v, caller.Owner()) })
	}
	for _, info := range vms {
		l, _, err := s.throughEngine(info.VM)
		if err != nil {
			return nil, err
		}
		host, err := daemon.NewHost(l)
		if err != nil {
			if len(names) > 0 {
				return nil, err
			}
			a.note("left out: %s", oneLine(err.Error(), 300))
			continue
		}
		if err := host.Pin(); err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// workedIn reports whether a VM is for its owner to work in: it is persistent and not a program's
// sandbox.
func workedIn(v job.VMInfo, owner string) bool {
	return v.Principal == owner && v.Lifecycle == vm.Persistent && v.State == vm.Created && v.User != "" && v.Sandbox == nil
}

func hostNames(hosts []daemon.Host) []string {
	names := []string{}
	for _, h := range hosts {
		names = append(names, h.Name())
	}
	return names
}

func blocks(hosts []daemon.Host) string {
	var all []string
	for _, h := range hosts {
		all = append(all, h.Block())
	}
	return strings.Join(all, "\n")
}

// sshFiles returns the user's ssh_config, linus's own file beside it, and the line that includes
// it.
func sshFiles() (config, ours, line string, err error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", "", "", fmt.Errorf("find ~/.ssh: %w", err)
	}
	config, ours = filepath.Join(home, ".ssh", "config"), filepath.ToSlash(filepath.Join(home, ".ssh", "linus.config"))
	if strings.ContainsAny(ours, "\"\\\r\n*?[") {
		return "", "", "", fmt.Errorf("%q cannot be included in ssh's configuration; linus vm ssh-config prints what belongs there", ours)
	}
	line = "Include " + ours
	if strings.ContainsAny(ours, " \t") {
		line = `Include "` + ours + `"`
	}
	return config, ours, line, nil
}

// installHosts writes hosts to linus's own file, and includes that in the user's ssh_config.
func (a *app) installHosts(hosts []daemon.Host) error {
	config, ours, line, err := sshFiles()
	if err != nil {
		return err
	}
	if err := keepHosts(ours, hosts); err != nil {
		return fmt.Errorf("%w; linus vm ssh-config prints the blocks, for a file that ssh reads", err)
	}
	err = changeFile(config, func(text string) string {
		if includes(text, line) {
			return text
		}
		return line + "\n" + text // at the top: further down it would belong to the Host block before it
	})
	if err != nil {
		return fmt.Errorf("%w; its first line must be: %s", err, line)
	}
	said := "no VM stays yet; linus vm open VM adds one"
	if len(hosts) > 0 {
		said = "log in: ssh " + hosts[0].Name()
	}
	return a.print(map[string]any{"hosts": hostNames(hosts), "file": ours, "included_in": config}, fmt.Sprintf("%d VMs are in %s, which %s includes\n%s", len(hosts), ours, config, said))
}

func keepHosts(ours string, hosts []daemon.Host) error {
	return changeFile(ours, func(string) string {
		return "# Of linus vm ssh-config --install, which replaces it; --uninstall removes it.\n\n" + blocks(hosts)
	})
}

// uninstallHosts removes linus's own file, and the line that includes it.
func (a *app) uninstallHosts() error {
	config, ours, line, err := sshFiles()
	if err != nil {
		return err
	}
	err = changeFile(config, func(text string) string {
		lines := slices.Collect(strings.Lines(text))
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.TrimSpace(l) == line }), "")
	})
	if err != nil {
		return fmt.Errorf("%w; take this line out of it: %s", err, line)
	}
	if err := os.Remove(ours); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return a.print(map[string]any{"hosts": []string{}, "file": ours, "included_in": ""}, fmt.Sprintf("%s is removed, and %s does not include it", ours, config))
}

func includes(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

// changeFile changes the text of one of the user's files as a whole or not at all, and keeps its
// mode. Anything but a regular file, such as a link to where somebody keeps such files, stays as it
// is.
func changeFile(path string, change func(text string) string) error {
	dir, mode := filepath.Dir(path), fs.FileMode(0o600)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, at := range []string{dir, path} {
		switch about, err := os.Lstat(at); {
		case at == path && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case about.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(at)
			return fmt.Errorf("%s is a link to %s, and linus does not write through links", at, to)
		case at == path && !about.Mode().IsRegular():
			return fmt.Errorf("%s is not a regular file", at)
		case at == path:
			mode = about.Mode().Perm()
		}
	}
	for {
		before, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		after := change(string(before))
		if after == string(before) {
			return nil
		}
		f, err := os.CreateTemp(dir, ".linus-*")
		if err != nil {
			return err
		}
		_, err = f.WriteString(after)
		err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
		now, _ := os.ReadFile(path)
		if err == nil && string(now) == string(before) { // otherwise another program has changed it meanwhile
			if err = os.Rename(f.Name(), path); err == nil {
				return nil
			}
		}
		if err = errors.Join(err, os.Remove(f.Name())); err != nil {
			return err
		}
	}
}

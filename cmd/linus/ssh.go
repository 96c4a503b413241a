package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/remote"
)

func (a *app) vmSSHCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "ssh NAME|ID [-- COMMAND [ARG...]]",
		Short: "Log in to a VM by ssh through the host, with the VM's host key pinned",
		Long: "Runs ssh as the VM's user with the VM's own key, jumping through the Proxmox host, and accepts only the host key that the\n" +
			"hypervisor reported. Your ssh_config is not used: no agent or display is forwarded. A job's ID stands for the VM\n" +
			"it runs in. --print shows the command instead, for rsync -e.",
		Example: "  linus vm ssh dev\n  linus vm ssh dev -- tail -f /var/log/syslog\n  $(linus vm ssh dev --print) true   # if no path contains blanks",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) != 1 && dash != 1 {
				return usage("%s takes the VM's name or ID, or a job's ID; a command comes after --", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLogin(cmd.Context(), args[0], show, become, func(c config.Config, vm job.VM) ([]string, error) {
				argv, err := sshCommand(c, vm)
				if len(args) > 1 { // ssh hands one line to a shell: these arguments it is to be
					argv = append(argv, remote.Quote(args[1:]...))
				}
				return argv, err
			})
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the ssh command instead of running it")
	return a.completeVMs(cmd)
}

// withLogin makes a command of OpenSSH's that logs in to a VM, and starts it; or
// only shows it. A job's ID stands for the VM the job runs in.
func (a *app) withLogin(ctx context.Context, ref string, show bool, start func(program string, argv []string) error, command func(config.Config, job.VM) ([]string, error)) error {
	s, err := a.attach(ctx, false)
	if err != nil {
		return err
	}
	defer s.Close()
	info, err := s.loginVM(ctx, ref)
	if err != nil {
		return err
	}
	argv, err := command(s.config, info.VM)
	if err != nil {
		return err
	}
	if show {
		return a.print(map[string]any{"argv": argv, argv[0]: shellLine(argv)}, shellLine(argv))
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%w; install OpenSSH's client", err)
	}
	s.Close()
	return start(program, argv)
}

// become lets a program take this process's place: terminal, signals and exit
// code are its own.
func become(program string, argv []string) error {
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, argv, syscall.Environ()))
}

// loginVM returns the VM that has this name or ID, or that the job with this id
// runs in, if it can be logged in to.
func (s *session) loginVM(ctx context.Context, ref string) (job.VMInfo, error) {
	info, err := s.VM(ctx, ref)
	if err != nil {
		j, noJob := s.Job(ctx, ref)
		switch {
		case noJob != nil:
			return info, err
		case j.VM == nil || j.VM.ID == 0:
			return info, fmt.Errorf("job %s has no VM: its status is %s", j.ID, j.Status)
		case j.VM.State == job.VMDestroyed:
			return info, fmt.Errorf("the VM of job %s is gone; --keep keeps the next one", j.ID)
		}
		info, err = s.VM(ctx, strconv.Itoa(j.VM.ID))
		if err == nil && info.Job != j.VM.Job { // its ID is another's by now
			err = fmt.Errorf("the VM of job %s is gone; --keep keeps the next one", j.ID)
		}
		if err != nil {
			return info, err
		}
	}
	switch {
	case info.Status == job.VMStopped && info.Lifecycle == job.Persistent:
		return info, fmt.Errorf("VM %s (%d) is stopped; linus vm start %s starts it", info.Name, info.ID, info.Name)
	case info.Status != job.VMRunning && info.Status != job.VMUnknown:
		return info, fmt.Errorf("VM %s (%d) is %s; linus vm show %s tells more", info.Name, info.ID, info.Status, info.Name)
	case info.IP == "":
		return info, fmt.Errorf("VM %s (%d) has no address yet; linus vm show %s tells when it has", info.Name, info.ID, info.Name)
	}
	return info, nil
}

// guestKnownHosts is the file with a VM's host key.
func guestKnownHosts(c config.Config, vm job.VM) string {
	return filepath.Join(c.StateDir, "ssh", vm.Job+".known_hosts")
}

// sshCommand is the ssh command that logs in to a VM.
func sshCommand(c config.Config, vm job.VM) ([]string, error) {
	options, err := sshOptions(c, vm)
	return append(append([]string{"ssh"}, options...), "-p", strconv.Itoa(c.VMSSHPort), vm.User+"@"+vm.IP), err
}

// sshOptions are the options with which ssh and scp reach a VM: through the
// host, its host key pinned, with the login key that is this VM's. It writes the file with the VM's host
// key that they name.
func sshOptions(c config.Config, vm job.VM) ([]string, error) {
	known, alias := guestKnownHosts(c, vm), "linus-"+vm.Job
	checking := "yes"
	if vm.HostKey == "" {
		checking = "accept-new" // nobody could tell it; ssh shows when it changes
	} else {
		err := os.MkdirAll(filepath.Dir(known), 0o700)
		if err == nil {
			err = os.WriteFile(known, []byte(alias+" "+vm.HostKey+"\n"), 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("write the VM's host key: %w", err)
		}
	}
	jump := append(append([]string{"ssh"}, sshAlone()...),
		"-o", "StrictHostKeyChecking=yes", "-o", sshFile("UserKnownHostsFile", c.ProxmoxKnownHosts), "-p", strconv.Itoa(c.ProxmoxSSHPort))
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", c.ProxmoxSSHKeyPath))
	}
	through := strings.ReplaceAll(remote.Quote(append(jump, "-W")...), "%", "%%") + " '[%h]:%p' " +
		strings.ReplaceAll(remote.Quote(c.ProxmoxSSHUser+"@"+c.ProxmoxHost), "%", "%%")
	return append(sshAlone(),
		"-o", "ProxyCommand="+through,
		"-o", "HostKeyAlias="+alias, "-o", "StrictHostKeyChecking="+checking, "-o", sshFile("UserKnownHostsFile", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", loginKeys(c).Path(vm)),
		"-o", "PreferredAuthentications=publickey", // a VM's server asks nobody for a password
	), nil
}

// sshAlone are the options that leave ssh_config out, the user's and the
// machine's: what it turns on for hosts they trust (an agent or a display
// forwarded, ports, commands to run) is not for VMs, and linus itself reaches the
// host without it. ssh's own defaults have all of that off; the host keys that
// count are the ones named beside these.
func sshAlone() []string {
	return []string{"-F", "none", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"}
}

// sshFile is an option of ssh's that names a file, whatever is in its name:
// ssh_config splits at blanks and replaces %.
func sshFile(option, path string) string {
	return option + `="` + strings.ReplaceAll(path, "%", "%%") + `"`
}

// shellLine is a command as one types it, with quotes only where they are
// needed.
func shellLine(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = word
		if word == "" || strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-") != "" {
			words[i] = remote.Quote(word)
		}
	}
	return strings.Join(words, " ")
}

package main

import (
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
		Short: "Log in to a VM: ssh through the host, with the VM's host key pinned",
		Long: "Runs ssh as the VM's user with linus's key, jumped through the Proxmox host, and lets only the host key in that the\n" +
			"hypervisor has told. --print shows the command instead, for scp, rsync -e and your ssh_config.",
		Example: "  linus vm ssh dev\n  linus vm ssh dev -- tail -f /var/log/syslog\n  $(linus vm ssh dev --print) true   # where no path has blanks",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) != 1 && dash != 1 {
				return usage("%s takes the VM's name or ID; a command comes after --", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withVM(cmd.Context(), args[0], func(s *session, info job.VMInfo) error {
				if info.Status != job.VMRunning && info.Status != job.VMUnknown {
					return fmt.Errorf("VM %s (%d) is %s; linus vm show %s tells more", info.Name, info.ID, info.Status, info.Name)
				}
				argv, err := sshCommand(s.config, info.VM)
				if err != nil {
					return err
				}
				if len(args) > 1 { // ssh hands one line to a shell: these arguments it is to be
					argv = append(argv, remote.Quote(args[1:]...))
				}
				if show {
					return a.print(map[string]any{"argv": argv, "ssh": shellLine(argv)}, shellLine(argv))
				}
				program, err := exec.LookPath(argv[0])
				if err != nil {
					return fmt.Errorf("%w; install OpenSSH's client", err)
				}
				s.close()
				// ssh takes this process's place: terminal, signals and exit code are its own.
				return fmt.Errorf("run %s: %w", program, syscall.Exec(program, argv, syscall.Environ()))
			})
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the ssh command instead of running it")
	return a.completeVMs(cmd)
}

// guestKnownHosts is the file with a VM's host key.
func guestKnownHosts(c config.Config, vm job.VM) string {
	return filepath.Join(c.StateDir, "ssh", vm.Job+".known_hosts")
}

// sshCommand is the ssh command that logs in to a VM. It writes the file with
// the VM's host key that the command names.
func sshCommand(c config.Config, vm job.VM) ([]string, error) {
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
	jump := []string{"ssh", "-o", "StrictHostKeyChecking=yes", "-o", sshFile("UserKnownHostsFile", c.ProxmoxKnownHosts), "-p", strconv.Itoa(c.ProxmoxSSHPort)}
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", c.ProxmoxSSHKeyPath))
	}
	through := strings.ReplaceAll(remote.Quote(append(jump, "-W")...), "%", "%%") + " '[%h]:%p' " +
		strings.ReplaceAll(remote.Quote(c.ProxmoxSSHUser+"@"+c.ProxmoxHost), "%", "%%")
	return []string{
		"ssh", "-o", "ProxyCommand=" + through,
		"-o", "HostKeyAlias=" + alias, "-o", "StrictHostKeyChecking=" + checking, "-o", sshFile("UserKnownHostsFile", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", filepath.Join(c.StateDir, "id_ed25519")),
		"-p", strconv.Itoa(c.VMSSHPort), vm.User + "@" + vm.IP,
	}, nil
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

package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/vm"
)

func (a *app) vmSSHCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "ssh NAME|ID [-- COMMAND [ARG...]]",
		Short: "Log in to a VM by ssh through the host, with the VM's host key pinned",
		Long: "Runs ssh as the VM's user with the VM's own key, jumping through the VM's Proxmox host, and accepts only the host key that\n" +
			"the hypervisor reported. Through a server (--server) it goes through the engine, which lets a key of this machine in for two\n" +
			"minutes. Your ssh_config is not used: no agent or display is forwarded. A job's ID stands for the VM it runs in. --print\n" +
			"shows the command instead, for rsync -e.",
		Example: "  linus vm ssh dev\n  linus vm ssh dev -- tail -f /var/log/syslog\n  $(linus vm ssh dev --print) true   # if no path contains blanks",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) != 1 && dash != 1 {
				return usage("%s takes the VM's name or ID, or a job's ID; a command comes after --", cmd.CommandPath())
			}
			return nil
		},
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			return a.withLogin(ctx, s, args[0], show, func(l daemon.Login) ([]string, error) {
				argv, err := l.Command()
				if len(args) > 1 { // ssh passes one line to a shell; quoted, it becomes these arguments again
					argv = append(argv, shellescape.QuoteCommand(args[1:]))
				}
				return argv, err
			})
		}),
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the ssh command instead of running it")
	return a.completeVMs(cmd)
}

// withLogin replaces this process with an OpenSSH command that logs in to a VM, or only shows the
// command. A job's ID stands for the job's VM.
func (a *app) withLogin(ctx context.Context, s *session, ref string, show bool, command func(daemon.Login) ([]string, error)) error {
	info, err := s.loginVM(ctx, ref)
	if err == nil && !s.remote() { // through a server, the engine sees the login and resumes the VM
		info, err = a.use(ctx, s, info)
	}
	if err != nil {
		return err
	}
	login, err := s.login(ctx, info.VM)
	if err != nil {
		return err
	}
	argv, err := command(login)
	if err != nil {
		return err
	}
	if show {
		return a.print(map[string]any{"argv": argv, argv[0]: shellescape.QuoteCommand(argv)}, shellescape.QuoteCommand(argv))
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%w; install OpenSSH's client", err)
	}
	s.Close()
	// The program gets this one's terminal, signals and exit code.
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, argv, syscall.Environ()))
}

// use resumes a VM that is suspended when idle, or keeps it running. The engine does not see
// connections that bypass it, so use reads a directory through the engine.
func (a *app) use(ctx context.Context, s *session, info job.VMInfo) (job.VMInfo, error) {
	if info.SuspendedAt.IsZero() && (!info.Naps() || info.Status != vm.Running) {
		return info, nil
	}
	if _, err := s.ListFiles(ctx, job.FileList{VM: info.Name, Path: "/", Limit: 1}); err != nil {
		return info, err
	}
	return s.VM(ctx, info.Name)
}

// login returns what is needed to log in to a VM.
func (s *session) login(ctx context.Context, v vm.VM) (daemon.Login, error) {
	if s.remote() { // the VMs' keys, and the route to the VMs, stay at the server
		l, _, err := s.throughEngine(v)
		return l, err
	}
	l := daemon.Login{Config: s.config, VM: v}
	if !s.config.Clustered() {
		return l, nil
	}
	nodes, _ := s.Nodes(ctx) // without nodes, through the first entry
	if at := slices.IndexFunc(nodes, func(n job.NodeInfo) bool { return n.Name == v.Node }); at >= 0 {
		l.Node = nodes[at]
	}
	return l, nil
}

// loginVM returns the VM with this name or ID, or the VM of the job with this ID. It fails if the
// VM does not accept logins.
func (s *session) loginVM(ctx context.Context, ref string) (job.VMInfo, error) {
	info, err := s.VM(ctx, ref)
	if err != nil {
		j, noJob := s.Job(ctx, ref)
		switch {
		case noJob != nil:
			return info, err
		case j.VM == nil || j.VM.ID == 0:
			return info, fmt.Errorf("job %s has no VM: its status is %s", j.ID, j.Status)
		case j.VM.State == vm.Destroyed:
			return info, fmt.Errorf("the VM of job %s is gone; --keep keeps the next one", j.ID)
		}
		info, err = s.VM(ctx, strconv.Itoa(j.VM.ID))
		if err == nil && info.Job != j.VM.Job { // another VM now has its ID
			err = fmt.Errorf("the VM of job %s is gone; --keep keeps the next one", j.ID)
		}
		if err != nil {
			return info, err
		}
	}
	switch {
	case !info.SuspendedAt.IsZero(): // its use resumes it
	case info.Status == vm.Stopped && info.Lifecycle == vm.Persistent:
		return info, fmt.Errorf("VM %s (%d) is stopped; linus vm start %s starts it", info.Name, info.ID, info.Name)
	case info.Status == vm.Suspended && info.Lifecycle == vm.Persistent:
		return info, fmt.Errorf("VM %s (%d) is suspended; linus vm resume %s continues it", info.Name, info.ID, info.Name)
	case info.Status != vm.Running && info.Status != vm.Unknown:
		return info, fmt.Errorf("VM %s (%d) is %s; linus vm show %s shows more", info.Name, info.ID, info.Status, info.Name)
	case info.IP == "":
		return info, fmt.Errorf("VM %s (%d) has no address yet; linus vm show %s shows it once it has", info.Name, info.ID, info.Name)
	}
	return info, nil
}

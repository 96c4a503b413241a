package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

type editor struct {
	name     string
	programs []string
	open     func(host, path string) []string // its arguments
}

var editors = []editor{
	{"code", []string{"code"}, remoteSSH},
	{"cursor", []string{"cursor"}, remoteSSH},
	{"zed", []string{"zed", "zeditor"}, func(host, path string) []string {
		if path == "" {
			path = "/~"
		}
		return []string{(&url.URL{Scheme: "ssh", Host: host, Path: path}).String()}
	}},
}

// remoteSSH returns the arguments for VS Code and the editors derived from it.
func remoteSSH(host, path string) []string {
	args := []string{"--remote", "ssh-remote+" + host}
	if path != "" {
		args = append(args, path)
	}
	return args
}

func (a *app) vmOpenCommand() *cobra.Command {
	var with string
	var names []string
	for _, e := range editors {
		names = append(names, e.name)
	}
	cmd := &cobra.Command{
		Use:   "open NAME|ID [PATH]",
		Short: "Open a VM, or a directory of it, in an editor of this machine",
		Long: "Starts VS Code, Cursor or Zed, which reaches the VM by ssh as linus vm ssh-config has it; VS Code and Cursor need their extension\n" +
			"Remote - SSH. linus vm ssh-config --install has to have been run once; the VM is added to what that keeps.",
		Example: "  linus vm open dev\n  linus vm open dev /srv/app --editor zed",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage("%s takes the VM's name or ID, and perhaps a directory in it", cmd.CommandPath())
			}
			if len(args) == 2 && !strings.HasPrefix(args[1], "/") {
				return usage("%q is not an absolute path; give one as in /srv/app", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.attached(func(ctx context.Context, s *session, args []string) error {
				info, err := s.loginVM(ctx, args[0])
				if err != nil {
					return err
				}
				editor, program, err := findEditor(with, names)
				if err != nil {
					return err
				}
				host, err := a.knownHost(ctx, s, info)
				if err != nil {
					return err
				}
				path := ""
				if len(args) == 2 {
					path = args[1]
				}
				run := exec.CommandContext(ctx, program, editor.open(host, path)...)
				run.Stdin, run.Stdout, run.Stderr = os.Stdin, a.stdout, a.stderr
				if err := run.Run(); err != nil {
					return fmt.Errorf("run %s: %w", program, err)
				}
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&with, "editor", "", strings.Join(names, ", ")+" (default: the first that is installed)")
	_ = cmd.RegisterFlagCompletionFunc("editor", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return a.completeVMs(cmd)
}

// findEditor returns the named editor and its program or, without a name, the first one installed.
func findEditor(name string, names []string) (editor, string, error) {
	if name != "" && !slices.Contains(names, name) {
		return editor{}, "", usage("--editor %q is unknown; use one of: %s", name, strings.Join(names, ", "))
	}
	for _, e := range editors {
		if name != "" && e.name != name {
			continue
		}
		for _, program := range e.programs {
			if path, err := exec.LookPath(program); err == nil {
				return e, path, nil
			}
		}
	}
	missing := name + " is not"
	if name == "" {
		missing = "none of " + strings.Join(names, ", ") + " is"
	}
	return editor{}, "", fmt.Errorf("%s in your PATH; install its command there from the editor's command palette, where it is called \"install ... command\" or \"cli: install\"", missing)
}

// knownHost returns a VM's name for ssh, after making it known to ssh.
func (a *app) knownHost(ctx context.Context, s *session, info job.VMInfo) (string, error) {
	config, ours, line, err := sshFiles()
	if err != nil {
		return "", err
	}
	if text, _ := os.ReadFile(config); !includes(string(text), line) {
		return "", usage("ssh, by which editors reach VMs, does not know them yet; run this once: linus vm ssh-config --install")
	}
	hosts, err := a.sshHosts(ctx, s, nil)
	if err != nil {
		return "", err
	}
	this, _, err := s.sshHost(info.VM)
	if err != nil {
		return "", err
	}
	if !slices.Contains(hostNames(hosts), this.Name()) { // the VM of a job
		if err := this.Pin(); err != nil {
			return "", err
		}
		hosts = append(hosts, this)
	}
	return this.Name(), keepHosts(ours, hosts)
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/secret"
)

// maxCredential is how many bytes of stdin are read: more than any value may have.
const maxCredential = 16 << 10

func (a *app) credentialAddCommand() *cobra.Command {
	var n job.NewCredential
	cmd := &cobra.Command{
		Use:   "add NAME --host HOST",
		Short: "Add a credential that VMs use but never have; its value is read from stdin",
		Long: "Jobs that name it (credentials in the manifest, --credential) send their requests to HOST through the engine, which adds\n" +
			"the header there. The VM has a placeholder, which is worthless. The value is read from stdin and kept by the\n" +
			"engine in a file of its state directory, mode 0600; or it is the secret that --secret names, read at each use.\n" +
			"What is promised, and what is not: linus help credentials.",
		Example: "  linus credential add github --host api.github.com --path /repos/acme/ --env GITHUB_TOKEN <token.txt\n" +
			"  linus credential add anthropic --host api.anthropic.com --header x-api-key --env ANTHROPIC_API_KEY --secret CLAUDE\n" +
			"  linus credential add git --host github.com --header 'Authorization: Basic x-access-token' --path /acme/ <token.txt\n" +
			"  linus credential add deploy --host git.example --host-key 'ssh-ed25519 AAAA...' --path /acme/ <id_ed25519",
		Args: oneArg("the credential's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n.Name = args[0]
			if n.HostKey != "" && !cmd.Flags().Changed("header") {
				n.Header = ""
			}
			switch {
			case n.Secret != "":
			case isTerminal(a.stdin):
				return usage("the value is read from stdin, and would be seen on a terminal: add <FILE, or --secret NAME")
			default:
				value, err := secret.UnlessEnded(cmd.Context(), "stdin", func() ([]byte, error) { return io.ReadAll(io.LimitReader(a.stdin, maxCredential)) })
				if err != nil {
					return fmt.Errorf("read the value from stdin: %w", err)
				}
				n.Value = strings.TrimSuffix(strings.TrimSuffix(string(value), "\n"), "\r") // as editors and echo add it
			}
			return a.attached(func(ctx context.Context, s *session, _ []string) error {
				return saying(a, func(c job.Credential) string {
					use := "linus run --credential " + c.Name
					if c.SSH() {
						use = "linus job submit --repo-credential " + c.Name
					}
					return fmt.Sprintf("credential %s is added for %s%s\n  use it: %s", c.Name, c.Host, c.Path, use)
				})(s.CreateCredential(ctx, n))
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&n.Host, "host", "", "the host it is for, as in api.github.com or git.example:8443; only over HTTPS, or SSH with --host-key")
	flags.StringVar(&n.Path, "path", "", "what a request's path has to begin with, as in /repos/acme/ (default: any)")
	flags.StringVar(&n.HostKey, "host-key", "", "the host's public key, as in 'ssh-ed25519 AAAA...': the value is a private key for SSH, for the repositories of jobs")
	flags.StringVar(&n.Header, "header", "Authorization: Bearer", "the header, and what precedes the value; 'Authorization: Basic USER' for a password")
	flags.StringVar(&n.Env, "env", "", "variable in which the task finds a placeholder, for programs that ask for one, as in GITHUB_TOKEN")
	flags.StringVar(&n.Secret, "secret", "", "name of a configured secret that is the value, instead of stdin")
	_ = cmd.MarkFlagRequired("host")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func (a *app) credentialListCommand() *cobra.Command {
	const header = "NAME\tHOST\tPATH\tHEADER\tENV\tSECRET\tCREATED\tBY"
	cmd := &cobra.Command{Short: "List the credentials and what they are for, without their values"}
	return listing(a, cmd, "credentials", job.Engine.Credentials, "no credentials; linus credential add adds one", header, func(c job.Credential) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", c.Name, c.Host, orDash(c.Path), cmp.Or(c.Header, "SSH"), orDash(c.Env), orDash(c.Secret), local(c.CreatedAt), orDash(c.CreatedBy))
	})
}

func (a *app) credentialRemoveCommand() *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a credential, and cut off the requests that use it",
		Long:  "Nothing is sent with it any more, and requests that jobs have begun with it are cut off: within 5 seconds in all engines of\nthe installation. The issuer still accepts the value: revoke it there as well if it may have leaked.",
		Args:  oneArg("the credential's name"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			return saying(a, func(c job.Credential) string { return fmt.Sprintf("credential %s is removed", c.Name) })(s.RemoveCredential(ctx, args[0]))
		}),
	}, each(a, job.Engine.Credentials, func(c job.Credential) string { return c.Name + "\t" + c.Host }))
}

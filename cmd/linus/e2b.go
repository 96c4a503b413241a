package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
)

func (a *app) e2bEnvCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "env [NAME]",
		Short: "Print the three variables with which E2B's clients use this server",
		Long: "Prints E2B_API_URL and E2B_SANDBOX_URL of the server that linus serve runs, as lines for a shell, and E2B_API_KEY with a new token for NAME:\n" +
			"role run, valid for 90 days, as of linus token create NAME --e2b, which has more options. Without NAME, no token is made.",
		Example: "  eval \"$(linus e2b env me)\"\n  linus e2b env ci >>.env",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.localSettings(cmd, "its address is one of this machine's settings")
			if err != nil {
				return err
			}
			at, err := daemon.SandboxURL(c)
			if err != nil {
				return err
			}
			vars := map[string]string{"E2B_API_URL": at, "E2B_SANDBOX_URL": at}
			names := []string{"E2B_API_URL", "E2B_SANDBOX_URL"}
			if len(args) == 0 {
				a.note("E2B_API_KEY is a token: linus e2b env NAME, or linus token create NAME --e2b, makes one")
			} else {
				s, err := a.attach(cmd.Context(), false)
				if err != nil {
					return err
				}
				defer s.Close()
				t, err := s.CreateToken(cmd.Context(), job.TokenSpec{Name: args[0], Role: job.RoleRun, TTL: int(tokenTTL / time.Second), E2B: true})
				if err != nil {
					return err
				}
				a.note("token %s of %s, role %s, %s; it is not shown again\n  revoke: linus token revoke %s", t.ID, t.Name, t.Role, expiryText(t.Token), t.ID)
				vars["E2B_API_KEY"], names = t.Secret, append(names, "E2B_API_KEY")
			}
			var lines []string
			for _, name := range names {
				lines = append(lines, fmt.Sprintf("export %s=%s", name, vars[name])) // a URL, and letters
			}
			return a.print(vars, strings.Join(lines, "\n"))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

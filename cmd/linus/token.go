package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

// tokenTTL is how long a token is valid by default.
const tokenTTL = 90 * 24 * time.Hour

func (a *app) tokenCreateCommand() *cobra.Command {
	var (
		spec job.TokenSpec
		role string
		ttl  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a token, and print it this one time",
		Long: "Creates a token and prints it, this one time. Jobs, VMs and idempotency keys belong to NAME: whoever presents a token of\n" +
			"that name sees them, and nothing of others unless its role is admin. A name may have several tokens, so that\n" +
			"one can replace another. Only a token's hash is stored.\n" +
			"A token with the role run has limits unless --limit-...=0 says that it has none; one with another role, where they are given.\n" +
			"What each role may do, and how a token is used: linus help access.",
		Example: "  linus token create ci --role run --limit-jobs 10 --secrets 'CI_*'\n" +
			"  linus token create dashboard --role read --ttl 0 >token",
		Args: oneArg("whom the token is for"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Name, spec.Role, spec.TTL = args[0], job.Role(role), int(ttl/time.Second)
			for flag, at := range map[string]*int{"memory": &spec.MemoryMB, "disk": &spec.DiskMB, "stored": &spec.StoredMB} {
				typed, _ := cmd.Flags().GetString("limit-" + flag)
				if _, err := job.ParseSize(typed); err != nil && typed != "" && typed != "0" {
					return fmt.Errorf("--limit-%s: %w", flag, err)
				}
				if *at = job.SizeMB(typed); typed == "0" {
					*at = job.NoLimit
				}
			}
			for flag, at := range map[string]*int{"jobs": &spec.Jobs, "vms": &spec.VMs, "jobs-per-hour": &spec.PerHour} {
				if *at == 0 && cmd.Flags().Changed("limit-"+flag) {
					*at = job.NoLimit
				}
			}
			s, err := a.attach(cmd.Context(), false)
			if err != nil {
				return err
			}
			defer s.Close()
			t, err := s.CreateToken(cmd.Context(), spec)
			if err != nil {
				return err
			}
			a.note("token %s of %s, role %s, %s; it is not shown again\n  revoke: linus token revoke %s", t.ID, t.Name, t.Role, expiryText(t.Token), t.ID)
			if narrowed := t.Narrowed(); len(narrowed) > 0 {
				a.note("  narrowed to: %s", strings.Join(narrowed, "; "))
			}
			return a.print(t, t.Secret)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&role, "role", string(job.RoleRun), "read, run or admin")
	flags.DurationVar(&ttl, "ttl", tokenTTL, "how long it is valid, as in 720h; 0: until it is revoked")
	flags.BoolVar(&spec.E2B, "e2b", false, "in the form that E2B's clients take as E2B_API_KEY")
	flags.StringSliceVar(&spec.Toolsets, "toolsets", nil, "what it may be used for, over MCP and everywhere else: some of "+strings.Join(job.TokenToolsets, ", ")+" (default: all but dispatch, which only dispatchers need)")
	flags.StringSliceVar(&spec.Secrets, "secrets", nil, "secrets its jobs may name, with * and ? as wildcards (default: none; for admin: all)")
	flags.StringSliceVar(&spec.Credentials, "credentials", nil, "credentials its jobs may name, with * and ? as wildcards (default: none; for admin: all)")
	flags.StringSliceVar(&spec.Networks, "networks", nil, "bridges and VLAN tags its VMs may be on, as in vmbr1,20-29 (default: as the settings allow)")
	flags.StringSliceVar(&spec.Storages, "storages", nil, "storages its volumes may be on, with * and ? as wildcards (default: as the settings allow)")
	flags.StringSliceVar(&spec.Templates, "templates", nil, "templates and operating systems its VMs may be made from (default: as the settings allow)")
	flags.IntVar(&spec.Jobs, "limit-jobs", 0, "unfinished jobs at a time (default: 4 x MAX_JOBS)")
	flags.IntVar(&spec.VMs, "limit-vms", 0, "VMs at a time, those of unfinished jobs included (default: 4 x MAX_JOBS)")
	flags.String("limit-memory", "", "memory of its VMs together, as in 64G (default: of 4 x MAX_JOBS VMs with DEFAULT_MEMORY)")
	flags.String("limit-disk", "", "disks of its VMs together, at the size they may grow to, as in 500G (default: of 4 x MAX_JOBS VMs with DEFAULT_DISK)")
	flags.String("limit-stored", "", "what the engine stores of its jobs (files, output, artifacts), as in 2G (default: 10G)")
	flags.IntVar(&spec.PerHour, "limit-jobs-per-hour", 0, "jobs submitted within an hour (default: no limit)")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"read", "run", "admin"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("toolsets", cobra.FixedCompletions(job.TokenToolsets, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	const header = "ID\tNAME\tROLE\tEXPIRES\tCREATED\tBY\tNARROWED TO"
	cmd := &cobra.Command{Short: "List the tokens, their owners, and what they may do"}
	return listing(a, cmd, "tokens", job.Engine.Tokens, "no tokens; linus token create makes one", header, func(t job.Token) string {
		name := t.Name
		if t.Login != "" {
			name += " (login of " + t.Login + ")"
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", t.ID, name, t.Role, strings.TrimPrefix(expiryText(t), "valid until "),
			local(t.CreatedAt), orDash(t.CreatedBy), orDash(strings.Join(t.Narrowed(), "; ")))
	})
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   "revoke ID|NAME",
		Short: "Revoke a token, or all tokens of a name; its jobs keep running",
		Long:  "Within 5 seconds no engine of the installation accepts it any more, and its open connections are closed.",
		Args:  oneArg("the token's ID, or whose tokens to revoke"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			gone, err := s.RevokeToken(ctx, args[0])
			if err != nil {
				return err
			}
			lines := make([]string, len(gone))
			for i, t := range gone {
				lines[i] = fmt.Sprintf("token %s of %s is revoked", t.ID, t.Name)
				if t.Login != "" {
					lines[i] = fmt.Sprintf("login %s of %s (%s) is ended", t.ID, t.Login, t.Name)
				}
			}
			return a.print(gone, strings.Join(lines, "\n"))
		}),
	}, each(a, job.Engine.Tokens, func(t job.Token) string { return t.Name + "\t" + string(t.Role) }))
}

func expiryText(t job.Token) string {
	switch {
	case t.ExpiresAt.IsZero():
		return "never expires"
	case t.Expired(time.Now()):
		return "expired " + local(t.ExpiresAt)
	}
	return "valid until " + local(t.ExpiresAt)
}

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/mcptool"
)

func (a *app) mcpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve MCP on stdin and stdout, for an MCP client",
		Long: "Speaks the Model Context Protocol on stdin and stdout until stdin ends. Jobs are run by the engine, not by this\n" +
			"process, and keep running when the client is closed. Without PROXMOX_HOST the tools say what to set.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.settings(cmd.Context())
			if err != nil {
				return err
			}
			o := a.daemon(c)
			var client *control.Client
			engine := job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) { return v.Do(ctx, client.Engine, in) })
			server := make(chan *mcptool.Stdio, 1)
			go func() { server <- mcptool.NewStdio(daemon.MCPOptions(o, engine)) }() // builds the tools while the engine is reached
			client, err = daemon.Attach(cmd.Context(), o, true)
			who := job.Operator()
			var unset *config.Error
			switch {
			case errors.As(err, &unset): // clients show what tools say, but of a server that exits only that it did
				a.note("%v\nThe tools say the same until it is set; then they work.", err)
				client = daemon.AttachLater(o, a.settings)
			case err != nil:
				return err
			default:
				if who, err = client.Caller(cmd.Context()); err != nil { // to offer only what its token permits
					return err
				}
			}
			defer client.Close()
			return (<-server).Serve(job.WithPrincipal(cmd.Context(), who), a.stdin, a.stdout)
		},
	}
	a.mcpFlags(cmd)
	cmd.AddCommand(a.mcpConfigCommand())
	return cmd
}

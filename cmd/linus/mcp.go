package main

import (
	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/mcptool"
)

func (a *app) mcpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve MCP on stdin and stdout, for an MCP client",
		Long: "Speaks the Model Context Protocol on stdin and stdout until stdin ends. Jobs are run by the engine, not by this\n" +
			"process, and go on when the client is closed.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.attach(cmd.Context(), true)
			if err != nil {
				return err
			}
			defer s.Close()
			return mcptool.ServeStdio(cmd.Context(), daemon.MCPOptions(a.daemon(s.config), s.client), a.stdin, a.stdout)
		},
	}
	a.mcpFlags(cmd)
	cmd.AddCommand(a.mcpConfigCommand())
	return cmd
}

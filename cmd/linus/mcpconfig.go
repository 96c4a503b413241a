package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/config"
)

// mcpClient is a program that starts MCP servers, and its configuration format.
type mcpClient struct {
	name  string
	key   string   // of the object that holds the servers
	typed bool     // entries need "type": "stdio"
	files []string // where the file is, for people
}

var mcpClients = []mcpClient{
	{"claude-code", "mcpServers", true, []string{
		".mcp.json in a project's directory, for everyone who works on it;",
		"for yourself only: claude mcp add-json --scope user linus with the inner object",
	}},
	{"claude-desktop", "mcpServers", false, []string{
		"macOS: ~/Library/Application Support/Claude/claude_desktop_config.json",
		`Windows: %APPDATA%\Claude\claude_desktop_config.json`,
		"Linux: ~/.config/Claude/claude_desktop_config.json",
	}},
	{"cursor", "mcpServers", true, []string{"~/.cursor/mcp.json, or .cursor/mcp.json in a project's directory"}},
	{"gemini", "mcpServers", false, []string{"~/.gemini/settings.json, or .gemini/settings.json in a project's directory"}},
	{"vscode", "servers", true, []string{".vscode/mcp.json in a project's directory; for yourself only: the command \"MCP: Open User Configuration\""}},
}

// mcpServer is a client's entry for linus.
type mcpServer struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

// mcpClientNames returns the clients linus mcp config knows.
func mcpClientNames() (names []string) {
	for _, c := range mcpClients {
		names = append(names, c.name)
	}
	return names
}

func (a *app) mcpConfigCommand() *cobra.Command {
	var client, command string
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print an MCP client's configuration for starting linus",
		Long: "Prints the client's configuration file to stdout, and where to put it to stderr. It starts this program with the\n" +
			"settings currently given by flags and the environment. Settings in the env file are read from there; secrets belong there\n" +
			"too (linus config path) and are left out.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			i := slices.IndexFunc(mcpClients, func(c mcpClient) bool { return c.name == client })
			if i < 0 {
				return usage("--client %q is unknown; use one of: %s", client, strings.Join(mcpClientNames(), ", "))
			}
			c, err := a.settings()
			if err != nil {
				return err
			}
			if command == "" {
				// The absolute path: programs started from a desktop do not have the shell's PATH.
				if command, err = os.Executable(); err != nil {
					return fmt.Errorf("find the path of this program: %w; give it with --command", err)
				}
			}
			return a.printMCPConfig(mcpClients[i], c, command)
		},
	}
	cmd.Flags().StringVar(&client, "client", "", strings.Join(mcpClientNames(), ", "))
	cmd.Flags().StringVar(&command, "command", "", "path of linus on the client's machine (default: this program)")
	_ = cmd.RegisterFlagCompletionFunc("client", cobra.FixedCompletions(mcpClientNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printMCPConfig(client mcpClient, c config.Config, command string) error {
	server := mcpServer{Command: command, Args: []string{"mcp"}, Env: map[string]string{}}
	if client.typed {
		server.Type = "stdio"
	}
	var secrets []string
	for _, v := range c.Values() {
		inFile := c.EnvFile != "" && strings.HasPrefix(v.From, c.EnvFile+":")
		switch {
		case !v.Given || inFile: // linus mcp reads the file itself
		case v.Secret:
			secrets = append(secrets, v.Name)
		default:
			server.Env[v.Name] = v.Value
		}
	}
	content := map[string]any{client.key: map[string]mcpServer{"linus": server}}
	if a.json {
		return a.printJSON(map[string]any{"client": client.name, "places": client.files, "content": content, "left_out": append([]string{}, secrets...)})
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(content); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	a.note("Put it into\n  %s\nIf that file exists, add the entry \"linus\" to its %q.", strings.Join(client.files, "\n  "), client.key)
	if len(secrets) > 0 {
		a.note("Left out, because others may read that file: %s. Put them into %s, mode 0600.", strings.Join(secrets, ", "), a.sources.EnvFilePath())
	}
	if err := c.NeedHost(); err != nil && c.Server == "" {
		a.note("Without PROXMOX_HOST the tools only say that it is missing: give it here with --host, or in the env file.")
	}
	_, err := a.stdout.Write(text.Bytes())
	return err
}

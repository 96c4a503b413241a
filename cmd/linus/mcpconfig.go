package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"linus/internal/config"
)

// mcpClient is a program that starts MCP servers or reaches them over HTTP, with its configuration
// format.
type mcpClient struct {
	name  string
	key   string   // of the object that holds the servers
	typed bool     // entries need "type": "stdio"
	toml  bool     // the file is TOML, not JSON
	files []string // where the file is, for people
	adds  string   // for people, the command that adds an entry, before that entry; empty: there is none
	// http returns the client's entry for a server over HTTP. Nil: its file cannot have one.
	http func(url string) any
}

// tokenVariable is the environment variable in which HTTP clients find their token.
const tokenVariable = "LINUS_TOKEN"

// overHTTP returns a function that makes an entry with a URL under key. reference is the client's
// way to name the token's environment variable.
func overHTTP(kind, key, reference string) func(string) any {
	return func(url string) any {
		entry := map[string]any{key: url, "headers": map[string]string{"Authorization": "Bearer " + reference}}
		if kind != "" {
			entry["type"] = kind
		}
		return entry
	}
}

var mcpClients = []mcpClient{
	{name: "claude-code", key: "mcpServers", typed: true, http: overHTTP("http", "url", "${"+tokenVariable+"}"), files: []string{
		".mcp.json in a project's directory, for everyone who works on it;",
	}, adds: "for yourself only: claude mcp add-json --scope user linus"},
	{name: "claude-desktop", key: "mcpServers", files: []string{
		"macOS: ~/Library/Application Support/Claude/claude_desktop_config.json",
		`Windows: %APPDATA%\Claude\claude_desktop_config.json`,
		"Linux: ~/.config/Claude/claude_desktop_config.json",
	}},
	{name: "codex", key: "mcp_servers", toml: true, files: []string{"~/.codex/config.toml, or .codex/config.toml in a project's directory"}, http: func(url string) any {
		return map[string]any{"url": url, "bearer_token_env_var": tokenVariable}
	}},
	{name: "cursor", key: "mcpServers", typed: true, http: overHTTP("", "url", "${env:"+tokenVariable+"}"), files: []string{"~/.cursor/mcp.json, or .cursor/mcp.json in a project's directory"}},
	{name: "gemini", key: "mcpServers", http: overHTTP("", "httpUrl", "$"+tokenVariable), files: []string{"~/.gemini/settings.json, or .gemini/settings.json in a project's directory"}},
	{name: "vscode", key: "servers", typed: true, http: overHTTP("http", "url", "${env:"+tokenVariable+"}"), files: []string{".vscode/mcp.json in a project's directory; for yourself only: the command \"MCP: Open User Configuration\""}},
}

type mcpServer struct {
	Type    string            `json:"type,omitempty"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

func mcpClientNames() (names []string) {
	for _, c := range mcpClients {
		names = append(names, c.name)
	}
	return names
}

func (a *app) mcpConfigCommand() *cobra.Command {
	var client, command, at string
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print an MCP client's configuration for starting linus",
		Long: "Prints the client's configuration file to stdout, and where to put it to stderr. It starts this program with the\n" +
			"settings currently given by flags and the environment. Settings in the env file are read from there; secrets belong there\n" +
			"too (linus config path) and are left out. With --url the client starts nothing: it reaches linus serve --http there, with\n" +
			"the token in its environment variable " + tokenVariable + ".",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i := slices.IndexFunc(mcpClients, func(c mcpClient) bool { return c.name == client })
			if i < 0 {
				return usage("--client %q is unknown; use one of: %s", client, strings.Join(mcpClientNames(), ", "))
			}
			if at != "" {
				return a.printHTTPConfig(mcpClients[i], at)
			}
			c, err := a.settings(cmd.Context())
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
	cmd.Flags().StringVar(&at, "url", "", "URL of linus serve --http for this client, as in https://linus.example:8766, instead of starting linus")
	_ = cmd.RegisterFlagCompletionFunc("url", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("client", cobra.FixedCompletions(mcpClientNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printMCPConfig(client mcpClient, c config.Config, command string) error {
	server := mcpServer{Command: command, Args: []string{"mcp"}, Env: map[string]string{}}
	if client.typed {
		server.Type = "stdio"
	}
	given, secrets := givenHere(c)
	for _, v := range given {
		server.Env[v.Name] = v.Value
	}
	if err := a.printEntry(client, server, secrets); err != nil {
		return err
	}
	if a.json {
		return nil
	}
	if len(secrets) > 0 {
		a.note("Left out, because others may read that file: %s. Put them into %s, mode 0600.", strings.Join(secrets, ", "), a.sources.EnvFilePath())
	}
	if err := c.NeedHost(); err != nil && c.Server == "" {
		a.note("Without PROXMOX_HOST the tools only say that it is missing: give it here with --host, or in the env file.")
	}
	return nil
}

// givenHere returns the settings that flags and the environment give, for another process of this
// program, which reads the env file itself. secrets are the names of those that are secret and
// therefore left out.
func givenHere(c config.Config) (given []config.Value, secrets []string) {
	for _, v := range c.Values() {
		switch inFile := c.EnvFile != "" && strings.HasPrefix(v.From, c.EnvFile+":"); {
		case !v.Given || inFile:
		case v.Secret:
			secrets = append(secrets, v.Name)
		default:
			given = append(given, v)
		}
	}
	return given, secrets
}

func (a *app) printHTTPConfig(client mcpClient, at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return usage("--url %q is not the URL of a server; give one such as https://linus.example:8766", at)
	}
	if client.http == nil {
		return usage("%s starts programs only; leave --url out, and give --server %s", client.name, at)
	}
	if u.Path = strings.TrimSuffix(u.Path, "/"); u.Path == "" {
		u.Path = "/mcp"
	}
	if err := a.printEntry(client, client.http(u.String()), nil); err != nil || a.json {
		return err
	}
	a.note("The client needs the token of linus serve, or of linus token create, in its environment: %s.", tokenVariable)
	return nil
}

// printEntry prints a client's file with its entry for linus, and says where the file belongs.
func (a *app) printEntry(client mcpClient, entry any, leftOut []string) error {
	if client.adds != "" {
		inner, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
		client.files = append(slices.Clone(client.files), client.adds+" "+shellescape.Quote(string(inner)))
	}
	content := map[string]any{client.key: map[string]any{"linus": entry}}
	if a.json {
		return a.printJSON(map[string]any{"client": client.name, "places": client.files, "content": content, "left_out": append([]string{}, leftOut...)})
	}
	text, err := indented(content)
	add := fmt.Sprintf("add the entry \"linus\" to its %q", client.key)
	if client.toml {
		text, err = asTOML(client.key+".linus", entry)
		add = "add these lines to it"
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	a.note("Put it into\n  %s\nIf that file exists, %s.", strings.Join(client.files, "\n  "), add)
	_, err = a.stdout.Write(text)
	return err
}

// asTOML returns an entry as a TOML table. Strings and lists of strings are written as in JSON; an
// object becomes a table of its own.
func asTOML(name string, entry any) ([]byte, error) {
	var fields map[string]any
	data, err := json.Marshal(entry)
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	tables := map[string]any{}
	_, _ = fmt.Fprintf(&out, "[%s]\n", name)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if object, ok := fields[key].(map[string]any); ok {
			tables[key] = object
			continue
		}
		_, _ = fmt.Fprintf(&out, "%s = ", key)
		e := json.NewEncoder(&out) // ends the line
		e.SetEscapeHTML(false)
		if err := e.Encode(fields[key]); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(tables)) {
		table, err := asTOML(name+"."+key, tables[key])
		if err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(&out, "\n%s", table)
	}
	return out.Bytes(), nil
}

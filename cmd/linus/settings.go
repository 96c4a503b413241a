package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/secret"
)

// settings returns the settings of this process: flags take precedence over the
// environment, and the environment over the env file.
func (a *app) settings(ctx context.Context) (config.Config, error) {
	return secret.UnlessEnded(ctx, "the settings", func() (config.Config, error) { return config.Load(a.sources) })
}

// settingFlags adds the flags for settings to every command.
func (a *app) settingFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&a.sources.EnvFile, "env-file", "", "env file, lines NAME=value: LINUS_ENV_FILE (linus config path shows the default)")
	flags.Var(&settingFlag{a: a, flag: "--host", name: "PROXMOX_HOST"}, "host", "Proxmox VE host: PROXMOX_HOST")
	flags.Var(&settingFlag{a: a, flag: "--state-dir", name: "LINUS_STATE_DIR"}, "state-dir", "directory for the database, outputs and the engine: LINUS_STATE_DIR")
	flags.Var(&settingFlag{a: a, flag: "--log-level", name: "LINUS_LOG_LEVEL"}, "log-level", "debug, info, warn or error: LINUS_LOG_LEVEL")
	flags.Var(&settingFlag{a: a, flag: "--server", name: "LINUS_SERVER"}, "server", "URL of a server whose engine the commands use, as in https://linus.example:8766: LINUS_SERVER")
	flags.Var(&settingFlag{a: a, flag: "--token-file", name: "LINUS_TOKEN_FILE"}, "token-file", "file with the token for --server: LINUS_TOKEN_FILE")
	flags.Var(&settingFlag{a: a, flag: "--ca-file", name: "LINUS_CA_FILE"}, "ca-file", "CA certificates accepted for --server: LINUS_CA_FILE")
	flags.Var(&settingFlag{a: a, flag: "--set"}, "set", "any setting; may be repeated (linus config shows them all)")
	_ = root.RegisterFlagCompletionFunc("host", cobra.NoFileCompletions)
	_ = root.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("set", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, s := range config.Table() {
			names = append(names, s.Name+"=\t"+s.Text)
		}
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
	_ = root.MarkPersistentFlagDirname("state-dir")
	for _, file := range []string{"env-file", "token-file", "ca-file"} {
		_ = root.MarkPersistentFlagFilename(file)
	}
	_ = root.RegisterFlagCompletionFunc("server", cobra.NoFileCompletions)
}

// mcpFlags adds the flags that select MCP tools, to a command and its subcommands.
func (a *app) mcpFlags(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.Var(&settingFlag{a: a, flag: "--toolsets", name: "MCP_TOOLSETS"}, "toolsets", "only these toolsets, as in jobs,exec; there are "+strings.Join(job.Toolsets, ", ")+" (MCP_TOOLSETS)")
	flags.VarPF(&settingFlag{a: a, flag: "--read-only", name: "MCP_READ_ONLY", yes: true}, "read-only", "", "only tools that change nothing (MCP_READ_ONLY)").NoOptDefVal = "true"
	flags.VarPF(&settingFlag{a: a, flag: "--disable-destructive", name: "MCP_DISABLE_DESTRUCTIVE", yes: true}, "disable-destructive", "",
		"no tools that end, destroy or overwrite anything (MCP_DISABLE_DESTRUCTIVE)").NoOptDefVal = "true"
	_ = cmd.RegisterFlagCompletionFunc("toolsets", cobra.FixedCompletions(job.Toolsets, cobra.ShellCompDirectiveNoFileComp))
}

// settingFlag is a flag for a setting; without a name it takes NAME=value.
type settingFlag struct {
	a          *app
	flag, name string
	yes        bool // without a value it means true
}

func (f *settingFlag) String() string { return "" }

// Type returns the placeholder for the value in help.
func (f *settingFlag) Type() string {
	switch {
	case f.name == "":
		return "NAME=value"
	case f.yes:
		return "bool"
	}
	return "string"
}

// Set is called each time the flag is given.
func (f *settingFlag) Set(text string) error {
	name := f.name
	if name == "" {
		var ok bool
		if name, text, ok = strings.Cut(text, "="); !ok || name == "" {
			return errors.New("write NAME=value")
		}
	}
	f.a.sources.Flags = append(f.a.sources.Flags, config.Flag{Flag: f.flag, Name: name, Value: text})
	return nil
}

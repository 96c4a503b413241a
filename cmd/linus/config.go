package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
)

func (a *app) configCommand() *cobra.Command {
	var given bool
	cmd := group("config", "Show the settings in effect and where each comes from", a.configCheckCommand(), a.configPathCommand())
	cmd.Long = "Shows every setting in effect and where it comes from: a flag, the environment, the env file (path and line), or its default.\n" +
		"Flags take precedence over the environment, and the environment over the env file. Secrets are not shown."
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.settings(cmd.Context())
		if err != nil {
			return err
		}
		if c.Server != "" {
			a.note("these are the settings of this machine; those of the engine of %s are shown on its own machine", c.Server)
		}
		values := c.Values()
		if given {
			values = slices.DeleteFunc(values, func(v config.Value) bool { return !v.Given })
		}
		return a.printSettings(values)
	}
	cmd.Flags().BoolVar(&given, "given", false, "only settings that differ from their default")
	return cmd
}

func (a *app) printSettings(values []config.Value) error {
	if a.json {
		return a.printJSON(map[string]any{"settings": values})
	}
	return printAll(a, values, "", "", func(v config.Value) string {
		// As a line of an env file, so that it can be copied there.
		return fmt.Sprintf("%s=%s\t# %s", v.Name, oneLine(v.Value, 200), v.From)
	})
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the settings without starting anything; exit code 2 if any is wrong",
		Long: "Reads all settings and the files they name, and reports everything that is wrong with them at once. Nothing is started, and\n" +
			"the host is not contacted: linus host check does that.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var problems []config.Problem
			c, err := a.settings(cmd.Context())
			var wrong *config.Error
			switch {
			case errors.As(err, &wrong):
				problems = wrong.Problems
			case err != nil:
				return err
			default:
				problems = daemon.Problems(c)
			}
			if a.json {
				if err := a.printJSON(map[string]any{"ok": len(problems) == 0, "problems": append([]config.Problem{}, problems...)}); err != nil {
					return err
				}
			} else if len(problems) == 0 {
				return a.print(nil, "the settings are valid; linus host check checks the host")
			}
			for _, p := range problems {
				if !a.json {
					a.note("%s", p)
				}
			}
			if len(problems) > 0 {
				return exitError(exitUsage)
			}
			return nil
		},
	}
}

func (a *app) configPathCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "path",
		Short: "Show the path of the env file",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			path := a.sources.EnvFilePath()
			_, err := os.Stat(path)
			exists := err == nil
			switch {
			case path == "":
				a.note("no env file is read: LINUS_ENV_FILE is empty, or there is no home directory")
			case !exists:
				a.note("it does not exist; create it with lines NAME=value as linus config shows them, mode 0600")
			}
			return a.print(map[string]any{"path": path, "exists": exists}, path)
		},
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes files for distribution packages.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write man pages and shell completions below DIR, in the layout packages use",
		Hidden: true,
		Args:   oneArg("the directory, such as build/usr/share"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(cmd.Root(), args[0])
		},
	}
}

// writeManual writes a man page for each command, and shell completions, in the
// layout of /usr/share. Their date is SOURCE_DATE_EPOCH.
func writeManual(root *cobra.Command, dir string) error {
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	man := filepath.Join(dir, "man", "man1")
	if err := os.MkdirAll(man, 0o755); err != nil { //nolint:gosec // world-readable on purpose
		return fmt.Errorf("make the directory for man pages: %w", err)
	}
	commands := []*cobra.Command{root}
	if help, _, err := root.Find([]string{"help"}); err == nil {
		commands = append(commands, help) // the tree leaves it out
	}
	for _, c := range commands {
		if err := doc.GenManTree(c, &doc.GenManHeader{Section: "1", Source: "linus " + buildVersion(), Manual: "linus"}, man); err != nil {
			return fmt.Errorf("write man pages: %w", err)
		}
	}
	for _, c := range []struct {
		path  string
		write func(path string) error
	}{
		{filepath.Join("bash-completion", "completions", "linus"), func(p string) error { return root.GenBashCompletionFileV2(p, true) }},
		{filepath.Join("zsh", "vendor-completions", "_linus"), root.GenZshCompletionFile},
		{filepath.Join("fish", "vendor_completions.d", "linus.fish"), func(p string) error { return root.GenFishCompletionFile(p, true) }},
	} {
		path := filepath.Join(dir, c.path)
		err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // world-readable on purpose
		if err == nil {
			err = c.write(path)
		}
		if err != nil {
			return fmt.Errorf("write completions: %w", err)
		}
	}
	return nil
}

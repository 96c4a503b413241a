package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
)

func (a *app) storeMigrateCommand() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "migrate --from DIR",
		Short: "Copy a state directory into the PostgreSQL database of LINUS_DATABASE_URL",
		Long: "Copies the jobs, output, artifacts and pools of a state directory into an empty PostgreSQL database, and compares what\n" +
			"has arrived. No engine may run in the directory, which keeps all it has. Interrupted, it is continued by running it again.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return usage("--from is missing: the state directory to copy")
			}
			c, err := a.localSettings(cmd, "run it on the engine's machine")
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(from)
			if err != nil {
				return err
			}
			done, err := daemon.MigrateStore(cmd.Context(), a.daemon(c), dir)
			if err != nil {
				return err
			}
			return a.print(done, fmt.Sprintf("copied and compared: %d jobs with %d events, %d pools; %d files of %d bytes\n"+
				"next: start the engine of %s with LINUS_DATABASE_URL set. It has the login keys of the VMs that exist (keys), and makes\n"+
				"keys/installation, which engines on other machines need. Keep linus.db and jobs until you have seen that all is there.",
				done.Jobs, done.Events, done.Pools, done.Files, done.Bytes, dir))
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "state directory to copy")
	_ = cmd.MarkFlagDirname("from")
	return cmd
}

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			return a.print(map[string]string{"version": buildVersion(), "go": runtime.Version(), "platform": platform},
				fmt.Sprintf("linus %s (%s, %s)", buildVersion(), runtime.Version(), platform))
		},
	}
}

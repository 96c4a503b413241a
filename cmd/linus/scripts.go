package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"linus/embed"
)

func (a *app) scriptsCommand() *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the scripts that run on the host and in VMs",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			type row struct {
				Name   string `json:"name"`
				SHA256 string `json:"sha256"`
				Bytes  int    `json:"bytes"`
			}
			var rows []row
			for _, name := range embed.Names() {
				s, err := embed.Script(name)
				if err != nil {
					return err
				}
				rows = append(rows, row{s.Name, s.SHA256, len(s.Body)})
			}
			return printAll(a, rows, "", "NAME\tBYTES\tSHA256", func(r row) string { return fmt.Sprintf("%s\t%d\t%s", r.Name, r.Bytes, r.SHA256) })
		},
	}
	show := &cobra.Command{
		Use:   "print NAME",
		Short: "Print a script as it is uploaded: self-contained, byte for byte",
		Args:  oneArg("a script's name; linus scripts list shows them"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return embed.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := embed.Script(args[0])
			switch {
			case errors.Is(err, embed.ErrUnknownScript):
				return usage("%w", err)
			case err != nil:
				return err
			case a.json:
				return a.printJSON(map[string]string{"name": s.Name, "sha256": s.SHA256, "body": string(s.Body)})
			}
			_, err = a.stdout.Write(s.Body)
			return err
		},
	}
	return group("scripts", "List and print the scripts that run on the host and in VMs", list, show)
}

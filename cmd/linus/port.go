package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) vmExposeCommand() *cobra.Command {
	var spec job.PortSpec
	cmd := &cobra.Command{
		Use:   "expose NAME|ID PORT",
		Short: "Give a port of a VM a URL, for those who may reach the VM",
		Long: "Prints a URL of linus serve at which a browser that has logged in there, and may reach the VM, gets what listens at the port of\n" +
			"the VM's own loopback. WebSockets and server-sent events pass. It stays until linus vm unexpose, or the VM's end. With EXPOSE_DOMAIN\n" +
			"the URL has a host name of its own; without it, a path, and the page has no cookies and no storage: linus help http.",
		Example: "  linus vm expose dev 3000\n  linus vm expose dev 8080 --as web",
		Args:    theseArgs("the VM's name or ID", "the port"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) (err error) {
			if spec.Port, err = strconv.Atoi(args[1]); err != nil {
				return usage("%q: a port is a number from 1 to 65535", args[1])
			}
			spec.VM = args[0]
			port, err := s.ExposePort(ctx, spec)
			if err != nil {
				return err
			}
			if port.Note != "" {
				a.note("%s", port.Note)
			}
			return a.print(port, port.URL)
		}),
	}
	cmd.Flags().StringVar(&spec.Name, "as", "", "the port's name: a-z, digits and dashes (default: its number)")
	return a.completeVMs(cmd)
}

func (a *app) vmPortsCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "ports NAME|ID",
		Short: "List the ports of a VM that have a URL",
		Args:  oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			all, err := s.ListPorts(ctx, args[0])
			if err != nil {
				return err
			}
			return printAll(a, all, "no port has a URL; linus vm expose gives one", "NAME\tPORT\tURL", func(p job.ExposedPort) string {
				return fmt.Sprintf("%s\t%d\t%s", p.Name, p.Port, orDash(p.URL))
			})
		}),
	})
}

func (a *app) vmUnexposeCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "unexpose NAME|ID PORT",
		Short: "Remove a port's URL, and close the connections open there",
		Args:  theseArgs("the VM's name or ID", "the port's name"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			return saying(a, func(p job.ExposedPort) string {
				return fmt.Sprintf("port %d of %s no longer has a URL", p.Port, args[0])
			})(s.UnexposePort(ctx, args[0], args[1]))
		}),
	})
}

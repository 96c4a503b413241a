package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"linus/internal/control"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/lazyregexp"
)

func (a *app) vmForwardCommand() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "forward NAME|ID [LOCAL:]PORT...",
		Short: "Forward ports of this machine's loopback to a VM",
		Long: "Listens on 127.0.0.1 and forwards each connection to the VM's own loopback, through the Proxmox host, until Ctrl-C. PORT is\n" +
			"the VM's port, LOCAL this machine's (default: the same). Prints what it listens on once it does.",
		Example: "  linus vm forward dev 8080:80 5432",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s takes the VM's name or ID and one or more ports, as in: %s dev 8080:80", cmd.CommandPath(), cmd.CommandPath())
			}
			_, err := parseForwards(args[1:])
			return err
		},
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			forwards, err := parseForwards(args[1:])
			if err != nil {
				return err
			}
			through := s.remote()
			if info, err := s.VM(ctx, args[0]); err == nil && (info.Naps() || !info.SuspendedAt.IsZero()) {
				through = true // the engine sees the VM's use, and each connection resumes the VM
			}
			if through && !show {
				return a.forwardRemote(ctx, s, args[0], forwards)
			}
			return a.withLogin(ctx, s, args[0], show, func(l daemon.Login) ([]string, error) { return forwardCommand(l, forwards) })
		}),
	}
	cmd.Flags().BoolVar(&show, "print", false, "show the ssh command instead of running it")
	return a.completeVMs(cmd)
}

// forward is a local port that is forwarded to a port of a VM.
type forward struct{ local, there uint16 }

var portPair = lazyregexp.New(`^(?:(\d+):)?(\d+)$`)

// parseForwards parses pairs such as 8080:80.
func parseForwards(args []string) ([]forward, error) {
	forwards := make([]forward, len(args))
	for i, arg := range args {
		m := portPair.FindStringSubmatch(arg)
		if m == nil {
			return nil, usage("%q is not a pair of ports; give LOCAL:PORT as in 8080:80, or PORT", arg)
		}
		if m[1] == "" {
			m[1] = m[2]
		}
		local, wrongLocal := strconv.ParseUint(m[1], 10, 16)
		there, wrong := strconv.ParseUint(m[2], 10, 16)
		if wrongLocal != nil || wrong != nil || local == 0 || there == 0 {
			return nil, usage("%q: a port is a number from 1 to 65535", arg)
		}
		forwards[i] = forward{uint16(local), uint16(there)}
	}
	return forwards, nil
}

// forwardCommand returns the ssh command that forwards. ssh runs its LocalCommand once it listens
// on all ports; that command prints the ports.
func forwardCommand(l daemon.Login, forwards []forward) ([]string, error) {
	options, err := l.Options()
	if err != nil {
		return nil, err
	}
	argv := append([]string{"ssh", "-N"}, options...)
	said := make([]string, len(forwards))
	for i, f := range forwards {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.local)))
		argv = append(argv, "-L", fmt.Sprintf("%s:localhost:%d", at, f.there))
		said[i] = fmt.Sprintf("echo '%s is port %d of VM %s'", at, f.there, l.VM.Name)
	}
	return append(argv, "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
		"-o", "PermitLocalCommand=yes", "-o", "LocalCommand="+strings.Join(said, "; "),
		"-p", strconv.Itoa(l.Config.VMSSHPort), l.VM.User+"@"+l.VM.IP), nil
}

// forwardRemote forwards ports through the engine.
func (a *app) forwardRemote(ctx context.Context, s *session, ref string, forwards []forward) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, f := range forwards {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.local))))
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		defer l.Close() //nolint:errcheck // a listener
		conns.Go(func() {
			for {
				near, err := l.Accept()
				if err != nil {
					return
				}
				conns.Go(func() { a.carry(ctx, s, near.(*net.TCPConn), ref, int(f.there)) })
			}
		})
		_, _ = fmt.Fprintf(a.stdout, "%s is port %d of VM %s\n", l.Addr(), f.there, ref)
	}
	<-ctx.Done()
	return exitError(exitDetached)
}

// carry connects a local connection with a port of a VM until both directions have ended.
func (a *app) carry(ctx context.Context, s *session, near job.Tunnel, ref string, port int) {
	defer near.Close() //nolint:errcheck // all of it was copied, or it is lost anyway
	far, err := s.DialVM(ctx, ref, port)
	if err != nil {
		a.note("not connected: %s", words.In(err.Error()))
		return
	}
	defer far.Close()                 //nolint:errcheck // likewise
	_ = control.Relay(ctx, near, far) // the client of the port sees that the connection ended
}

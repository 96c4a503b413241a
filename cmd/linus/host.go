package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
)

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check whether the Proxmox host can run jobs; exit code 1 if not",
		Long: "Logs in to the host and checks its version, tools, storage, bridge, template and more, and says for each finding what to do.\n" +
			"Nothing on the host is changed.",
		Args: noArgs,
		RunE: a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
			r, err := finding(s.CheckHost(ctx))
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(r)
			} else {
				err = a.printReport(r)
			}
			if err == nil && !r.OK {
				err = exitError(exitFailure)
			}
			return err
		}),
	}
}

// finding turns the error of a host that could not be checked into a report.
func finding(r job.HostReport, err error) (job.HostReport, error) {
	var host *job.HostError
	if !errors.As(err, &host) {
		return r, err
	}
	c := job.Check{Name: "host", Level: "fail", Text: words.In(host.Text), Remedy: words.In(host.Remedy)}
	switch host.Class {
	case job.HostUnreachable, job.HostAuth, job.HostKeyChanged:
		c.Name = "ssh"
	}
	return job.HostReport{Host: host.Host, Node: r.Node, Checks: []job.Check{c}}, nil
}

func (a *app) printReport(r job.HostReport) error {
	c := a.colours(a.stdout)
	return printAll(a, r.Checks, "", "", func(check job.Check) string {
		text := fmt.Sprintf("%s\t%s\t%s", c.paint(check.Level), strings.TrimSpace(check.Node+" "+check.Name), oneLine(check.Text, 300))
		if check.Remedy != "" {
			text += fmt.Sprintf("\n%s\t\t-> %s", c.paint(""), oneLine(check.Remedy, 300))
		}
		return text
	})
}

func (a *app) trustCommand() *cobra.Command {
	var yes bool
	var expected string
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Show the Proxmox host's SSH key and add it to known_hosts",
		Long: "Asks the host for its SSH key, shows the fingerprint, and adds the key to PROXMOX_KNOWN_HOSTS once you have compared it\n" +
			"with what the host itself shows: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub (on its console).",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.localSettings(cmd, "run it on the engine's machine")
			if err == nil {
				err = c.NeedHost()
			}
			if err != nil {
				return err
			}
			for _, host := range c.Hosts() {
				if err := a.trust(cmd.Context(), c, host, yes, expected); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "add the key without asking: only on a network nobody can tamper with")
	cmd.Flags().StringVar(&expected, "fingerprint", "", "add the key without asking if this is its fingerprint (SHA256:...); of several hosts, all of theirs, separated by commas")
	return cmd
}

func (a *app) trust(ctx context.Context, c config.Config, host string, yes bool, expected string) error {
	key, err := daemon.ScanHostKey(ctx, c, host)
	if err != nil {
		return fmt.Errorf("%w; is PROXMOX_HOST %s correct, and is sshd running there?", err, host)
	}
	answer := func(trusted bool, text string) error {
		return a.print(map[string]any{"host": key.Addr, "fingerprint": key.Fingerprint, "known_hosts": c.ProxmoxKnownHosts, "trusted": trusted}, text)
	}
	_, hash, _ := strings.Cut(key.Fingerprint, " ")
	switch {
	case expected != "" && !slices.Contains(strings.Split(expected, ","), key.Fingerprint) && !slices.Contains(strings.Split(expected, ","), hash):
		return fmt.Errorf("%s presented %s, not %s: do not connect before you know why", key.Addr, key.Fingerprint, expected)
	case key.Known:
		return answer(true, key.Addr+" is already trusted: "+key.Fingerprint)
	case len(key.Other) == 0 && !yes && expected == "":
		if err := a.confirm(ctx, fmt.Sprintf("%s shows\n  %s\nCompare with this, on the host's console:\n  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\nTrust it? [y/N] ", key.Addr, key.Fingerprint), "--fingerprint SHA256:... (or --yes)"); err != nil {
			return err
		}
	}
	if err := daemon.TrustHostKey(c, key); err != nil {
		return err
	}
	return answer(true, fmt.Sprintf("%s is trusted: %s, in %s", key.Addr, key.Fingerprint, c.ProxmoxKnownHosts))
}

// confirm asks on the terminal. Any answer but yes is an error. Without a terminal the error names
// the option to give instead.
func (a *app) confirm(ctx context.Context, question, option string) error {
	_, _ = io.WriteString(a.stderr, question)
	if !isTerminal(a.stdin) {
		_, _ = io.WriteString(a.stderr, "\n")
		return usage("cannot ask for confirmation here; give %s", option)
	}
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answered <- line
	}()
	select {
	case line := <-answered:
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("not confirmed; nothing was changed")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

func (a *app) hostTestCommand() *cobra.Command {
	var spec job.HostTestSpec
	var all bool
	var report string
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Test everything VMs can do on the Proxmox host, in VMs that are removed afterwards",
		Long: "Makes VMs of the template in use on a node, and takes them through all that they can do: boot, agent, address, job, output, exit code,\n" +
			"cancel, snapshot, suspend and resume, checkpoint and restore (two side by side, every identity compared), fork, volume, each egress mode,\n" +
			"lease and destroy. It takes minutes. What cannot be done there is skipped, with the reason. At the end nothing is left, and the host is\n" +
			"checked for that; Ctrl-C ends the test and leaves nothing either. The result is kept, and host check shows it for as long as it holds.",
		Example: "  linus host test\n  linus host test --all-nodes --report report.txt",
		Args:    noArgs,
		RunE: a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
			nodes := []string{spec.Node}
			if all {
				infos, err := s.Nodes(ctx)
				if err != nil {
					return err
				}
				nodes = nil
				for _, n := range infos {
					nodes = append(nodes, n.Name)
				}
			}
			var file *os.File
			if report != "" { // before the test, which takes minutes
				var err error
				if file, err = os.OpenFile(report, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600); err != nil {
					return err
				}
			}
			var tests []job.HostTest
			var failed, err error
			for _, spec.Node = range nodes {
				t, err := a.testHost(ctx, s, spec)
				failed = errors.Join(failed, err)
				if t.ID != "" {
					tests = append(tests, t)
				}
				if ctx.Err() != nil {
					break
				}
			}
			if file != nil {
				_, err = file.WriteString(hostReport(tests, nodes))
				err = errors.Join(err, file.Close())
			}
			if a.json {
				err = errors.Join(err, a.printJSON(tests))
			}
			if err = errors.Join(failed, err); err == nil && slices.ContainsFunc(tests, func(t job.HostTest) bool { return t.Status != job.HostTestPassed }) {
				err = exitError(exitFailure)
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVar(&spec.Node, "node", "", "the node to test, of several (default: the first that is online)")
	f.BoolVar(&all, "all-nodes", false, "test each node, one after the other")
	f.StringVar(&spec.Storage, "storage", "", "the storage for the volume (default PROXMOX_STORAGE); VMs are stored where their template is")
	f.BoolVar(&spec.Quick, "quick", false, "only boot, job, cancel and destroy")
	f.StringVar(&report, "report", "", "write the result to this file as well, for a bug report: without names, addresses and keys")
	cmd.MarkFlagsMutuallyExclusive("node", "all-nodes")
	return cmd
}

// testHost tests a node and shows each step when it has ended. Ctrl-C ends the test, and testHost
// waits until everything that the test made is removed.
func (a *app) testHost(ctx context.Context, s *session, spec job.HostTestSpec) (job.HostTest, error) {
	t, err := s.TestHost(ctx, spec)
	if err != nil {
		return t, err
	}
	a.note("test of node %s; Ctrl-C ends it and removes everything it made", t.Node)
	begun := context.WithoutCancel(ctx)
	asked := ctx.Done()
	for shown := 0; ; {
		tests, err := s.HostTests(begun)
		if err != nil {
			return t, err
		}
		t.Status = ""
		for _, one := range tests {
			if one.ID == t.ID {
				t = one
			}
		}
		if t.Status == "" {
			return t, errors.New("the test is gone: the engine was replaced")
		}
		for ; shown < len(t.Steps) && t.Steps[shown].Result != job.StepRunning; shown++ {
			if !a.json {
				_, _ = fmt.Fprintln(a.stdout, a.stepText(t.Steps[shown]))
			}
		}
		if t.Status != job.HostTestRunning {
			a.note("%s", t.Status)
			return t, nil
		}
		select {
		case <-asked:
			asked = nil
			a.note("the test is ending; everything it made is being removed")
			if _, err := s.CancelHostTest(begun, t.ID); err != nil { // what the engine has left is removed all the same
				a.note("%s", words.In(err.Error()))
			}
		case <-time.After(poolPause):
		}
	}
}

func (a *app) stepText(s job.HostTestStep) string {
	text := fmt.Sprintf("%-16s %s %7.1f s  %s", s.Name, a.colours(a.stdout).paint(fmt.Sprintf("%-7s", s.Result)), s.Seconds, oneLine(s.Text, 300))
	if s.Remedy != "" {
		text += "\n                                     -> " + oneLine(s.Remedy, 300)
	}
	return strings.TrimRight(text, " ")
}

// hostReport returns a report that people can attach to a bug report.
func hostReport(tests []job.HostTest, nodes []string) string {
	var b strings.Builder
	for _, t := range tests {
		hide := hiding(append(nodes, t.Node, t.Storage, t.Template))
		fmt.Fprintf(&b, "linus %s, Proxmox VE %s, VMs on %s: %s on %s\n", buildVersion(), t.Of.Proxmox, t.Of.Storage, t.Status, t.CreatedAt.UTC().Format(time.DateOnly))
		for _, s := range t.Steps {
			fmt.Fprintf(&b, "%-16s %-7s %7.1f s", s.Name, s.Result, s.Seconds)
			if s.Result != job.StepPassed {
				fmt.Fprintf(&b, "  %s", hide(oneLine(s.Text+" "+s.Remedy, 1000)))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// secretive matches what may reveal whose host a text is about: quoted text, addresses, names with
// a dot or an @, paths, keys and long hexadecimal words.
var secretive = lazyregexp.New(`'[^']*'|"[^"]*"|\S*@\S*|[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){2,}|\b[0-9]+(\.[0-9]+){3}\b|\b[\w-]+(\.[\w-]+)*\.[A-Za-z][\w-]+\b|(/[\w.:-]+)+|\b[A-Za-z0-9+/=]{20,}|\b(\w+-){2,}\w+\b`)

// beforeName matches a name that looks like any word, with the word before it. noNames are words
// that are not names.
var beforeName = lazyregexp.New(`\b(storage|node|bridge|host|VM|template|volume|pool|user|on) ([\w.-]+)`)

const noNames = " its their this another all has is was are does and or of with in on to that which for from at as by a an the not no "

// hiding returns a function that replaces all of these, and names.
func hiding(names []string) func(string) string {
	return func(text string) string {
		text = secretive.ReplaceAllString(text, "…")
		for _, name := range names {
			if name != "" {
				text = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllString(text, "…")
			}
		}
		return beforeName.ReplaceAllStringFunc(text, func(s string) string {
			kind, name, _ := strings.Cut(s, " ")
			if strings.Contains(noNames, " "+name+" ") {
				return s
			}
			return kind + " …"
		})
	}
}

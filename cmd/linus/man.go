package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// writeManual writes a man page for each command, and shell completions, in the layout of
// /usr/share. The pages' date is SOURCE_DATE_EPOCH, or now if that is unset.
func writeManual(root *cobra.Command, dir string) error {
	root.InitDefaultCompletionCmd()
	man := filepath.Join(dir, "man", "man1")
	if err := os.MkdirAll(man, 0o755); err != nil { //nolint:gosec // world-readable on purpose
		return fmt.Errorf("make the directory for man pages: %w", err)
	}
	date := time.Now()
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		epoch, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds; give one, or unset it", text)
		}
		date = time.Unix(epoch, 0)
	}
	if err := writeManPages(root, man, date.UTC().Format("Jan 2006")); err != nil {
		return fmt.Errorf("write man pages: %w", err)
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

func writeManPages(c *cobra.Command, dir, date string) error {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			if err := writeManPages(sub, dir, date); err != nil {
				return err
			}
		}
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	file, err := os.Create(filepath.Join(dir, name+".1"))
	if err == nil {
		_, err = file.WriteString(manPage(c, name, date))
		err = errors.Join(err, file.Close())
	}
	return err
}

// manPage returns a command's page in the language of man(7).
func manPage(c *cobra.Command, name, date string) string {
	c.InitDefaultHelpFlag()
	var b strings.Builder
	fmt.Fprintf(&b, ".nh\n.TH %q \"1\" %q %q \"linus\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), date, "linus "+buildVersion(), roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fB%s\\fP\n.SH DESCRIPTION\n", roff(c.UseLine()))
	for i, part := range strings.Split(cmp.Or(c.Long, c.Short), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.Contains("\n"+part, "\n ") { // a table
			part = ".nf\n" + roff(part) + "\n.fi"
		} else {
			part = roff(part)
		}
		b.WriteString(part + "\n")
	}
	for _, of := range []struct {
		title string
		flags *pflag.FlagSet
	}{{"OPTIONS", c.NonInheritedFlags()}, {"OPTIONS INHERITED FROM PARENT COMMANDS", c.InheritedFlags()}} {
		if of.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, ".SH %s\n", of.title)
			of.flags.VisitAll(func(f *pflag.Flag) { manOption(&b, f) })
		}
	}
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLE\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	var also []string
	if c.HasParent() {
		also = append(also, c.Parent().CommandPath())
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			also = append(also, sub.CommandPath())
		}
	}
	for i, path := range also {
		also[i] = `\fB` + roff(strings.ReplaceAll(path, " ", "-")) + `(1)\fP`
	}
	if len(also) > 0 {
		b.WriteString(".SH SEE ALSO\n" + strings.Join(also, ", ") + "\n")
	}
	return b.String()
}

func manOption(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden || f.Deprecated != "" {
		return
	}
	name, value := `\fB`+roff("--"+f.Name)+`\fP`, "="+roff(f.DefValue)
	if f.Shorthand != "" {
		name = `\fB` + roff("-"+f.Shorthand) + `\fP, ` + name
	}
	if f.Value.Type() == "string" {
		value = "=" + roff(strconv.Quote(f.DefValue))
	}
	if f.NoOptDefVal != "" {
		value = "[" + value + "]"
	}
	fmt.Fprintf(b, ".TP\n%s%s\n%s\n", name, value, roff(f.Usage))
}

// roff escapes a text so that man shows it unchanged.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") { // not a request
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

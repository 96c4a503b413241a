package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	shown "linus/internal/term"
	"linus/internal/view"
	"linus/internal/vm"
)

// print writes a verb's result to stdout: v as JSON with -o json, otherwise text.
func (a *app) print(v any, text string) error {
	if a.json {
		return a.printJSON(v)
	}
	_, err := fmt.Fprintln(a.stdout, shown.Text(text))
	return err
}

// saying returns a function that prints a call's result, if that is no error: as JSON, or formatted
// by text.
func saying[T any](a *app, text func(T) string) func(v T, err error) error {
	return func(v T, err error) error {
		if err != nil {
			return err
		}
		return a.print(v, text(v))
	}
}

// printAll prints a list: as JSON, or as a table of tab-separated rows below header, unless that is
// empty. For an empty list it reports none instead, unless that is empty, too.
func printAll[T any](a *app, all []T, none, header string, row func(T) string) error {
	if a.json {
		return a.printJSON(append([]T{}, all...))
	}
	if len(all) == 0 && none != "" {
		if a.unasked > 0 {
			none = fmt.Sprintf("none of the %d match", a.unasked)
		}
		a.note("%s", none)
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	if header != "" {
		_, _ = fmt.Fprintln(w, header)
	}
	for _, one := range all {
		_, _ = fmt.Fprintln(w, row(one))
	}
	return w.Flush()
}

// details returns names and values in two columns. write calls row for each of them; those without
// a value are skipped. w takes lines of other forms.
func details(write func(w io.Writer, row func(name, value string))) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	write(w, func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	})
	_ = w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

func (a *app) printJSON(v any) error {
	text, err := indented(view.Of(v))
	if err == nil {
		_, err = a.stdout.Write(shown.JSON(text))
	}
	return err
}

// indented returns a value as JSON for people, without HTML escapes.
func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintln(a.stderr, shown.Text(fmt.Sprintf(format, args...)))
}

// output returns the writer for a task's output that is meant for w. A terminal gets no sequences
// that it would obey, unless with --raw. done is to be called at the end of the output.
func (a *app) output(w io.Writer) (to io.Writer, done func() error) {
	if a.raw || !isTerminal(w) {
		return w, func() error { return nil }
	}
	h := &shown.Harmless{To: w}
	return h, h.Close
}

// warnEgress warns of a VM that may connect only to given names, and was given none.
func (a *app) warnEgress(n vm.Network) {
	if n.Egress == vm.EgressAllow && len(n.Allow) == 0 {
		a.note("warning: the VM reaches nothing: egress allow needs names or addresses, as in --allow github.com,*.npmjs.org")
	}
}

func (a *app) rawFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.raw, "raw", false, "show output on a terminal unfiltered, with all escape sequences that the terminal obeys")
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the number of columns of the terminal, or 80 if that is unknown.
func width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// oneLine makes untrusted text safe to show on one line of a terminal.
func oneLine(text string, columns int) string {
	text = strings.Join(strings.Fields(shown.Line(text)), " ")
	if r := []rune(text); len(r) > columns {
		return string(r[:max(columns-1, 0)]) + "…"
	}
	return text
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// local formats a time for people. The zero time is "".
func local(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// manifestFlags are a command's options for fields of a manifest, with the values given.
type manifestFlags struct {
	fields []field.Field
	given  job.Manifest
	files  []string
}

// register adds the options of a command. Values that are not plain have flag types of their own.
func (f *manifestFlags) register(a *app, cmd *cobra.Command, c field.Commands) {
	flags := cmd.Flags()
	flags.SetInterspersed(c == field.CreateVM || c == field.CreatePool) // options after a task's command are the command's: it belongs after --
	for _, row := range field.For(c) {
		if row.Offers == field.LocalFiles {
			flags.StringArrayVar(&f.files, row.Flag, nil, row.Help)
			continue // to be completed with files
		}
		f.fields = append(f.fields, row)
		addFlag(cmd, row, &f.given)
		with := cobra.NoFileCompletions
		switch {
		case row.Offers == field.VMs:
			with = a.vmNames()
		case row.Offers == field.Templates:
			with = a.templateNames()
		case row.Values != nil:
			with = cobra.FixedCompletions(row.Values, cobra.ShellCompDirectiveNoFileComp)
		}
		_ = cmd.RegisterFlagCompletionFunc(row.Flag, with)
	}
}

// addFlag adds the option for a field of the struct that given points to.
func addFlag(cmd *cobra.Command, row field.Field, given any) {
	flags, at := cmd.Flags(), row.Of(given)
	switch to := at.Addr().Interface().(type) {
	case *int:
		if row.Seconds {
			flags.Var((*secondsFlag)(to), row.Flag, row.Help)
		} else {
			flags.IntVar(to, row.Flag, 0, row.Help)
		}
	case *bool:
		flags.BoolVar(to, row.Flag, false, row.Help)
	case *[]vm.Mount:
		flags.Var((*mountsFlag)(to), row.Flag, row.Help)
	case *map[string]string:
		flags.Var((*pairsFlag)(to), row.Flag, row.Help)
	case *[]string:
		if row.Each {
			flags.StringArrayVar(to, row.Flag, nil, row.Help)
		} else {
			flags.StringSliceVar(to, row.Flag, nil, row.Help)
		}
	default:
		if row.On == "" {
			flags.StringVar(at.Addr().Convert(reflect.TypeFor[*string]()).Interface().(*string), row.Flag, "", row.Help)
			return
		}
		makes := func(flag, value, help string) {
			flags.BoolFunc(flag, help, func(text string) error {
				on, err := strconv.ParseBool(text)
				if on && (row.Also == nil || at.String() != row.Also.Makes) { // row.Also.Makes includes value
					at.SetString(value)
				} else if !on && at.String() == value {
					at.SetString("")
				}
				return err
			})
		}
		makes(row.Flag, row.On, row.Help)
		if also := row.Also; also != nil {
			makes(also.Flag, also.Makes, also.Help)
		}
	}
}

// take copies the given options for fields into the struct that to points to. An empty value is an
// error: omitting the option means the default.
func take(cmd *cobra.Command, fields []field.Field, given, to any) error {
	for _, row := range fields {
		if len(typedFor(cmd, row)) == 0 {
			continue
		}
		from, at := row.Of(given), row.Of(to)
		switch {
		case from.Kind() == reflect.Map:
			if at.IsNil() {
				at.Set(reflect.MakeMap(at.Type()))
			}
			for pair := from.MapRange(); pair.Next(); {
				at.SetMapIndex(pair.Key(), pair.Value())
			}
		case slices.Contains([]string{"", "0"}, fmt.Sprint(from)) && !row.Zero && row.On == "":
			return usage("--%s: give a value, or omit it for the default", row.Flag)
		case row.Each:
			at.Set(reflect.AppendSlice(at, from))
		default:
			at.Set(from)
		}
	}
	return nil
}

// override writes the given options into the manifest. terminal, if it is one, gives the size of
// --tty.
func (f *manifestFlags) override(cmd *cobra.Command, m *job.Manifest, terminal any) error {
	if err := take(cmd, f.fields, &f.given, m); err != nil {
		return err
	}
	if f.given.VMName != "" || f.given.TTL != 0 {
		m.Lifecycle = vm.Persistent
	}
	if f.given.KeepFor != 0 && !m.Keep.Keeps() {
		m.Keep = job.KeepOnFailure
	}
	if f.given.TTY && f.given.TTYSize == "" {
		m.TTYSize = terminalSize(terminal)
	}
	for _, entry := range f.files {
		file, err := localFile(entry)
		if err != nil {
			return err
		}
		m.Files = append(m.Files, file)
	}
	return nil
}

// secondsFlag is a time in whole seconds, given as a number or as a duration such as 1h30m.
type secondsFlag int

func (s *secondsFlag) String() string { return strconv.Itoa(int(*s)) }

// Type returns the placeholder for the value in help.
func (s *secondsFlag) Type() string { return "duration" }

// Set is called each time the flag is given.
func (s *secondsFlag) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		d, wrong := job.ParseDuration(text)
		if wrong != nil || d%time.Second != 0 {
			return errors.New("give a number of seconds, or a duration such as 90m, 1h30m or 2d")
		}
		n = int(d / time.Second)
	}
	*s = secondsFlag(n)
	return nil
}

// pairsFlag is NAME=VALUE, given once or more.
type pairsFlag map[string]string

func (p *pairsFlag) String() string { return "" }

// Type returns the placeholder for the value in help.
func (p *pairsFlag) Type() string { return "NAME=VALUE" }

// Set is called each time the flag is given.
func (p *pairsFlag) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("it has no value; give NAME=VALUE")
	}
	if *p == nil {
		*p = pairsFlag{}
	}
	(*p)[name] = value
	return nil
}

// terminalSize returns a terminal's size in the manifest's form, or "" if stream is no terminal.
func terminalSize(stream any) string {
	if file, ok := stream.(*os.File); ok {
		if columns, rows, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 && rows > 0 {
			return fmt.Sprintf("%dx%d", rows, columns)
		}
	}
	return ""
}

var fileArg = lazyregexp.New(`^(.+?):(/[^:]*)(?::(0?[0-7]{3,4}))?$`)

// localFile parses LOCAL:REMOTE[:MODE] and reads the file. Without MODE the file keeps its own.
func localFile(arg string) (job.File, error) {
	part := fileArg.FindStringSubmatch(arg)
	if part == nil {
		return job.File{}, usage("--file %q: give LOCAL:REMOTE[:MODE] with REMOTE an absolute path, as in ./in.csv:/root/in.csv", arg)
	}
	file := job.File{Path: part[2], Mode: part[3]}
	info, err := os.Stat(part[1])
	if err != nil {
		return file, usage("--file: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > job.MaxFiles {
		return file, usage("--file %s: is not a regular file of at most %d bytes", part[1], job.MaxFiles)
	}
	if file.Mode == "" {
		file.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
	}
	data, err := os.ReadFile(part[1])
	if err != nil {
		return file, usage("--file: %w", err)
	}
	file.Content = base64.StdEncoding.EncodeToString(data)
	return file, nil
}

package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"linus/internal/field"
	"linus/internal/job"
)

// typedFor returns those of a command's options for a field that were given.
func typedFor(cmd *cobra.Command, row field.Field) (given []string) {
	flags := []string{row.Flag}
	if row.Also != nil {
		flags = append(flags, row.Also.Flag)
	}
	for _, flag := range flags {
		if flag != "" && cmd.Flags().Changed(flag) {
			given = append(given, "--"+flag)
		}
	}
	return given
}

// asTyped returns an error's text with what the user typed in place of field names: the options
// that were given, and NAME for the name of what is to be created. A field that was not given is
// named by its option, or as in a manifest file that was given.
func asTyped(cmd *cobra.Command, text string) string {
	file := cmd.Flags().Lookup("manifest")
	fromFile := file != nil && file.Changed
	has := func(row field.Field) bool { return row.Flag != "" && cmd.Flags().Lookup(row.Flag) != nil }
	return job.Naming(func(path, value string, subject bool) string {
		of, name, _ := strings.Cut(path, ".")
		if (name == "name" || name == "vmName") && strings.Contains(cmd.Use, " NAME") && cmd.Flags().NArg() > 0 {
			return "NAME"
		}
		rows := field.All()
		if of == "pool" {
			rows = append(field.PoolSize(), rows...)
		}
		base, _, _ := strings.Cut(name, "[")
		var options []string
		known, key := false, ""
		for _, row := range rows {
			rest, within := strings.CutPrefix(base, row.Name+".")
			if row.Label == "" || row.Name != base && !within && !strings.HasPrefix(row.Name, base+".") {
				continue
			}
			known = true
			if options = append(options, typedFor(cmd, row)...); within && len(options) > 0 {
				key = " " + rest
			}
			switch {
			case len(options) > 0 || fromFile || !has(row) || of == "volume":
			case value == "" && row.Name == base:
				return "--" + row.Flag
			case value == row.On || value == "true":
				return "give --" + row.Flag
			case value != "":
				return "give --" + row.Flag + " " + value
			}
		}
		switch {
		case len(options) > 0 && value == "":
			return strings.Join(slices.Compact(options), ", ") + key
		case known || subject:
			return job.Written(name, value, false)
		}
		return path
	}).In(text)
}

// missing returns the required options that a command was not given.
func missing(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if required := f.Annotations[cobra.BashCompOneRequiredFlag]; len(required) > 0 && !f.Changed {
			names = append(names, "--"+f.Name)
		}
	})
	return names
}

// wanted says what an option takes that was given something else.
func wanted(e *pflag.InvalidValueError) string {
	switch kind := e.GetFlag().Value.Type(); kind {
	case "int", "int64", "uint", "uint16":
		return "give a whole number"
	case "bool", "boolfunc":
		return "give true or false, or no value for true"
	case "float64":
		return "give a number"
	}
	return errors.Unwrap(e).Error() // an error of linus's own flags
}

// durationFlag is a time that can also be given in days and weeks.
type durationFlag struct{ pflag.Value }

// Set is called each time the flag is given.
func (d durationFlag) Set(text string) error {
	at, err := job.ParseDuration(text)
	if err != nil {
		return err
	}
	return d.Value.Set(at.String())
}

// withDays lets all time options of a command and its subcommands take days and weeks.
func withDays(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "duration" {
			if _, ours := f.Value.(*secondsFlag); !ours {
				f.Value = durationFlag{f.Value}
				if f.DefValue == "0s" {
					f.DefValue = "0" // which help leaves out
				}
			}
		}
	})
	for _, sub := range cmd.Commands() {
		withDays(sub)
	}
}

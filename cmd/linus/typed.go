package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// fieldNames are names of fields in errors of the domain: of a manifest, a pool or a volume.
var fieldNames = lazyregexp.New(`\b(?:manifest|pool|volume)\.[A-Za-z]+(?:\.[A-Za-z]+|\[[0-9]+\])*`)

// asTyped returns an error's text with what was typed in the place of fields: the options that
// were given, and NAME for the name of what is to be made. A field that a file has keeps its name.
func asTyped(cmd *cobra.Command, text string) string {
	rows := slices.Concat(field.For(^field.Commands(0)), field.PoolSize())
	return fieldNames.ReplaceAllStringFunc(text, func(whole string) string {
		_, name, _ := strings.Cut(whole, ".")
		if (name == "name" || name == "vmName") && strings.Contains(cmd.Use, " NAME") && cmd.Flags().NArg() > 0 {
			return "NAME"
		}
		base, _, _ := strings.Cut(name, "[")
		var given []string
		for _, row := range rows {
			if (row.Name == base || strings.HasPrefix(row.Name, base+".")) && row.Flag != "" && cmd.Flags().Changed(row.Flag) {
				given = append(given, "--"+row.Flag)
			}
		}
		if len(given) == 0 {
			return whole
		}
		return strings.Join(slices.Compact(given), ", ")
	})
}

// missing returns the options that a command needs and was not given.
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
	return errors.Unwrap(e).Error() // one of ours
}

// durationFlag is a time of which days and weeks can be given, too.
type durationFlag struct{ pflag.Value }

// Set is called each time the flag is given.
func (d durationFlag) Set(text string) error {
	at, err := job.ParseDuration(text)
	if err != nil {
		return err
	}
	return d.Value.Set(at.String())
}

// withDays has all options of a command that are times take days and weeks.
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

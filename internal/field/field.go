// Package field has what people fill in of a manifest and of a pool's size, a row for each
// field: the options of the commands and their completion, and the page's forms, are made from
// it. It knows neither commands nor pages, and checks nothing: the domain does.
package field

import (
	"reflect"
	"slices"
	"strings"
)

// Commands are commands that have an option for a field.
type Commands uint8

// The commands.
const (
	Submit Commands = 1 << iota
	Exec
	Run
	CreateVM
	CreatePool
	Dispatch

	tasks = Submit | Exec | Run
	vms   = tasks | CreateVM
	all   = vms | CreatePool | Dispatch
)

// Field is one field. Its kind is that of the struct's.
type Field struct {
	Name string // in JSON, as errors name it: resources.cpu

	Flag   string   // its option
	NoFlag string   // why it has none
	In     Commands // those that have the option
	Help   string   // of the option

	Label, Hint string // in a form
	When        string // where it applies: NAME=PATTERN of other fields, divided by blanks; empty: always

	Values  []string // of a choice: the first is the form's, and an empty one is the default
	On      string   // what a box that is ticked, or an option without a value, makes it
	Lines   bool     // a text of several lines, or a list with an entry on each
	Each    bool     // the option is given for each entry, and adds to those of a manifest
	Seconds bool     // a time
	Zero    bool     // 0 is a number like others, and not "the default"
	None    int      // what 0 means, where the struct's own 0 is the default
}

// Of returns the field of a struct, or of one that v points to: then it can be set, and what it
// is within is made where there is none.
func (f Field) Of(v any) reflect.Value {
	at := reflect.Indirect(reflect.ValueOf(v))
	for name := range strings.SplitSeq(f.Name, ".") {
		at = named(at, name)
		if at.Kind() != reflect.Pointer {
			continue
		}
		if at.IsNil() {
			made := reflect.New(at.Type().Elem())
			if at.CanSet() {
				at.Set(made)
			}
			at = made
		}
		at = at.Elem()
	}
	return at
}

// named returns the field of a struct, or of one embedded in it, that has a name in JSON.
func named(v reflect.Value, name string) (found reflect.Value) {
	for i := 0; i < v.NumField() && !found.IsValid(); i++ {
		of := v.Type().Field(i)
		if key, _, _ := strings.Cut(of.Tag.Get("json"), ","); key == name {
			return v.Field(i)
		} else if of.Anonymous {
			found = named(v.Field(i), name)
		}
	}
	return found
}

// Words returns the values that can be given.
func (f Field) Words() []string {
	return slices.DeleteFunc(slices.Clone(f.Values), func(v string) bool { return v == "" })
}

// For returns the fields of a manifest that a command has options for.
func For(c Commands) []Field {
	return slices.DeleteFunc(Manifest(), func(f Field) bool { return f.In&c == 0 })
}

// Some returns the fields of a manifest with these names, in their order.
func Some(names ...string) []Field {
	every, some := Manifest(), make([]Field, len(names))
	for i, name := range names {
		some[i] = every[slices.IndexFunc(every, func(f Field) bool { return f.Name == name })]
	}
	return some
}

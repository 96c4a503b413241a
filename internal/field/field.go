// Package field describes the fields of a manifest and of a pool's size, with a row for each.
// Validation, defaults in documents, command options and their completion, the page's forms, the tools'
// schemas, the API's description and the documents' table of the manifest are generated from the rows.
// The package knows neither jobs nor faces; the domain adds the rules that a row cannot express.
package field

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"linus/internal/lazyregexp"
)

// Commands is a set of commands that have an option for a field.
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

// Offer is a source of choices for a field, in addition to free text.
type Offer uint8

// The offers.
const (
	None Offer = iota
	LocalFiles
	VMs
	Templates
)

// Field is a row for one field, which has the kind of the struct's field.
type Field struct {
	Name string // in JSON, as errors name it: resources.cpu; files[].path for a field of list elements

	Text    string // description for documents and schemas, without Default
	Brief   string // the same for the list of tools, which costs every client; "-": nothing; empty: Text
	Default string // the value if it is left out, where that needs saying

	Required          bool     // it must not be left out
	Values            []string // the allowed values; nil: any
	Least, Most       int      // bounds of a given number; Most 0: any number
	Smallest, Largest string   // bounds of a size, as in 512M; empty: not a size
	Example           string   // of a size
	Like              *Like    // the form of its text; nil: any
	Path              bool     // it is an absolute path
	NoZero            bool     // an explicit 0 is a mistake, not the default
	Needs             []Need   // what it requires of other fields

	Flag   string   // its option
	NoFlag string   // why it has no option
	In     Commands // the commands that have the option
	Help   string   // of the option
	On     string   // the value for the option without a value, or for a ticked box
	Also   *Option  // another option, without a value
	Offers Offer

	Group       string // its part of the form
	Label, Hint string // in a form
	Preset      string // the initial value in a form
	Tick        bool   // it is a checkbox, as true-or-false fields always are

	Lines   bool // a text of several lines, or a list with an entry on each
	Each    bool // the option is repeated, once per entry, and adds to the entries of a manifest
	Seconds bool // a duration
	Zero    bool // 0 is an ordinary number, not "the default"
	Nothing int  // what 0 means, where the struct's own 0 is the default
}

// Like is the form of a text.
type Like struct {
	Form    *lazyregexp.Regexp
	Most    int    // bytes; 0: only Form limits it
	Problem string // of a text without that form; %q is the text
	Remedy  string
}

// Option is an option that sets a field to a fixed value.
type Option struct{ Flag, Makes, Help string }

// Need is a condition without which a field has no meaning.
type Need struct {
	// Where is NAME=PATTERN for another field. There may be several, separated by blanks: all must
	// match. NAME may be several names, separated by commas: one must match.
	Where   string
	Problem string // if Where does not match; %s is the other field's value; empty: only forms leave the field out
	Remedy  string
	Of      string // the pattern of values that have the need; empty: all values
	Shown   bool   // a form shows the field in any case
}

// Index finds a row by the struct type and the field's JSON name.
type Index map[reflect.Type]map[string]Field

// IndexOf returns the rows of a struct's fields, including those of nested structs.
func IndexOf(t reflect.Type, rows ...Field) Index {
	named := map[string]Field{}
	for _, f := range rows {
		named[f.Name] = f
	}
	index := Index{}
	index.add(t, "", named)
	return index
}

func (x Index) add(t reflect.Type, prefix string, named map[string]Field) {
	own := map[string]Field{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		own[name] = named[prefix+name]
		at, below := t.Field(i).Type, prefix+name+"."
		if at.Kind() == reflect.Slice {
			at, below = at.Elem(), prefix+name+"[]."
		}
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if at.Kind() == reflect.Struct {
			x.add(at, below, named)
		}
	}
	x[t] = own
}

// Of returns the field of a struct. If v is a pointer, the field can be set, and missing structs on
// the way to it are created.
func (f Field) Of(v any) reflect.Value {
	at := reflect.Indirect(reflect.ValueOf(v))
	return within(at, placesOf(at.Type(), f.Name), at.CanSet())
}

// within returns the field at places. Each place is an index within the struct that the previous
// place, or the pointer there, leads to.
func within(at reflect.Value, places [][]int, set bool) reflect.Value {
	for _, place := range places {
		at = at.FieldByIndex(place)
		switch {
		case at.Kind() != reflect.Pointer:
			continue
		case at.IsNil() && !set:
			at = reflect.Zero(at.Type().Elem())
			continue
		case at.IsNil():
			at.Set(reflect.New(at.Type().Elem()))
		}
		at = at.Elem()
	}
	return at
}

var known sync.Map // places, by the struct's type and the field's name

// placesOf returns the places of the field with a JSON name.
func placesOf(t reflect.Type, name string) (places [][]int) {
	type key struct {
		of   reflect.Type
		name string
	}
	id := key{t, name}
	if found, ok := known.Load(id); ok {
		return found.([][]int) //nolint:forcetypeassert // nothing else is stored
	}
	for part := range strings.SplitSeq(name, ".") {
		var found []int
		for _, of := range reflect.VisibleFields(t) {
			if own, _, _ := strings.Cut(of.Tag.Get("json"), ","); own == part && (found == nil || len(of.Index) < len(found)) {
				found = of.Index
			}
		}
		places = append(places, found)
		if t = t.FieldByIndex(found).Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	known.Store(id, places)
	return places
}

// Says returns the field's description, with its default.
func (f Field) Says() string {
	if f.Default == "" {
		return f.Text
	}
	return strings.TrimSpace(f.Text + " Default " + f.Default + ".")
}

// Bounds returns the range of a number: 1 to 32.
func (f Field) Bounds() string {
	if f.Seconds {
		return fmt.Sprintf("seconds from %d to %d", f.Least, f.Most)
	}
	return fmt.Sprintf("%d to %d", f.Least, f.Most)
}

// Choices returns the values that a form offers, the initial one first; an empty one is the default.
func (f Field) Choices() []string {
	all := slices.Clone(f.Values)
	if !f.Required {
		all = append(all, "")
	}
	first := slices.Index(all, f.Preset)
	return append([]string{f.Preset}, slices.Delete(all, first, first+1)...)
}

// IsBox reports whether the field is a checkbox.
func (f Field) IsBox(at reflect.Value) bool { return f.Tick || at.Kind() == reflect.Bool }

// Typed returns a value of the field as a form sends it, in the detail that other fields' needs require.
func (f Field) Typed(at reflect.Value) string {
	switch {
	case f.IsBox(at) && text(at) == cmp.Or(f.On, "true"):
		return "on"
	case f.IsBox(at), at.Kind() == reflect.Int && at.IsZero() && !f.Zero:
		return ""
	}
	return text(at)
}

// text is fmt.Sprint that does not allocate for most values.
func text(at reflect.Value) string {
	switch at.Kind() {
	case reflect.String:
		return at.String()
	case reflect.Bool:
		return strconv.FormatBool(at.Bool())
	case reflect.Int:
		return strconv.FormatInt(at.Int(), 10)
	}
	return fmt.Sprint(at)
}

// Empty reports whether the field is left out.
func Empty(at reflect.Value) bool {
	if at.Kind() == reflect.Slice || at.Kind() == reflect.Map {
		return at.Len() == 0
	}
	return at.IsZero()
}

// When returns the conditions under which a form shows the field: NAME=PATTERN of other fields,
// separated by blanks; empty: always.
func (f Field) When() string {
	var all []string
	for _, n := range f.Needs {
		if !n.Shown {
			all = append(all, n.Where)
		}
	}
	return strings.Join(all, " ")
}

func named(rows []Field, name string) (Field, bool) {
	at := slices.IndexFunc(rows, func(f Field) bool { return f.Name == name })
	if at < 0 {
		return Field{}, false
	}
	return rows[at], true
}

// All returns the fields of a manifest.
func All() []Field { return manifest() }

// For returns the fields of a manifest that a command has options for.
func For(c Commands) []Field {
	return slices.DeleteFunc(slices.Clone(manifest()), func(f Field) bool { return f.In&c == 0 })
}

// Some returns the fields of a manifest with these names, in the order of names.
func Some(names ...string) []Field {
	some := make([]Field, len(names))
	for i, name := range names {
		some[i], _ = named(manifest(), name)
	}
	return some
}

// Package field has what can be said of a manifest and of a pool's size: a row for each field.
// Validation, defaults of documents, options of commands and their completion, the page's forms,
// the schemas of tools, the API's description and the manifest's table in the documents are made
// from it. It knows neither jobs nor faces: the domain adds the rules that take more than a row.
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

// Offer is what there is to choose from besides what can be typed.
type Offer uint8

// The offers.
const (
	None Offer = iota
	LocalFiles
	VMs
	Templates
)

// Field is one field. Its kind is that of the struct's.
type Field struct {
	Name string // in JSON, as errors name it: resources.cpu; files[].path of what is in a list

	Text    string // what it is, for documents and schemas, without Default
	Brief   string // the same for the list of tools, for which every client pays; "-": nothing; empty: Text
	Default string // what it is if it is left out, where that needs saying

	Required          bool     // it is never left out
	Values            []string // what it is one of; nil: anything
	Least, Most       int      // of a number that is given; Most 0: any
	Smallest, Largest string   // of a size, as in 512M; empty: it is none
	Example           string   // of a size
	Like              *Like    // how its text looks; nil: in any way
	Path              bool     // it is an absolute path
	NoZero            bool     // a 0 that is given is a mistake, and not the default
	Needs             []Need   // where it applies

	Flag   string   // its option
	NoFlag string   // why it has none
	In     Commands // those that have the option
	Help   string   // of the option
	On     string   // what the option without a value, or a box that is ticked, makes it
	Also   *Option  // another option, without a value
	Offers Offer

	Group       string // the part of the form that it is in
	Label, Hint string // in a form
	Preset      string // what a form begins with
	Tick        bool   // it is a box, as are fields that are true or false

	Lines   bool // a text of several lines, or a list with an entry on each
	Each    bool // the option is given for each entry, and adds to those of a manifest
	Seconds bool // a time
	Zero    bool // 0 is a number like others, and not "the default"
	Nothing int  // what 0 means, where the struct's own 0 is the default
}

// Like is how a text looks.
type Like struct {
	Form    *lazyregexp.Regexp
	Most    int    // bytes; 0: as Form says
	Problem string // with %q, of a text that does not
	Remedy  string
}

// Option is an option that makes a field a value.
type Option struct{ Flag, Makes, Help string }

// Need is what a field has no meaning without.
type Need struct {
	// Where is NAME=PATTERN of another field, and there may be several, divided by blanks: all
	// have to match. Of names divided by commas one has to.
	Where   string
	Problem string // where it does not hold, with %s for the other field's value; empty: only a form leaves the field out
	Remedy  string
	Of      string // the pattern of values that have the need; empty: all
	Shown   bool   // a form has the field in any case
}

// Index finds a field of structs by its type and name in JSON.
type Index map[reflect.Type]map[string]Field

// IndexOf returns the rows of a struct's fields, and of those within it.
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

// Of returns the field of a struct, or of one that v points to: then it can be set, and what it
// is within is made where there is none.
func (f Field) Of(v any) reflect.Value {
	at := reflect.Indirect(reflect.ValueOf(v))
	return within(at, placesOf(at.Type(), f.Name), at.CanSet())
}

// within is the field at places, each an index from the pointer that the one before has led to.
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

// placesOf returns the places of the field with a name in JSON.
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

// Says returns what a field is, with its default.
func (f Field) Says() string {
	if f.Default == "" {
		return f.Text
	}
	return strings.TrimSpace(f.Text + " Default " + f.Default + ".")
}

// Bounds returns what there is to give of a number: 1 to 32.
func (f Field) Bounds() string {
	if f.Seconds {
		return fmt.Sprintf("seconds from %d to %d", f.Least, f.Most)
	}
	return fmt.Sprintf("%d to %d", f.Least, f.Most)
}

// Choices are the values that a form has, the first of which it begins with; an empty one is
// the default.
func (f Field) Choices() []string {
	all := slices.Clone(f.Values)
	if !f.Required {
		all = append(all, "")
	}
	first := slices.Index(all, f.Preset)
	return append([]string{f.Preset}, slices.Delete(all, first, first+1)...)
}

// IsBox reports whether the field is a box to tick.
func (f Field) IsBox(at reflect.Value) bool { return f.Tick || at.Kind() == reflect.Bool }

// Typed returns a value of the field as a form sends it, as far as needs of others ask for it.
func (f Field) Typed(at reflect.Value) string {
	switch {
	case f.IsBox(at) && text(at) == cmp.Or(f.On, "true"):
		return "on"
	case f.IsBox(at), at.Kind() == reflect.Int && at.IsZero() && !f.Zero:
		return ""
	}
	return text(at)
}

// text is fmt.Sprint, which takes no memory for most.
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

// When is where a form has the field: NAME=PATTERN of other fields, divided by blanks; empty:
// always.
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

// Some returns the fields of a manifest with these names, in their order.
func Some(names ...string) []Field {
	some := make([]Field, len(names))
	for i, name := range names {
		some[i], _ = named(manifest(), name)
	}
	return some
}

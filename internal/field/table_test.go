package field_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"linus/internal/field"
	"linus/internal/job"
)

// leaves are the names of a struct's fields in JSON, those of structs within it after a dot,
// with what their tags say of the values there are.
func leaves(t reflect.Type, prefix string, add func(name string, values []string)) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := f.Type
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if at.Kind() == reflect.Struct {
			leaves(at, prefix+name+".", add)
			continue
		}
		var values []string
		for word := range strings.SplitSeq(f.Tag.Get("jsonschema"), ",") {
			if value, ok := strings.CutPrefix(word, "enum="); ok && value == "@systems" {
				values = append(values, job.Systems...)
			} else if ok {
				values = append(values, value)
			}
		}
		add(prefix+name, values)
	}
}

// Every field of a manifest and of a pool's size has a row, and the row says all of it.
func TestTable_HasEveryField(t *testing.T) {
	for _, of := range []struct {
		t    reflect.Type
		rows []field.Field
	}{{reflect.TypeFor[job.Manifest](), field.Manifest()}, {reflect.TypeFor[job.PoolSize](), field.PoolSize()}} {
		rows := map[string]field.Field{}
		for _, f := range of.rows {
			rows[f.Name] = f
		}
		leaves(of.t, "", func(name string, values []string) {
			f, ok := rows[name]
			delete(rows, name)
			said := f.Words()
			slices.Sort(said)
			slices.Sort(values)
			switch {
			case !ok:
				t.Errorf("%s has no row: give it an option and a place in the form, or say in NoFlag why there is no option", name)
			case (f.Flag == "") == (f.NoFlag == "") || (f.Flag == "") != (f.Help == ""):
				t.Errorf("%s has neither an option with its help nor a reason why not, or both", name)
			case f.Label == "":
				t.Errorf("%s has no label for the form", name)
			case f.On != "" && !slices.Contains(values, f.On):
				t.Errorf("%s becomes %s, which is not among %q", name, f.On, values)
			case f.On == "" && !slices.Equal(said, values) || f.Values != nil && len(said) != len(values):
				t.Errorf("%s has the values %q, its schema %q", name, said, values)
			}
		})
		for name := range rows {
			t.Errorf("there is no field %s", name)
		}
	}
}

// No two fields have the same option.
func TestTable_OptionsAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, f := range append(field.Manifest(), field.PoolSize()...) {
		if of := seen[f.Flag]; of != "" && f.Flag != "" {
			t.Errorf("--%s is of %s and of %s", f.Flag, of, f.Name)
		}
		seen[f.Flag] = f.Name
	}
}

// Reading makes nothing; setting makes what the field is within.
func TestField_OfAMissingStruct(t *testing.T) {
	var m job.Manifest
	url := field.Some("notify.url")[0]
	if got := url.Of(m).String(); got != "" || m.Notify != nil {
		t.Errorf("%q, %v", got, m.Notify)
	}
	url.Of(&m).SetString("https://ci.example/hook")
	if m.Notify == nil || m.Notify.URL != "https://ci.example/hook" {
		t.Errorf("%+v", m.Notify)
	}
	size := field.Field{Name: "warm"}
	of := struct{ job.PoolSize }{job.PoolSize{Warm: 3}}
	if got := size.Of(of).Int(); got != 3 {
		t.Errorf("of an embedded struct: %d", got)
	}
}

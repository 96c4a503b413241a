package field_test

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/field"
	"linus/internal/job"
)

// leaves are the names of a struct's fields in JSON, those of structs within it after a dot, and
// of those in lists after []; and the names of what others are within.
func leaves(t reflect.Type, prefix string, add func(name string, of reflect.Type, leaf bool)) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := f.Type
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		add(prefix+name, at, at.Kind() != reflect.Struct)
		if at.Kind() == reflect.Struct {
			leaves(at, prefix+name+".", add)
		}
		if at.Kind() == reflect.Slice && at.Elem().Kind() == reflect.Struct {
			leaves(at.Elem(), prefix+name+"[].", add)
		}
	}
}

// Every field of a manifest and of a pool's size has a row, and the row says all of it.
func TestTable_HasEveryField(t *testing.T) {
	for _, of := range []struct {
		t    reflect.Type
		rows []field.Field
	}{{reflect.TypeFor[job.Manifest](), field.All()}, {reflect.TypeFor[job.PoolSize](), field.PoolSize()}} {
		rows, documented := map[string]field.Field{}, of.t == reflect.TypeFor[job.Manifest]()
		for _, f := range of.rows {
			rows[f.Name] = f
		}
		leaves(of.t, "", func(name string, of reflect.Type, leaf bool) {
			f, ok := rows[name]
			delete(rows, name)
			entry := strings.Contains(name, "[]")
			switch {
			case !ok:
				t.Errorf("%s has no row", name)
			case documented && f.Says() == "":
				t.Errorf("%s: nothing is said of it", name)
			case !leaf || entry:
				if f.Flag != "" || f.Group != "" || f.Label != "" {
					t.Errorf("%s is no field by itself, and has an option or a place in the form", name)
				}
			case (f.Flag == "") == (f.NoFlag == "") || (f.Flag == "") != (f.Help == ""):
				t.Errorf("%s has neither an option with its help nor a reason why not, or both", name)
			case f.Label == "":
				t.Errorf("%s has no label for the form", name)
			case documented && f.Group == "" && name != "env" && name != "files":
				t.Errorf("%s is in no part of the form", name)
			case f.On != "" && !slices.Contains(f.Values, f.On) || f.Also != nil && !slices.Contains(f.Values, f.Also.Makes) || f.Preset != "" && !slices.Contains(f.Values, f.Preset):
				t.Errorf("%s becomes %q, or %+v, or begins with %q, of %q", name, f.On, f.Also, f.Preset, f.Values)
			case f.Values != nil && of.Kind() != reflect.String || f.Most > 0 && of.Kind() != reflect.Int || (f.Largest != "" || f.Like != nil || f.Path) && of.Kind() != reflect.String:
				t.Errorf("%s is a %s, and has limits of another kind", name, of)
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
	see := func(flag, name string) {
		if of := seen[flag]; of != "" && flag != "" {
			t.Errorf("--%s is of %s and of %s", flag, of, name)
		}
		seen[flag] = name
	}
	for _, f := range append(field.All(), field.PoolSize()...) {
		if see(f.Flag, f.Name); f.Also != nil {
			see(f.Also.Flag, f.Name)
		}
	}
}

// What a field needs is about fields there are, and each text says what to do.
func TestTable_NeedsAreOfFields(t *testing.T) {
	known := func(name string) bool { return field.Some(name)[0].Label != "" }
	for _, f := range field.All() {
		for _, n := range f.Needs {
			for condition := range strings.FieldsSeq(n.Where) {
				names, pattern, ok := strings.Cut(condition, "=")
				if _, err := regexp.Compile(pattern); err != nil || !ok {
					t.Errorf("%s: condition %q, %v", f.Name, condition, err)
				}
				for name := range strings.SplitSeq(names, ",") {
					if !known(name) || !n.Shown && strings.Contains(names, ",") {
						t.Errorf("%s: condition %q", f.Name, condition)
					}
				}
			}
			if (n.Problem == "") != (n.Remedy == "") || n.Shown && n.Problem == "" {
				t.Errorf("%s: %+v", f.Name, n)
			}
		}
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

package job

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	spec "linus/internal/field"
)

// FieldOf returns the row of a field of a manifest, or of a struct within one, by the struct's type
// and the field's JSON name.
func FieldOf(t reflect.Type, name string) (spec.Field, bool) {
	f, ok := manifestIndex()[t][name]
	return f, ok && f.Name != ""
}

var manifestIndex = sync.OnceValue(func() spec.Index { return spec.IndexOf(reflect.TypeFor[Manifest](), spec.All()...) })

var (
	manifestRows = sync.OnceValue(func() []*spec.Row { return spec.RowsOf(reflect.TypeFor[Manifest](), spec.All()) })
	poolRows     = sync.OnceValue(func() []*spec.Row { return spec.RowsOf(reflect.TypeFor[PoolSize](), spec.PoolSize()) })
)

// checkRows returns everything that rows forbid in the fields of a struct, each at its path below
// at. The elements of lists are checked with the list.
func checkRows(at string, rows []*spec.Row, v any) (bad []*FieldError) {
	of := reflect.ValueOf(v)
	for _, f := range rows {
		value := f.In(of)
		problem, remedy := "", ""
		if spec.Empty(value) {
			if f.Required {
				problem, remedy = "is required", "use one of: "+strings.Join(f.Values, ", ")
			}
		} else if need, other, unmet := f.Unmet(of); unmet {
			problem, remedy = strings.ReplaceAll(need.Problem, "%s", other), need.Remedy
		} else {
			problem, remedy = refusal(&f.Field, value)
		}
		if problem != "" {
			bad = append(bad, &FieldError{Field: at + f.Name, Problem: problem, Remedy: remedy})
		}
	}
	return bad
}

// refusal returns why a row forbids a value, and what it allows; both are empty if the value is allowed.
func refusal(f *spec.Field, value reflect.Value) (problem, remedy string) {
	switch value.Kind() {
	case reflect.Int:
		if n := int(value.Int()); f.Most > 0 && (n < f.Least || n > f.Most) {
			return fmt.Sprintf("%d is out of range", n), "give " + f.Bounds()
		}
	case reflect.String:
		return textRefusal(f, value.String())
	}
	return "", ""
}

func textRefusal(f *spec.Field, text string) (problem, remedy string) {
	switch {
	case f.Values != nil && !slices.Contains(f.Values, text):
		return fmt.Sprintf("%q is unknown", text), "use one of: " + strings.Join(f.Values, ", ")
	case f.Largest != "":
		n, err := ParseSize(text)
		least, _ := ParseSize(f.Smallest)
		most, _ := ParseSize(f.Largest)
		if err == nil && n >= least && n <= most {
			return "", ""
		}
		problem = fmt.Sprintf("%q is out of range", text)
		if err != nil {
			problem = err.Error()
		}
		return problem, fmt.Sprintf("give %s to %s, as in %s", f.Smallest, f.Largest, f.Example)
	case f.Like != nil && !fits(f.Like.Form, text, cmp.Or(f.Like.Most, len(text))):
		return fmt.Sprintf(f.Like.Problem, text), f.Like.Remedy
	case f.Path && !path.IsAbs(text):
		return fmt.Sprintf("%q is not absolute", text), "give an absolute path, as in /srv/app"
	case f.Path && len(text) > maxPath:
		return fmt.Sprintf("is %d bytes, the limit is %d", len(text), maxPath), "use a shorter path"
	case f.Path && (strings.ContainsAny(text, "\n\r\x00") || !utf8.ValidString(text)):
		return fmt.Sprintf("%q contains a newline or a control character", text), "use a plain path"
	}
	return "", ""
}

const maxPath = 4096 // bytes

// explicitZeros refuses zeros that are given explicitly but read like "use the default": timeout 0
// and cpu 0 are mistakes. tree is the JSON of a manifest, or of a part of one at a path.
func explicitZeros(at string, tree any, t reflect.Type) (bad []*FieldError) {
	object, _ := tree.(map[string]any)
	known := fieldsOf(t)
	for _, key := range sortedKeys(object) {
		of := known[key]
		if of.of == nil {
			continue
		}
		if of.of.Kind() == reflect.Struct {
			bad = append(bad, explicitZeros(below(at, key), object[key], of.of)...)
		}
		n, isNumber := object[key].(json.Number)
		if !isNumber {
			continue
		}
		if zero, err := n.Int64(); err != nil || zero != 0 {
			continue
		}
		if row, _ := FieldOf(t, of.name); row.NoZero {
			bad = append(bad, field(below(at, key), "give "+row.Bounds()+", or leave it out", "0 is out of range"))
		}
	}
	return bad
}

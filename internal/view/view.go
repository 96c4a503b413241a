// Package view is the public form of what an engine takes and returns, as opposed to the stored
// form: JSON with names in snake_case that include units, without internals, and with lists that
// are never null. A field's tag gives the public name beside the stored one:
//
//	Timeout int `json:"timeout,omitempty" api:"timeout_seconds"`
//
// Without an api tag the public name is that of the json tag; "-" hides a field. A time.Duration is
// a number of seconds, and its name must end in _seconds. The option text makes bytes a string;
// bytes that are not UTF-8 are also given under the same name with _base64. The option string makes
// a number a string.
package view

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Field is a field of a struct in its public form.
type Field struct {
	reflect.StructField

	Name    string // the public name
	Omitted bool   // left out if it is zero
	Text    bool   // bytes as a string
	String  bool   // a number as a string
	Body    bool   // bytes that are the whole body of a request or response
	Header  bool   // of a request
	Needed  bool   // required in a request

	Path []int // from the struct, through embedded structs
}

// fields are all shown fields of a struct, and those that are in its JSON.
type fields struct{ all, inJSON []Field }

var known sync.Map // fields by type

func fieldsOf(t reflect.Type) fields {
	if found, ok := known.Load(t); ok {
		return found.(fields)
	}
	found := fields{all: findFields(t)}
	for _, f := range found.all {
		if !f.Body && !f.Header {
			found.inJSON = append(found.inJSON, f)
		}
	}
	known.Store(t, found)
	return found
}

// Fields returns the shown fields of a struct, including those of embedded structs.
func Fields(t reflect.Type) []Field { return fieldsOf(t).all }

func findFields(t reflect.Type) []Field {
	var all []Field
	for i := range t.NumField() {
		f := t.Field(i)
		stored, storedOptions, _ := strings.Cut(f.Tag.Get("json"), ",")
		public, options, _ := strings.Cut(f.Tag.Get("api"), ",")
		switch {
		case f.Anonymous && stored == "" && f.Tag.Get("api") == "":
			for _, inner := range Fields(f.Type) {
				inner.Path = append([]int{i}, inner.Path...)
				if !slices.ContainsFunc(all, func(own Field) bool { return own.Name == inner.Name }) {
					all = append(all, inner)
				}
			}
			continue
		case !f.IsExported() || public == "-" || public == "" && stored == "-":
			continue
		case public == "":
			public = stored
		}
		has := func(option string) bool { return slices.Contains(strings.Split(options, ","), option) }
		// As in encoding/json, a struct's own field hides one of an embedded struct.
		all = slices.DeleteFunc(all, func(other Field) bool { return other.Name == public && len(other.Path) > 1 })
		all = append(all, Field{
			StructField: f, Name: public, Omitted: strings.Contains(storedOptions, "omit"),
			Text: has("text"), String: has("string"), Body: has("body"), Header: has("header"), Needed: has("required"), Path: []int{i},
		})
	}
	return all
}

// Path returns the public form of a field's path below a type. Errors name the stored form:
// manifest.agentType becomes manifest.agent_type.
func Path(t reflect.Type, path string) string {
	parts := strings.Split(path, ".")
	for i, part := range parts {
		name, index, _ := strings.Cut(part, "[")
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			break
		}
		fields := Fields(t)
		at := slices.IndexFunc(fields, func(f Field) bool {
			stored, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return stored == name || f.Name == name
		})
		if at < 0 {
			break
		}
		parts[i] = fields[at].Name
		if index != "" {
			parts[i] += "[" + index
		}
		t = fields[at].Type
	}
	return strings.Join(parts, ".")
}

var forms sync.Map // the public form of a type, by the type

// formOf returns the type that encoding/json would write as the public JSON of t. Strict decoding
// checks against it.
func formOf(t reflect.Type) reflect.Type {
	if known, ok := forms.Load(t); ok {
		return known.(reflect.Type)
	}
	form := makeForm(t)
	forms.Store(t, form)
	return form
}

func makeForm(t reflect.Type) reflect.Type {
	if t == reflect.TypeFor[time.Duration]() {
		return reflect.TypeFor[float64]()
	}
	switch t.Kind() {
	case reflect.Pointer:
		return reflect.PointerTo(formOf(t.Elem()))
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return t
		}
		return reflect.SliceOf(formOf(t.Elem()))
	case reflect.Map:
		return reflect.MapOf(t.Key(), formOf(t.Elem()))
	case reflect.Struct:
		if isValue(t) {
			return t
		}
		var all []reflect.StructField
		for _, f := range fieldsOf(t).inJSON {
			stored, _, _ := strings.Cut(f.Tag.Get("json"), ",") // the stored name, for job.DecodeStrict
			if f.Text || stored == "-" {
				stored = ""
			}
			add := func(name string, t reflect.Type, omit string) {
				all = append(all, reflect.StructField{Name: "F" + strconv.Itoa(len(all)), Type: t, Tag: reflect.StructTag(fmt.Sprintf(`json:"%s%s" api:"%s"`, name, omit, stored))})
			}
			omit := ""
			if f.Omitted {
				omit = ",omitzero"
				if k := f.Type.Kind(); k == reflect.Slice || k == reflect.Map {
					omit = ",omitempty"
				}
			}
			switch {
			case f.Text:
				add(f.Name, reflect.TypeFor[string](), omit)
				add(f.Name+"_base64", f.Type, ",omitempty")
			case f.String:
				add(f.Name, reflect.TypeFor[string](), omit)
			default:
				add(f.Name, formOf(f.Type), omit)
			}
		}
		return reflect.StructOf(all)
	}
	return t
}

// isValue reports whether a struct is a single value with a text form of its own.
func isValue(t reflect.Type) bool { return t == reflect.TypeFor[time.Time]() }

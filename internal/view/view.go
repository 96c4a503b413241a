// Package view is the public form of what an engine takes and returns, apart from what is
// stored: JSON with names in snake_case and units in them, without internals, with lists that
// are never null. It is said by a field's tag, beside the name under which it is stored:
//
//	Timeout int `json:"timeout,omitempty" api:"timeout_seconds"`
//
// Without an api tag the public name is that of the json tag; "-" hides a field. A
// time.Duration is a number of seconds, and its name must end in _seconds. The option text
// makes bytes a string, with the same name and _base64 for bytes that are not UTF-8; the
// option string makes a number a string.
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

// Field is a field of a struct as it is shown.
type Field struct {
	reflect.StructField

	Name    string // the public one
	Omitted bool   // where it is zero
	Text    bool   // bytes as a string
	String  bool   // a number as a string
	Body    bool   // bytes that are the whole body of a request or response
	Header  bool   // of a request
	Needed  bool   // in a request

	Path []int // from the struct, through the embedded ones
}

// fields are those of a struct, and of these the ones that are in its JSON.
type fields struct{ all, inJSON []Field }

var known sync.Map // the fields, by the type

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

// Fields returns the fields of a struct that are shown, those of embedded structs as its own.
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

// Path returns the public form of the path of a field below a type, which an error names as it
// is stored: manifest.agentType is manifest.agent_type.
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

var forms sync.Map // the type in which one is shown, by the type

// formOf returns the type that encoding/json would write as the public JSON of a type: what is
// read strictly is held to it.
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
			stored, _, _ := strings.Cut(f.Tag.Get("json"), ",") // its other name, as of job.DecodeStrict
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

// isValue reports whether a struct is one value, with a text of its own.
func isValue(t reflect.Type) bool { return t == reflect.TypeFor[time.Time]() }

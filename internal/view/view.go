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
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"linus/internal/job"
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

// Marshal returns v as public JSON.
func Marshal(v any) ([]byte, error) { return json.Marshal(Of(v)) }

// Of returns a value that encoding/json writes as v's public JSON.
func Of(v any) any {
	if v == nil {
		return nil
	}
	from := reflect.ValueOf(v)
	to := reflect.New(formOf(from.Type())).Elem()
	show(to, from)
	return to.Interface()
}

// Unmarshal reads public JSON into what v points to. Unknown names are ignored: what answers
// may be newer.
func Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v).Elem()
	from := reflect.New(formOf(to.Type()))
	if err := json.Unmarshal(data, from.Interface()); err != nil {
		return err
	}
	read(to, from.Elem())
	return nil
}

// DecodeStrict is job.DecodeStrict of public JSON.
func DecodeStrict(data []byte, v any) (tree any, err error) {
	to := reflect.ValueOf(v).Elem()
	from := reflect.New(formOf(to.Type()))
	tree, err = job.DecodeStrict("", data, from.Interface())
	if err == nil {
		read(to, from.Elem())
	}
	return tree, err
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

// formOf returns the type that encoding/json writes as the public JSON of a type.
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

// show fills to, of the form of from's type.
func show(to, from reflect.Value) {
	t := from.Type()
	switch {
	case t == reflect.TypeFor[time.Duration]():
		to.SetFloat(time.Duration(from.Int()).Seconds())
	case to.Type() == t && t.Kind() != reflect.Slice && t.Kind() != reflect.Map:
		to.Set(from)
	case t.Kind() == reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
			show(to.Elem(), from.Elem())
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		to.Set(from)
	case t.Kind() == reflect.Slice:
		to.Set(reflect.MakeSlice(to.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			show(to.Index(i), from.Index(i))
		}
	case t.Kind() == reflect.Map:
		to.Set(reflect.MakeMapWithSize(to.Type(), from.Len()))
		for i := from.MapRange(); i.Next(); {
			value := reflect.New(to.Type().Elem()).Elem()
			show(value, i.Value())
			to.SetMapIndex(i.Key(), value)
		}
	default:
		at := 0
		for _, f := range fieldsOf(t).inJSON {
			value := from.FieldByIndex(f.Path)
			switch {
			case f.Omitted && value.IsZero():
				if f.Text {
					at++
				}
			case f.Text:
				if data := value.Bytes(); utf8.Valid(data) {
					to.Field(at).SetString(string(data))
				} else {
					to.Field(at).SetString(strings.ToValidUTF8(string(data), string(utf8.RuneError)))
					to.Field(at + 1).SetBytes(data)
				}
				at++
			case f.String:
				if !value.IsZero() {
					to.Field(at).SetString(strconv.FormatInt(value.Int(), 10))
				}
			default:
				show(to.Field(at), value)
			}
			at++
		}
	}
}

// read fills to from from, which is of the form of to's type.
func read(to, from reflect.Value) {
	t := to.Type()
	switch {
	case t == reflect.TypeFor[time.Duration]():
		to.SetInt(int64(math.Round(from.Float() * float64(time.Second))))
	case from.Type() == t:
		to.Set(from)
	case t.Kind() == reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(t.Elem()))
			read(to.Elem(), from.Elem())
		}
	case t.Kind() == reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(t, from.Len(), from.Len()))
			for i := range from.Len() {
				read(to.Index(i), from.Index(i))
			}
		}
	case t.Kind() == reflect.Map:
		if !from.IsNil() {
			to.Set(reflect.MakeMapWithSize(t, from.Len()))
			for i := from.MapRange(); i.Next(); {
				value := reflect.New(t.Elem()).Elem()
				read(value, i.Value())
				to.SetMapIndex(i.Key(), value)
			}
		}
	default:
		at := 0
		for _, f := range fieldsOf(t).inJSON {
			value := to.FieldByIndex(f.Path)
			switch {
			case !f.Text && from.Field(at).IsZero(): // as it is
			case f.Text:
				if exact := from.Field(at + 1); exact.Len() > 0 {
					value.SetBytes(exact.Bytes())
				} else {
					value.SetBytes([]byte(from.Field(at).String()))
				}
				at++
			case f.String:
				n, _ := strconv.ParseInt(from.Field(at).String(), 10, 64) // ours; another's is as none
				value.SetInt(n)
			default:
				read(value, from.Field(at))
			}
			at++
		}
	}
}

// Package verbtest has values for tests of every verb in package job's table.
package verbtest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"linus/internal/job"
)

// About returns a minimal input of a verb: with ref as the object in its route, and with a file's path and text.
func About(v *job.Verb, ref string) any {
	in := reflect.New(v.In).Elem()
	for _, f := range reflect.VisibleFields(v.In) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch at := in.FieldByIndex(f.Index); {
		case at.Kind() != reflect.String:
		case name == "path" || name == "old":
			at.SetString(name)
		case name == "stream":
			at.SetString(job.Stdout)
		case strings.Contains(v.Route, "{"+name+"}"):
			at.SetString(ref)
		}
	}
	return in.Interface()
}

// Full returns a value of a type in which every JSON field is set, each to a different value. All strings
// begin with text. Interfaces are nil.
func Full(t reflect.Type, text string) any {
	v := reflect.New(t).Elem()
	(&filler{text: text}).fill(v)
	return v.Interface()
}

type filler struct {
	text string
	n    int64
}

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Kind() { //nolint:exhaustive // the others are not used
	case reflect.String:
		v.SetString(fmt.Sprint(f.text, f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(f.n)
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(uint64(f.n % 256)) //nolint:gosec // it is positive
	case reflect.Float64:
		v.SetFloat(float64(f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		f.fill(key)
		f.fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(f.n, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("json"); v.Field(i).CanSet() && name != "-" && !strings.HasPrefix(name, "-,") {
				f.fill(v.Field(i))
			}
		}
	}
}

// Strings calls f with every string in a value, and its path of field names.
func Strings(value any, f func(path, text string)) { walk(reflect.ValueOf(value), "", f) }

func walk(v reflect.Value, path string, f func(path, text string)) {
	switch v.Kind() { //nolint:exhaustive // the others have no strings
	case reflect.String:
		f(path, v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			walk(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), path, f)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			walk(key, path, f)
			walk(v.MapIndex(key), path, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.Anonymous {
				walk(v.Field(i), path, f)
			} else {
				walk(v.Field(i), strings.TrimPrefix(path+"."+field.Name, "."), f)
			}
		}
	}
}

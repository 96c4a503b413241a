package view

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// exactly ends the name of the exact bytes of a text that is not UTF-8.
const exactly = "_base64"

// Marshal returns v as public JSON.
func Marshal(v any) ([]byte, error) {
	w := writer{out: make([]byte, 0, 512), html: true}
	return w.marshal(v)
}

// Of returns a value that encoding/json writes as v's public JSON.
func Of(v any) any { return shown{v} }

type shown struct{ v any }

// MarshalJSON writes no HTML escapes, but leaves these to encoding/json.
func (s shown) MarshalJSON() ([]byte, error) {
	var w writer
	return w.marshal(s.v)
}

// writer writes public JSON.
type writer struct {
	out  []byte
	html bool // escape for HTML, as encoding/json does
	err  error
}

func (w *writer) marshal(v any) ([]byte, error) {
	if v == nil {
		return []byte("null"), nil
	}
	of := reflect.ValueOf(v)
	w.write(planOf(of.Type()), of)
	return w.out, w.err
}

func (w *writer) write(p *plan, v reflect.Value) {
	switch p.kind {
	case text:
		w.out = appendText(w.out, v.String(), w.html)
	case boolean:
		w.out = strconv.AppendBool(w.out, v.Bool())
	case whole:
		w.out = strconv.AppendInt(w.out, v.Int(), 10)
	case seconds:
		if n := time.Duration(v.Int()); n == 0 || n.Abs() >= time.Microsecond { // as encoding/json does
			w.out = strconv.AppendFloat(w.out, n.Seconds(), 'f', -1, 64)
		} else {
			w.fallback(n.Seconds())
		}
	case moment:
		at := v.Interface().(time.Time) //nolint:forcetypeassert // it is the kind's type
		if out, err := at.AppendText(append(w.out, '"')); err == nil {
			w.out = append(out, '"')
		} else {
			w.fallback(at) // reports what is wrong
		}
	case pointer:
		if v.IsNil() {
			w.out = append(w.out, "null"...)
		} else {
			w.write(p.elem, v.Elem())
		}
	case list:
		w.out = append(w.out, '[')
		begin := len(w.out)
		for i := range v.Len() {
			if i == 1 { // the other elements have about the same length
				w.out = slices.Grow(w.out, min(v.Len()*(len(w.out)-begin+len(",")), 64<<10))
			}
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.write(p.elem, v.Index(i))
		}
		w.out = append(w.out, ']')
	case table:
		w.out = append(w.out, '{')
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for i, key := range keys {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.out = append(appendText(w.out, key.String(), w.html), ':')
			w.write(p.elem, v.MapIndex(key))
		}
		w.out = append(w.out, '}')
	case object:
		w.object(p, v)
	default:
		w.fallback(v.Interface())
	}
}

func (w *writer) object(p *plan, v reflect.Value) {
	w.out = append(w.out, '{')
	begin := len(w.out)
	name := func(key string) {
		if len(w.out) > begin {
			w.out = append(w.out, ',')
		}
		w.out = append(w.out, key...)
	}
	for _, f := range p.fields {
		value := v.FieldByIndex(f.Path)
		switch {
		case f.Omitted && f.plan.nothing(value):
		case f.Text:
			name(f.key)
			data := value.Bytes()
			w.out = appendText(w.out, strings.ToValidUTF8(string(data), string(utf8.RuneError)), w.html)
			if !utf8.Valid(data) {
				name(f.exact)
				w.fallback(data)
			}
		case f.String:
			name(f.key)
			number := ""
			if !value.IsZero() {
				number = strconv.FormatInt(value.Int(), 10)
			}
			w.out = appendText(w.out, number, w.html)
		default:
			name(f.key)
			w.write(f.plan, value)
		}
	}
	w.out = append(w.out, '}')
}

// nothing reports whether a value has nothing to show.
func (p *plan) nothing(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		if p.kind == moment {
			return v.Interface().(time.Time).IsZero()
		}
		return !slices.ContainsFunc(p.fields, func(f *fieldPlan) bool { return !f.plan.nothing(v.FieldByIndex(f.Path)) })
	}
	return v.IsZero()
}

// fallback writes a value as encoding/json does.
func (w *writer) fallback(v any) {
	data, err := encoded(v, w.html)
	if err != nil {
		w.err = err
	}
	w.out = append(w.out, data...)
}

func encoded(v any, html bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func appendText(out []byte, s string, html bool) []byte {
	for _, c := range []byte(s) {
		if c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			data, _ := encoded(s, html) // cannot fail
			return append(out, data...)
		}
	}
	return append(append(append(out, '"'), s...), '"')
}

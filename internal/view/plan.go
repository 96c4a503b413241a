package view

import (
	"encoding"
	"encoding/json"
	"reflect"
	"sync"
	"time"
)

// plan describes how values of a type are written and read. It is made once per type, since jobs
// are shown many times.
type plan struct {
	of     reflect.Type
	kind   kind
	elem   *plan // of a pointer, a list, or a map
	fields []*fieldPlan
	named  map[string]*fieldPlan // also by the names of the exact bytes of texts
}

type fieldPlan struct {
	Field

	plan  *plan
	key   string // name as written, with the colon
	exact string // the same for the exact bytes of a text
}

type kind uint8

const (
	other kind = iota // as encoding/json does
	text
	boolean
	whole
	moment
	seconds
	pointer
	list
	table // a map
	object
)

var plans sync.Map // by the type

func planOf(t reflect.Type) *plan {
	if found, ok := plans.Load(t); ok {
		return found.(*plan)
	}
	p := &plan{of: t, kind: kindOf(t)}
	switch p.kind {
	case pointer, list, table:
		p.elem = planOf(t.Elem())
	case object:
		p.named = map[string]*fieldPlan{}
		for _, f := range fieldsOf(t).inJSON {
			fp := &fieldPlan{Field: f, plan: planOf(f.Type), key: string(appendText(nil, f.Name, true)) + ":"}
			p.fields, p.named[f.Name] = append(p.fields, fp), fp
			if f.Text {
				fp.exact = string(appendText(nil, f.Name+exactly, true)) + ":"
				p.named[f.Name+exactly] = fp
			}
		}
	}
	plans.Store(t, p)
	return p
}

func kindOf(t reflect.Type) kind {
	switch k := t.Kind(); {
	case t == reflect.TypeFor[time.Time]():
		return moment
	case t == reflect.TypeFor[time.Duration]():
		return seconds
	case k == reflect.Pointer:
		return pointer
	case k == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return list
	case k == reflect.Map && t.Key().Kind() == reflect.String:
		return table
	case k == reflect.Struct:
		return object
	case t.Implements(reflect.TypeFor[json.Marshaler]()), t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return other
	case k == reflect.String:
		return text
	case k == reflect.Bool:
		return boolean
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return whole
	}
	return other
}

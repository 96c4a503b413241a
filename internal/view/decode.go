package view

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"time"

	"linus/internal/job"
)

// Unmarshal decodes public JSON into the value that v points to. It ignores unknown names, since
// the other side may be newer.
func Unmarshal(data []byte, v any) error {
	if !json.Valid(data) {
		return json.Unmarshal(data, new(json.RawMessage)) // reports what is wrong
	}
	to := reflect.ValueOf(v).Elem()
	return read(planOf(to.Type()), (*job.JSON)(&data), to)
}

// DecodeStrict is job.DecodeStrict for public JSON.
func DecodeStrict(data []byte, v any) (tree any, err error) {
	to := reflect.ValueOf(v).Elem()
	return job.DecodeStrictAs(formOf(to.Type()), data, func(data []byte) error {
		return read(planOf(to.Type()), (*job.JSON)(&data), to)
	})
}

// read decodes the next value. A null leaves it as it is.
func read(p *plan, from *job.JSON, to reflect.Value) error {
	next := from.Next()
	switch {
	case next == 'n':
		from.Raw()
		return nil
	case p.kind == text && next == '"':
		to.SetString(from.Text())
		return nil
	case p.kind == boolean && (next == 't' || next == 'f'):
		from.Raw()
		to.SetBool(next == 't')
		return nil
	case p.kind == whole && next != '"' && next != '{' && next != '[':
		raw := from.Raw()
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && !to.OverflowInt(n) {
			to.SetInt(n)
			return nil
		}
		return json.Unmarshal(raw, to.Addr().Interface()) // reports what is wrong
	case p.kind == moment && next == '"':
		raw := from.Raw()
		if to.Addr().Interface().(*time.Time).UnmarshalText(raw[1:len(raw)-1]) == nil {
			return nil
		}
		return json.Unmarshal(raw, to.Addr().Interface()) // handles escapes, or reports what is wrong
	case p.kind == seconds:
		raw := from.Raw()
		n, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			err = json.Unmarshal(raw, &n) // reports what is wrong
		}
		if err != nil {
			return err
		}
		to.SetInt(int64(math.Round(n * float64(time.Second))))
		return nil
	case p.kind == pointer:
		to.Set(reflect.New(p.elem.of))
		return read(p.elem, from, to.Elem())
	case p.kind == list && from.Enter('['):
		to.Set(reflect.MakeSlice(p.of, 0, 0))
		for n := 0; !from.Leave(']'); n++ {
			to.Grow(1)
			to.SetLen(n + 1)
			to.Index(n).SetZero()
			if err := read(p.elem, from, to.Index(n)); err != nil {
				return err
			}
		}
		return nil
	case p.kind == table && from.Enter('{'):
		to.Set(reflect.MakeMap(p.of))
		for !from.Leave('}') {
			key, value := reflect.ValueOf(from.Text()).Convert(p.of.Key()), reflect.New(p.elem.of).Elem()
			if err := read(p.elem, from, value); err != nil {
				return err
			}
			to.SetMapIndex(key, value)
		}
		return nil
	case p.kind == object && from.Enter('{'):
		return readObject(p, from, to)
	case p.kind == list, p.kind == table, p.kind == object:
		return json.Unmarshal(from.Raw(), reflect.New(formOf(p.of)).Interface()) // reports what is wrong
	}
	return json.Unmarshal(from.Raw(), to.Addr().Interface())
}

func readObject(p *plan, from *job.JSON, to reflect.Value) error {
	for !from.Leave('}') {
		raw, escaped := from.Quoted()
		f, known := p.named[string(raw[1:len(raw)-1])]
		if !known || escaped { // no known name has escapes
			from.Raw()
			continue
		}
		name := f.Name
		if len(raw)-len(`""`) > len(name) {
			name += exactly
		}
		err := f.read(name, from, to.FieldByIndex(f.Path))
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // names the field as encoding/json does
			if wrong.Field != "" {
				name += "." + wrong.Field
			}
			wrong.Field = name
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fieldPlan) read(name string, from *job.JSON, to reflect.Value) error {
	switch {
	case f.Text && name == f.Name:
		var s string
		err := json.Unmarshal(from.Raw(), &s)
		if to.Len() == 0 { // its exact bytes may have come before
			to.SetBytes([]byte(s))
		}
		return err
	case f.Text:
		var exact []byte
		err := json.Unmarshal(from.Raw(), &exact)
		if len(exact) > 0 {
			to.SetBytes(exact)
		}
		return err
	case f.String:
		var s string
		err := json.Unmarshal(from.Raw(), &s)
		n, _ := strconv.ParseInt(s, 10, 64) // what is not a number becomes 0
		to.SetInt(n)
		return err
	}
	return read(f.plan, from, to)
}

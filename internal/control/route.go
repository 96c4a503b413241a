package control

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"linus/internal/job"
)

// row is one verb of E, as an HTTP route.
type row[E any] struct {
	shape
	serve func(e E, w http.ResponseWriter, r *http.Request)
}

// shape is the part of a row that a client needs.
type shape struct {
	name       string // the method's name
	method     string
	path       string // a pattern of http.ServeMux
	params     []param
	body       bool // the fields that are not params, as JSON
	in         reflect.Type
	repeatable func(in any) bool
}

// param is an input field that is in the URL.
type param struct {
	name  string // in JSON and in the URL
	field int
	query bool // false: in the path
	rest  bool // the rest of the path, slashes included
}

// streamed is a result that is not JSON.
type streamed interface {
	send(w http.ResponseWriter)
	receive(resp *http.Response) error
}

// route returns a row. at is a method and a path. In it {x} is the field of In with
// that JSON name, {x...} is one with slashes, and {?x,y} at the end are the fields in
// the query. The other fields are the body.
func route[E, In, Out any](name, at string, repeatable func(In) bool, call verb[E, In, Out]) row[E] {
	s := shape{name: name, in: reflect.TypeFor[In]()}
	s.method, s.path, _ = strings.Cut(at, " ")
	s.repeatable = func(in any) bool { return repeatable(in.(In)) }
	path, query, _ := strings.Cut(strings.TrimSuffix(s.path, "}"), "{?")
	if query != "" {
		s.path = path
	}
	for i := range s.in.NumField() {
		field, _, _ := strings.Cut(s.in.Field(i).Tag.Get("json"), ",")
		if field == "" {
			continue // an embedded struct's are in the body
		}
		p := param{name: field, field: i, rest: strings.Contains(s.path, "{"+field+"...}")}
		p.query = strings.Contains(","+query+",", ","+field+",")
		if p.query || p.rest || strings.Contains(s.path, "{"+field+"}") {
			s.params = append(s.params, p)
		}
	}
	s.body = len(s.params) < s.in.NumField()
	return row[E]{shape: s, serve: func(e E, w http.ResponseWriter, r *http.Request) {
		var in In
		var out Out
		err := s.decode(r, &in)
		if err == nil {
			out, err = call(e, r.Context(), in)
		}
		if file, ok := any(&out).(streamed); ok && err == nil {
			file.send(w)
			return
		}
		answer(w, out, err)
	}}
}

// encode returns the path, with its query, and the body of a request for in.
func (s shape) encode(in any) (path string, body []byte, err error) {
	path = s.path
	query := url.Values{}
	v := reflect.ValueOf(in)
	for _, p := range s.params {
		text := fmt.Sprint(v.Field(p.field).Interface())
		if m, ok := v.Field(p.field).Interface().(encoding.TextMarshaler); ok {
			data, err := m.MarshalText()
			if err != nil {
				return "", nil, fmt.Errorf("encode %s: %w", p.name, err)
			}
			text = string(data)
		}
		switch {
		case p.query:
			query.Set(p.name, text)
		case p.rest:
			segments := strings.Split(text, "/")
			for i := range segments {
				segments[i] = url.PathEscape(segments[i])
			}
			path = strings.Replace(path, "{"+p.name+"...}", strings.Join(segments, "/"), 1)
		default:
			path = strings.Replace(path, "{"+p.name+"}", url.PathEscape(text), 1)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	if s.body {
		body, err = s.encodeBody(in)
	}
	return path, body, err
}

// encodeBody returns in as JSON, without the fields in the URL.
func (s shape) encodeBody(in any) ([]byte, error) {
	body, err := json.Marshal(in)
	if err != nil || len(s.params) == 0 {
		return body, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	for _, p := range s.params {
		delete(fields, p.name)
	}
	return json.Marshal(fields)
}

// decode reads a row's input from a request; in is a pointer.
func (s shape) decode(r *http.Request, in any) error {
	if s.body {
		dec := json.NewDecoder(r.Body)
		dec.DisallowUnknownFields() // a newer client's field must not be dropped silently
		if err := dec.Decode(in); err != nil {
			return &job.FieldError{Field: "request", Problem: err.Error(), Remedy: "if linus was updated, restart the engine: linus serve --stop"}
		}
	}
	query := r.URL.Query()
	for _, p := range s.params {
		text := r.PathValue(p.name)
		if p.query {
			text = query.Get(p.name)
		}
		if err := setField(reflect.ValueOf(in).Elem().Field(p.field), text); err != nil {
			return &job.FieldError{Field: p.name, Problem: err.Error(), Remedy: "give " + formOf(s.in.Field(p.field).Type)}
		}
	}
	return nil
}

// setField sets a field from its text in a URL; empty text means zero.
func setField(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case text != "":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		v.SetInt(n)
	}
	return nil
}

// formOf describes valid values of a field of type t in a URL.
func formOf(t reflect.Type) string {
	if t == reflect.TypeFor[duration]() {
		return "a duration such as 24h"
	}
	return "a whole number"
}

// answer sends body or, if err is not nil, the error.
func answer(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	if err != nil {
		var f failure
		code, f = encodeError(err)
		body = map[string]failure{"error": f}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client is gone
}

// request returns the HTTP request of a call.
func (s shape) request(ctx context.Context, in any) (*http.Request, error) {
	path, body, err := s.encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, s.method, "http://engine"+path, bytes.NewReader(body)) //nolint:gosec // the host is a socket, whatever the path
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	if client := job.ClientFrom(ctx); client != "" {
		req.Header.Set(clientHeader, client)
	}
	return req, nil
}

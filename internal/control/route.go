package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
)

// row is one operation, as an HTTP route.
type row struct {
	shape
	serve http.HandlerFunc
}

// shape is the part of a row that a client needs.
type shape struct {
	name       string // the method's name
	method     string
	path       string // a pattern of http.ServeMux
	params     []param
	heavy      bool         // the result may have as many bytes as a request
	body       bool         // the fields that are not params, as JSON
	stream     int          // the field that is the whole body, an io.Reader; -1: none
	in, out    reflect.Type // out is nil for a WebSocket
	repeatable func(in any) bool
}

// param is an input field that is in the URL.
type param struct {
	name  string // in JSON and in the URL
	field int
	query bool // false: in the path
	rest  bool // the rest of the path, slashes included
}

// route returns the row of an operation that is one request.
func route(s shape, call func(ctx context.Context, in any) (any, error)) row {
	return row{s, func(w http.ResponseWriter, r *http.Request) {
		in, err := s.decode(r)
		var out any
		if err == nil {
			out, err = call(r.Context(), in)
		}
		if err != nil && errors.Is(context.Cause(r.Context()), job.ErrUnauthorized) {
			Refuse(w, http.StatusUnauthorized, "unauthorized", "Unauthorized: the token was revoked, or has expired") // whatever err says of that
			return
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		switch out := out.(type) {
		case job.Download:
			sendFile(w, out)
		case io.ReadCloser:
			sendTree(w, out)
		default:
			answer(w, out, nil)
		}
	}}
}

// plain returns the row of an operation without an input.
func plain[Out any](name, at string, repeatable func(any) bool, call func(context.Context) (Out, error)) row {
	s := newShape(name, at, reflect.TypeFor[job.None]())
	s.out, s.repeatable = reflect.TypeFor[Out](), repeatable
	return route(s, func(ctx context.Context, _ any) (any, error) { return call(ctx) })
}

// newShape returns the shape of an operation at a route, as of job.Verb, with an input.
func newShape(name, at string, in reflect.Type) shape {
	s := shape{name: name, in: in, stream: -1}
	s.method, s.path, _ = strings.Cut(at, " ")
	path, query, _ := strings.Cut(strings.TrimSuffix(s.path, "}"), "{?")
	if query != "" {
		s.path = path
	}
	for i := range s.in.NumField() {
		field, _, _ := strings.Cut(s.in.Field(i).Tag.Get("json"), ",")
		switch {
		case field == "":
			continue // an embedded struct's are in the body
		case s.in.Field(i).Type == reflect.TypeFor[io.Reader]():
			s.stream = i
			continue
		}
		p := param{name: field, field: i, rest: strings.Contains(s.path, "{"+field+"...}")}
		p.query = strings.Contains(","+query+",", ","+field+",")
		if p.query || p.rest || strings.Contains(s.path, "{"+field+"}") {
			s.params = append(s.params, p)
		}
	}
	s.body = s.stream < 0 && len(s.params) < s.in.NumField()
	return s
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
		if t, ok := v.Field(p.field).Interface().(time.Time); ok && t.IsZero() {
			text = ""
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

// decode reads a row's input from a request.
func (s shape) decode(r *http.Request) (any, error) {
	in := reflect.New(s.in)
	if s.stream >= 0 {
		in.Elem().Field(s.stream).Set(reflect.ValueOf(r.Body))
	} else if err := s.decodeBody(r, in.Interface()); err != nil {
		return nil, err
	}
	query, err := s.query(r.URL)
	if err != nil {
		return nil, err
	}
	for _, p := range s.params {
		text := r.PathValue(p.name)
		if p.query {
			text = query.Get(p.name)
		}
		if err := setField(in.Elem().Field(p.field), text); err != nil {
			return nil, &job.FieldError{Field: p.name, Problem: err.Error(), Remedy: "give " + formOf(s.in.Field(p.field).Type)}
		}
	}
	return in.Elem().Interface(), nil
}

// noBody is how large the body of a request that needs none may be, in bytes.
const noBody = 4 << 10

// readyBody is a body that is in memory.
type readyBody struct {
	io.ReadCloser
	data []byte
}

// decodeBody reads the fields that are not in the URL. A request without such fields may have
// an empty object as its body; more would be ignored.
func (s shape) decodeBody(r *http.Request, in any) error {
	if !s.body {
		r.Body = http.MaxBytesReader(nil, r.Body, noBody)
	}
	var data []byte
	var err error
	if ready, ok := r.Body.(*readyBody); ok {
		data = ready.data
	} else {
		data, err = io.ReadAll(r.Body)
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return large
	case err != nil:
		return &job.FieldError{Field: "request", Problem: "its body did not arrive: " + err.Error(), Remedy: "send it again"}
	case !s.body && len(bytes.TrimSpace(data)) == 0:
		return nil
	case s.body && len(data) == 0:
		return &job.FieldError{Field: "request", Problem: "has no body", Remedy: "give one JSON object"}
	}
	tree, err := job.DecodeStrict("", data, in)
	if checked, ok := in.(interface{ CheckJSON(tree any) error }); ok && err == nil {
		err = checked.CheckJSON(tree)
	}
	given, _ := tree.(map[string]any)
	for _, p := range s.params {
		if _, twice := given[p.name]; twice && err == nil {
			where := "path"
			if p.query {
				where = "query"
			}
			return &job.FieldError{Field: p.name, Problem: "is in the body", Remedy: "give it in the " + where + " of the URL"}
		}
	}
	var bad *job.InvalidError
	if errors.As(err, &bad) {
		for _, f := range bad.Fields {
			f.Field = cmp.Or(f.Field, "request")
			if r.Header.Get(clientHeader) != "" { // one of ours knows its fields: it is newer, or older
				f.Remedy = "if linus was updated, restart the engine: linus serve --stop"
			}
		}
	}
	return err
}

// query returns the parameters of a URL: only those of the shape, each once.
func (s shape) query(u *url.URL) (url.Values, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, &job.FieldError{Field: "request", Problem: "its query cannot be read: " + err.Error(), Remedy: "encode the parameters"}
	}
	var known []string
	for _, p := range s.params {
		if p.query {
			known = append(known, p.name)
		}
	}
	var bad []*job.FieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !slices.Contains(known, name):
			bad = append(bad, &job.FieldError{Field: name, Problem: "is not a parameter of this operation", Remedy: job.DidYouMean(name, known)})
		case len(query[name]) > 1:
			bad = append(bad, &job.FieldError{Field: name, Problem: "is given twice", Remedy: "give it once"})
		}
	}
	if len(bad) > 0 {
		return nil, &job.InvalidError{Fields: bad}
	}
	return query, nil
}

// setField sets a field from its text in a URL; empty text means zero.
func setField(v reflect.Value, text string) error {
	if _, ok := v.Interface().(time.Time); ok && text == "" {
		return nil
	}
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
	if t == reflect.TypeFor[job.DurationText]() {
		return "a duration such as 24h"
	}
	if t == reflect.TypeFor[time.Time]() {
		return "a time such as 2026-01-02T15:04:05Z"
	}
	return "a whole number"
}

// answer sends body or, if err is not nil, the error.
func answer(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	if err != nil {
		var f failure
		code, f = encodeError(err)
		if f.Code == codeUnavailable {
			w.Header().Set("Retry-After", "5")
		}
		if f.Denied != nil { // as RFC 6750 says
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", f.Denied.Need.Scope()))
		}
		body = map[string]failure{"error": f}
	}
	if v := reflect.ValueOf(body); v.Kind() == reflect.Slice && v.IsNil() {
		body = []job.None{} // a list of none
	}
	send(w, code, body)
}

// send sends body as JSON.
func send(w http.ResponseWriter, code int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen: the types are ours
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data) // fails only if the client is gone
}

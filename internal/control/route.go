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
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/view"
)

// row is an operation as an HTTP route.
type row struct {
	shape
	serve http.HandlerFunc
}

// shape is the part of a row that a client needs: a verb, or the like, as an HTTP request.
type shape struct {
	*job.Verb

	method string
	path   string // a pattern of http.ServeMux
	params []param
	body   bool         // whether there is a JSON body, with the fields that are not params
	whole  []int        // the field that is the whole body: an io.Reader, or bytes; nil: none
	in     reflect.Type // the verb's, or job.Query for a verb that lists
}

// param is an input field that is not in the body.
type param struct {
	name  string // in JSON and in the URL
	field []int
	in    place
	rest  bool // the rest of the path, slashes included
	need  bool // required
	many  bool // repeatable
}

type place string

const (
	inPath   place = "path"
	inQuery  place = "query"
	inHeader place = "header"
)

// socket reports whether the operation is a WebSocket.
func (s shape) socket() bool { return s.Out == reflect.TypeFor[job.Tunnel]() }

// streams reports whether the body is processed while it arrives.
func (s shape) streams() bool {
	return s.whole != nil && s.in.FieldByIndex(s.whole).Type == reflect.TypeFor[io.Reader]()
}

// route returns the row of an operation that is a single request.
func route(s shape, call func(ctx context.Context, in any) (any, error)) row {
	return row{s, func(w http.ResponseWriter, r *http.Request) {
		in, err := s.decode(r)
		if err != nil {
			refuse(w, err)
			return
		}
		if s.follows() && strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			s.stream(w, r, in, call)
			return
		}
		out, err := call(listened(w, r), in)
		if err != nil && errors.Is(context.Cause(r.Context()), job.ErrUnauthorized) {
			Refuse(w, http.StatusUnauthorized, codeUnauthorized, "Unauthorized: the token was revoked, or has expired") // whatever err says
			return
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		s.respond(w, r, out)
	}}
}

// progressHeader in a request says that the client accepts informational responses (102), which
// some programs cannot handle. In those it has the engine's progress, percent-encoded.
const progressHeader = "Linus-Progress"

// listened returns a context whose listener sends progress to the client.
func listened(w http.ResponseWriter, r *http.Request) context.Context {
	if r.Header.Get(progressHeader) == "" || !r.ProtoAtLeast(1, 1) {
		return r.Context()
	}
	var turn sync.Mutex // several nodes may be waited for at once
	return job.WithListener(r.Context(), func(p job.Progress) {
		turn.Lock()
		defer turn.Unlock()
		w.Header().Set(progressHeader, url.QueryEscape(p.Line()))
		w.WriteHeader(http.StatusProcessing)
		w.Header().Del(progressHeader)
	})
}

func (s shape) respond(w http.ResponseWriter, r *http.Request, out any) {
	switch out := out.(type) {
	case job.Download:
		sendFile(w, r, out)
		return
	case io.ReadCloser:
		sendTree(w, out)
		return
	case job.None:
		if s.Makes != job.Accepted {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	if body := bodyOf(s.Out); body != nil {
		sendBody(w, r, reflect.ValueOf(out), body)
		return
	}
	if tagged, ok := out.(interface{ ETag() string }); ok {
		w.Header().Set("ETag", tagged.ETag())
	}
	code := http.StatusOK
	switch s.Makes {
	case job.Done:
	case job.Created:
		code = http.StatusCreated
	case job.Accepted:
		code = http.StatusAccepted
	}
	if s.At != nil {
		w.Header().Set("Location", APIPrefix+"/v1/"+s.At(out))
	}
	rows, paged := out.(job.Rows)
	if paged {
		out = rows.Items
	}
	data, err := view.Marshal(out)
	if s.Key != "" && err == nil {
		list := map[string]any{s.Key: json.RawMessage(data)}
		if rows.Next != "" {
			list["next_cursor"] = rows.Next
		}
		data, err = json.Marshal(list)
	}
	sendData(w, code, "application/json", data, err)
}

var shapes sync.Map // by verb

func shapeOf(v *job.Verb) shape {
	if found, ok := shapes.Load(v); ok {
		return found.(shape)
	}
	s := findShape(v)
	shapes.Store(v, s)
	return s
}

func findShape(v *job.Verb) shape {
	s := shape{Verb: v, in: v.In}
	s.method, s.path, _ = strings.Cut(v.Route, " ")
	path, query, _ := strings.Cut(strings.TrimSuffix(s.path, "}"), "{?")
	if query != "" {
		s.path = path
	}
	if v.Select != nil {
		s.in, query = reflect.TypeFor[job.Query](), strings.Join(v.List().Params, ",")
	}
	for _, f := range view.Fields(s.in) {
		p := param{name: f.Name, field: f.Path, need: f.Needed, rest: strings.Contains(s.path, "{"+f.Name+"...}")}
		switch {
		case f.Type == reflect.TypeFor[io.Reader]() || f.Body:
			s.whole = f.Path
			continue
		case f.Header:
			p.in = inHeader
		case strings.Contains(","+query+",", ","+f.Name+","):
			p.in, p.many = inQuery, f.Type.Kind() == reflect.Slice
		case p.rest || strings.Contains(s.path, "{"+f.Name+"}"):
			p.in = inPath
		case s.method == http.MethodGet: // not part of the request: GET has no body
			continue
		default:
			s.body = true
			continue
		}
		s.params = append(s.params, p)
	}
	return s
}

// encode returns the path with its query, the headers and the body of a request for in.
func (s shape) encode(in any) (path string, header http.Header, body []byte, err error) {
	path, header = s.path, http.Header{}
	query := url.Values{}
	v := reflect.ValueOf(in)
	for _, p := range s.params {
		field := v.FieldByIndex(p.field)
		text := fmt.Sprint(field.Interface())
		if m, ok := field.Interface().(encoding.TextMarshaler); ok {
			data, err := m.MarshalText()
			if err != nil {
				return "", nil, nil, fmt.Errorf("encode %s: %w", p.name, err)
			}
			text = string(data)
		}
		switch {
		case p.in != inPath && field.IsZero() && !p.need:
		case p.in == inHeader:
			header.Set(p.name, url.QueryEscape(text))
		case p.in == inQuery && p.many:
			query[p.name] = field.Interface().([]string)
		case p.in == inQuery:
			query.Set(p.name, text)
		case p.rest:
			path = strings.Replace(path, "{"+p.name+"...}", job.EscapePath(text), 1)
		default:
			path = strings.Replace(path, "{"+p.name+"}", url.PathEscape(text), 1)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	switch {
	case s.body:
		body, err = s.encodeBody(in)
	case s.whole != nil && !s.streams():
		body = v.FieldByIndex(s.whole).Bytes()
	}
	return path, header, body, err
}

// encodeBody returns in as JSON, without the fields that are params.
func (s shape) encodeBody(in any) ([]byte, error) {
	body, err := view.Marshal(in)
	has := func(p param) bool { return bytes.Contains(body, []byte(`"`+p.name+`":`)) } // at the top or nested
	if err != nil || !slices.ContainsFunc(s.params, has) {
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

func (s shape) decode(r *http.Request) (any, error) {
	query, err := s.query(r.URL)
	if err != nil {
		return nil, err
	}
	in := reflect.New(s.in)
	switch {
	case s.streams():
		in.Elem().FieldByIndex(s.whole).Set(reflect.ValueOf(r.Body))
	case s.whole != nil:
		data, err := readBody(r)
		if err != nil {
			return nil, err
		}
		in.Elem().FieldByIndex(s.whole).SetBytes(data)
	default:
		if err := s.decodeBody(r, in.Interface()); err != nil {
			return nil, err
		}
	}
	for _, p := range s.params {
		text := r.PathValue(p.name)
		switch p.in {
		case inPath:
		case inQuery:
			if text = query.Get(p.name); p.many {
				in.Elem().FieldByIndex(p.field).Set(reflect.ValueOf(query[p.name]))
				continue
			}
		case inHeader:
			if text = r.Header.Get(p.name); own(r) {
				text, err = url.QueryUnescape(text)
			}
		}
		if err == nil && p.need && text == "" {
			return nil, job.Needed(p.name, "")
		}
		if err == nil {
			err = setField(in.Elem().FieldByIndex(p.field), text)
		}
		if err != nil {
			return nil, &job.FieldError{Field: p.name, Problem: err.Error(), Remedy: "give " + formOf(s.in.FieldByIndex(p.field).Type)}
		}
	}
	err = s.ranged(r, in.Elem())
	return in.Elem().Interface(), err
}

// own reports whether a request is from linus's own client, which gets texts unchanged.
func own(r *http.Request) bool { return r.Header.Get(clientHeader) != "" }

// noBody is the limit in bytes for the body of a request that needs none.
const noBody = 4 << 10

func readBody(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	switch large, ok := errors.AsType[*http.MaxBytesError](err); {
	case ok:
		return nil, large
	case err != nil:
		return nil, &job.FieldError{Field: "request", Problem: "its body did not arrive: " + err.Error(), Remedy: "send it again"}
	}
	return data, nil
}

// decodeBody decodes the fields that are in the body. A request without such fields may have an
// empty object as its body; anything else is refused.
func (s shape) decodeBody(r *http.Request, in any) error {
	if !s.body {
		r.Body = http.MaxBytesReader(nil, r.Body, noBody)
	}
	data, err := readBody(r)
	switch {
	case err != nil:
		return err
	case !s.body && len(bytes.TrimSpace(data)) == 0:
		return nil
	case s.body && len(data) == 0:
		return &job.FieldError{Field: "request", Problem: "has no body", Remedy: "give one JSON object"}
	}
	tree, err := view.DecodeStrict(data, in)
	if checked, ok := in.(interface{ CheckJSON(tree any) error }); ok && err == nil {
		err = checked.CheckJSON(tree)
	}
	given, _ := tree.(map[string]any)
	for _, p := range s.params {
		if _, twice := given[p.name]; twice && err == nil {
			return &job.FieldError{Field: p.name, Problem: "is in the body", Remedy: "give it in the " + string(p.in)}
		}
	}
	if bad, ok := errors.AsType[*job.InvalidError](err); ok {
		for _, f := range bad.Fields {
			f.Field = cmp.Or(f.Field, "request")
			if own(r) { // linus's own client has another version
				f.Remedy = "if linus was updated, restart the engine: linus serve --stop"
			}
		}
	}
	return err
}

// query returns the parameters of a URL. It refuses unknown and repeated ones.
func (s shape) query(u *url.URL) (url.Values, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, &job.FieldError{Field: "request", Problem: "its query cannot be read: " + err.Error(), Remedy: "encode the parameters"}
	}
	var known, many []string
	for _, p := range s.params {
		if p.in == inQuery {
			known = append(known, p.name)
		}
		if p.many {
			many = append(many, p.name)
		}
	}
	var bad []*job.FieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !slices.Contains(known, name):
			bad = append(bad, &job.FieldError{Field: name, Problem: "is not a parameter of this operation", Remedy: job.DidYouMean(name, known)})
		case len(query[name]) > 1 && !slices.Contains(many, name):
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
	if text == "" {
		return nil
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%.80q is neither true nor false", text)
		}
		v.SetBool(b)
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%.80q is not a whole number", text)
		}
		v.SetInt(n)
	}
	return nil
}

// formOf describes valid values of a field of type t in a URL.
func formOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "a time such as 2026-01-02T15:04:05Z"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	}
	return "a whole number"
}

func sendData(w http.ResponseWriter, code int, kind string, data []byte, err error) {
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen: the types are linus's own
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data) // fails only if the client is gone
}

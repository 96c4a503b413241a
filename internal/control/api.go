package control

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/view"
)

// openapi describes the API. A test generates it from the table.
//
//go:embed openapi.json
var openapi []byte

// APIPrefix is the path of the API below a server's URL.
const APIPrefix = "/api"

// APIOptions are the options of API.
type APIOptions struct {
	Version string       // of the engine's binary
	Bodies  *job.Bodies  // as in web.Options
	Log     *slog.Logger // of failures, with the request's ID; nil: none
}

// API returns the handler of /api/v1, for clients on other machines: the engine's verbs as on the
// socket, with the same inputs, results and errors, and of the calls to the process only Info.
// API's caller authenticates requests, and ends a request's context when the principal may no
// longer make it. It also ends requests of clients that do not read their response.
func API(e job.Engine, o APIOptions) http.Handler {
	mux := http.NewServeMux()
	bodies := apiBodies{cmp.Or(o.Bodies, new(job.Bodies)), &job.Bodies{Apart: true}}
	info := plain(infoVerb, func(ctx context.Context) (Info, error) {
		info := Info{Version: o.Version}
		if p, ok := job.PrincipalFrom(ctx); ok {
			info.Caller = &Caller{Name: p.Name, Role: p.Role, Toolsets: p.Toolsets}
		}
		return info, nil
	})
	rows := append(verbs(phrased(named(job.Shared(e)))), info)
	methods := map[string][]string{} // by path
	for _, r := range rows {
		handleAPI(mux, r, bodies)
		methods[r.path] = append(methods[r.path], r.method)
	}
	for path, those := range methods {
		allow := strings.Join(those, ", ")
		mux.HandleFunc(APIPrefix+path, func(w http.ResponseWriter, r *http.Request) { // any other method
			w.Header().Set("Allow", allow)
			Refuse(w, http.StatusMethodNotAllowed, codeNoMethod, fmt.Sprintf("%s does not take %s, only %s", r.URL.Path, r.Method, allow))
		})
	}
	mux.HandleFunc("GET "+APIPrefix+"/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		Refuse(w, http.StatusNotFound, codeNoRoute, fmt.Sprintf("%s %s is not an operation of this API; GET %s/v1/openapi.json describes them", r.Method, r.URL.Path, APIPrefix))
	})
	return identified(mux, o.Log)
}

// identified gives each response the ID of its request, and logs requests that failed (5xx).
func identified(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := view.Identify(w, r)
		if log == nil {
			next.ServeHTTP(w, r)
			return
		}
		seen := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(seen, r)
		if seen.status >= http.StatusInternalServerError {
			log.Warn("request failed", "request_id", id, "method", r.Method, "path", r.URL.Path, "status", seen.status)
		}
	})
}

// statusWriter records a response's status.
type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap supports http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// bodyTime bounds how long a request's body, or each part of a streamed one, may take to arrive. A
// body that is not streamed gets a second more for each slowest bytes.
const (
	bodyTime = time.Minute
	slowest  = 64 << 10
)

// apiBodies limits the memory of requests and of large responses.
type apiBodies struct{ in, out *job.Bodies }

func handleAPI(mux *http.ServeMux, at row, bodies apiBodies) {
	mux.HandleFunc(at.method+" "+APIPrefix+at.path, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("token") || q.Has("access_token") {
			Refuse(w, http.StatusBadRequest, codeInvalid, "a token in a URL ends up in logs: send it as Authorization: Bearer, and replace this one")
			return
		}
		who, known := job.PrincipalFrom(r.Context())
		if known && (at.body || at.whole != nil) { // before its body is read
			if err := who.Refusal(at); err != nil {
				at.fail(w, r, err)
				return
			}
		}
		if at.body || at.Heavy || at.whole != nil && !at.streams() {
			memory, size := bodies.in, r.ContentLength
			if at.Heavy {
				memory, size = bodies.out, -1 // unknown until it is read
			}
			leave, err := memory.Take(r.Context(), size)
			if err != nil {
				at.fail(w, r, err)
				return
			}
			defer leave()
		}
		timely := &timelyBody{ReadCloser: r.Body, conn: http.NewResponseController(w)}
		switch {
		case at.streams():
			timely.each = bodyTime
			r.Body = timely
		case r.ContentLength > maxBody:
			at.fail(w, r, &http.MaxBytesError{Limit: maxBody})
			return
		case at.body || at.whole != nil:
			size := r.ContentLength
			if size < 0 {
				size = maxBody
			}
			timely.give(bodyTime + time.Duration(size/slowest)*time.Second)
			r.Body = http.MaxBytesReader(w, timely, maxBody)
		}
		ctx := job.WithClient(r.Context(), apiClient(r))
		if own(r) {
			ctx = context.WithValue(ctx, ownKey{}, true)
		}
		at.serve(w, r.WithContext(ctx))
	})
}

// apiClient returns the client's name of a request: that of an MCP server if the request gives one,
// else "api". An MCP name has no more rights than "api".
func apiClient(r *http.Request) string {
	name := r.Header.Get(clientHeader)
	if job.IsMCP(name) {
		return name
	}
	return "api"
}

// named returns an engine whose callers cannot choose the client's name.
func named(e job.Engine) job.Engine {
	return job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		if s, ok := in.(job.Submission); ok {
			s.Client = job.ClientFrom(ctx)
			in = s
		}
		return v.Do(ctx, e, in)
	})
}

// phrased returns an engine with results in the API's words. linus's own clients get the results
// unchanged, because they have their own words.
func phrased(e job.Engine) job.Engine {
	return job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		out, err := v.Do(ctx, e, in)
		if ctx.Value(ownKey{}) == nil {
			out = apiWords.Phrase(out)
		}
		return out, err
	})
}

// ownKey is the context key that marks requests of linus's own clients.
type ownKey struct{}

// timelyBody is a body with a deadline for the whole, or for each part.
type timelyBody struct {
	io.ReadCloser
	conn *http.ResponseController
	each time.Duration // 0: the whole body has a deadline
}

func (b *timelyBody) give(d time.Duration) {
	_ = b.conn.SetReadDeadline(time.Now().Add(d)) // a test's recorder has no deadline
}

func (b *timelyBody) Read(data []byte) (int, error) {
	if b.each > 0 {
		b.give(b.each)
	}
	n, err := b.ReadCloser.Read(data)
	if err == nil && b.each > 0 || errors.Is(err, io.EOF) { // after an error it stays: the server would wait for the rest
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

package control

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"linus/internal/job"
)

// openapi describes the API. A test makes it from the table.
//
//go:embed openapi.json
var openapi []byte

// APIPrefix is where the API is below a server's URL.
const APIPrefix = "/api"

// APIOptions are the options of API.
type APIOptions struct {
	Version string      // of the engine's binary
	Bodies  *job.Bodies // as in web.Options
}

// API returns the handler of /api/v1, for clients on other machines: the engine's verbs
// as on the socket, with the same inputs, results and errors, and none of the calls to
// the process but Info. Who calls is for its caller to check: a request's context ends
// when it may no longer be made. So is a client that does not read its response.
func API(e job.Engine, o APIOptions) http.Handler {
	mux := http.NewServeMux()
	bodies := apiBodies{cmp.Or(o.Bodies, new(job.Bodies)), &job.Bodies{Apart: true}}
	info := plain("Info", "GET /v1/info", always, func(ctx context.Context) (Info, error) {
		info := Info{Version: o.Version}
		if p, ok := job.PrincipalFrom(ctx); ok {
			info.Caller = &Caller{Name: p.Name, Role: p.Role, Toolsets: p.Toolsets}
		}
		return info, nil
	})
	for _, r := range append(verbs(named(e)), info) {
		handleAPI(mux, r, bodies)
	}
	mux.HandleFunc("GET "+APIPrefix+"/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openapi)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		Refuse(w, http.StatusNotFound, codeNoRoute, fmt.Sprintf("%s %s is no operation of this API; GET %s/v1/openapi.json describes them", r.Method, r.URL.Path, APIPrefix))
	})
	return mux
}

// bodyTime bounds how long a request's body, or a part of one that streams, may take to
// arrive; a body has slowest bytes a second besides.
const (
	bodyTime = time.Minute
	slowest  = 64 << 10
)

// apiBodies is the memory of requests and of large responses.
type apiBodies struct{ in, out *job.Bodies }

func handleAPI(mux *http.ServeMux, at row, bodies apiBodies) {
	mux.HandleFunc(at.method+" "+APIPrefix+at.path, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("token") || q.Has("access_token") {
			Refuse(w, http.StatusBadRequest, codeInvalid, "a token in a URL ends up in logs: send it as Authorization: Bearer, and replace this one")
			return
		}
		who, known := job.PrincipalFrom(r.Context())
		if known && (at.body || at.stream >= 0) { // nothing is read for it
			if err := who.Refusal(at.name); err != nil {
				answer(w, nil, err)
				return
			}
		}
		if at.body || at.heavy {
			memory, size := bodies.in, r.ContentLength
			if at.heavy {
				memory, size = bodies.out, -1 // nobody knows before it is read
			}
			leave, err := memory.Take(r.Context(), size)
			if err != nil {
				answer(w, nil, err)
				return
			}
			defer leave()
		}
		if at.stream >= 0 {
			r.Body = &timelyBody{r.Body, http.NewResponseController(w)}
		} else if r.ContentLength > maxBody {
			answer(w, nil, &http.MaxBytesError{Limit: maxBody})
			return
		}
		if at.body {
			if err := readBody(w, r); err != nil {
				answer(w, nil, err)
				return
			}
		}
		at.serve(w, r.WithContext(job.WithClient(r.Context(), apiClient(r))))
	})
}

// apiClient names the client of a request: that of an MCP server, if it says so, and
// otherwise "api". No name gives more rights than that one.
func apiClient(r *http.Request) string {
	name := r.Header.Get(clientHeader)
	if job.IsMCP(name) {
		return name
	}
	return "api"
}

// named is an engine whose callers do not choose the client's name.
func named(e job.Engine) job.Engine {
	return job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		if s, ok := in.(job.Submission); ok {
			s.Client = job.ClientFrom(ctx)
			in = s
		}
		return v.Do(ctx, e, in)
	})
}

// Refuse responds to a request with an error in the API's format.
func Refuse(w http.ResponseWriter, status int, code, text string) {
	send(w, status, map[string]failure{"error": {Code: code, Text: text}})
}

// readBody replaces the request's body by one in memory, which has its time to arrive.
func readBody(w http.ResponseWriter, r *http.Request) error {
	size := r.ContentLength
	if size < 0 {
		size = maxBody
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTime + time.Duration(size/slowest)*time.Second)) // a recorder in a test has none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case err == nil:
		_ = conn.SetReadDeadline(time.Time{})
	case !errors.As(err, &large): // the deadline stays: the server would wait for the rest
		err = &job.FieldError{Field: "request", Problem: "its body did not arrive: " + err.Error(), Remedy: "send it again"}
	}
	r.Body = &readyBody{r.Body, body}
	return err
}

// timelyBody is a body that is read as it arrives, and each part of which has its time.
type timelyBody struct {
	io.ReadCloser
	conn *http.ResponseController
}

func (b *timelyBody) Read(data []byte) (int, error) {
	_ = b.conn.SetReadDeadline(time.Now().Add(bodyTime)) // a recorder in a test has none
	n, err := b.ReadCloser.Read(data)
	if err == nil || errors.Is(err, io.EOF) { // otherwise it stays: the server would wait for the rest
		_ = b.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

package web

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"

	"github.com/gorilla/mux"

	"linus/internal/intake"
	"linus/internal/job"
)

// Response headers of an output: the offset of the next request, whether the stream is complete,
// and how many bytes before the returned ones were not kept.
const (
	nextHeader     = "Linus-Next-Offset"
	completeHeader = "Linus-Complete"
	droppedHeader  = "Linus-Dropped"
)

// Bounds in bytes: of one response, and of one read from the engine.
const (
	mostOutput = 16 << 20
	maxChunk   = 1 << 20
)

// output returns up to ?limit= bytes of a stream from ?offset= (negative: from the end), exactly as
// the task wrote them.
func (a *api) output(w http.ResponseWriter, r *http.Request) {
	id, q := mux.Vars(r)["id"], r.URL.Query()
	stream := q.Get("stream")
	if stream == "" {
		stream = job.Stdout
	}
	offset, offsetErr := number(q.Get("offset"), 0)
	limit, limitErr := number(q.Get("limit"), mostOutput)
	switch {
	case stream != job.Stdout && stream != job.Stderr:
		fail(w, http.StatusBadRequest, fmt.Sprintf("stream: %q is unknown; use stdout or stderr", stream))
		return
	case offsetErr != nil:
		fail(w, http.StatusBadRequest, fmt.Sprintf("offset: %q is not a whole number", q.Get("offset")))
		return
	case limitErr != nil || limit < 1 || limit > mostOutput:
		fail(w, http.StatusBadRequest, fmt.Sprintf("limit: %q is not a number from 1 to %d", q.Get("limit"), mostOutput))
		return
	}
	for name := range q {
		if known := []string{"stream", "offset", "limit"}; !slices.Contains(known, name) {
			fail(w, http.StatusBadRequest, fmt.Sprintf("%.40q is not a parameter of an output; %s", name, job.DidYouMean(name, known)))
			return
		}
	}
	leave, err := a.outputs.Take(r.Context(), limit)
	if err != nil { // the client is gone or lost its permission
		return
	}
	defer leave()
	var data []byte
	var last job.Chunk
	var dropped int64
	for int64(len(data)) < limit && !last.Complete {
		if last, err = a.Engine.Output(r.Context(), id, stream, offset, min(limit-int64(len(data)), maxChunk)); err != nil {
			a.failed(w, r, err)
			return
		}
		dropped += last.Dropped
		if offset = last.Next; len(last.Data) == 0 {
			break
		}
		data = append(data, last.Data...)
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	h.Set(nextHeader, strconv.FormatInt(offset, 10))
	h.Set(completeHeader, strconv.FormatBool(last.Complete))
	h.Set(droppedHeader, strconv.FormatInt(dropped, 10))
	_, _ = w.Write(data) // fails only if the client is gone
}

// number parses a whole number. An empty text yields def.
func number(text string, def int64) (int64, error) {
	if text == "" {
		return def, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// artifact returns a file a job left, byte for byte.
func (a *api) artifact(w http.ResponseWriter, r *http.Request) {
	vars := mux.Vars(r)
	file, about, err := a.Engine.OpenArtifact(r.Context(), vars["id"], vars["path"])
	if err != nil {
		a.failed(w, r, err)
		return
	}
	defer file.Close() //nolint:errcheck // only read
	attachment(w, path.Base(about.Path))
	h := w.Header()
	h.Set("Content-Length", strconv.FormatInt(about.Size, 10))
	h.Set("ETag", `"`+about.SHA256+`"`)
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.Copy(w, file); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// attachment makes the response a file that a browser saves, so that a browser never shows it as a
// page of this site.
func attachment(w http.ResponseWriter, name string) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": intake.Inert(name)}))
}

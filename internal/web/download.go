package web

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"

	"github.com/gorilla/mux"

	"linus/internal/job"
)

// Headers of an output: where the next request goes on, and whether anything
// can follow.
const (
	nextHeader     = "Linus-Next-Offset"
	completeHeader = "Linus-Complete"
)

// maxChunk is what is asked of the engine at once, in bytes.
const maxChunk = 1 << 20

// output answers the bytes a stream has from ?offset= on (negative: from the
// end), at most ?limit= of them, exactly as the task wrote them.
func (a *api) output(w http.ResponseWriter, r *http.Request) {
	id, q := mux.Vars(r)["id"], r.URL.Query()
	stream := q.Get("stream")
	if stream == "" {
		stream = job.Stdout
	}
	offset, offsetErr := number(q.Get("offset"))
	limit, limitErr := number(q.Get("limit"))
	switch {
	case stream != job.Stdout && stream != job.Stderr:
		fail(w, http.StatusBadRequest, fmt.Sprintf("stream: %q is unknown; use stdout or stderr", stream))
		return
	case offsetErr != nil:
		fail(w, http.StatusBadRequest, fmt.Sprintf("offset: %q is not a whole number", q.Get("offset")))
		return
	case limitErr != nil || limit < 0:
		fail(w, http.StatusBadRequest, fmt.Sprintf("limit: %q is not a number of bytes", q.Get("limit")))
		return
	}
	last, err := a.Engine.Output(r.Context(), id, stream, -1, 1)
	if err != nil {
		a.failed(w, r, err)
		return
	}
	end, complete := last.Next, last.Complete
	if offset < 0 {
		offset = max(0, end+offset)
	}
	if end = max(end, offset); limit > 0 && offset+limit < end {
		end, complete = offset+limit, false
	}
	chunk, err := a.Engine.Output(r.Context(), id, stream, offset, min(end-offset, maxChunk))
	if err != nil {
		a.failed(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(end-offset, 10))
	h.Set(nextHeader, strconv.FormatInt(end, 10))
	h.Set(completeHeader, strconv.FormatBool(complete))
	for offset < end {
		if int64(len(chunk.Data)) > end-offset {
			chunk.Data = chunk.Data[:end-offset]
		}
		if _, err := w.Write(chunk.Data); err != nil || r.Method == http.MethodHead {
			return
		}
		if offset += int64(len(chunk.Data)); offset == end {
			return
		}
		if chunk, err = a.Engine.Output(r.Context(), id, stream, offset, min(end-offset, maxChunk)); err != nil || len(chunk.Data) == 0 {
			panic(http.ErrAbortHandler) // an answer that breaks off must look like one
		}
	}
}

// number reads a whole number; empty is 0.
func number(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// artifact answers a file a job left, exactly.
func (a *api) artifact(w http.ResponseWriter, r *http.Request) {
	vars := mux.Vars(r)
	file, about, err := a.Engine.OpenArtifact(r.Context(), vars["id"], vars["path"])
	if err != nil {
		a.failed(w, r, err)
		return
	}
	defer file.Close() //nolint:errcheck // only read
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream") // never a page of ours to a browser
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(about.Path)}))
	h.Set("Content-Length", strconv.FormatInt(about.Size, 10))
	h.Set("ETag", `"`+about.SHA256+`"`)
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.Copy(w, file); err != nil {
		panic(http.ErrAbortHandler)
	}
}

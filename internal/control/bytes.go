package control

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"linus/internal/intake"
	"linus/internal/job"
	"linus/internal/view"
)

// bodyOf returns the field of a result that is the response's whole body; nil: there is none. The
// other fields are headers: next_offset is Linus-Next-Offset.
func bodyOf(t reflect.Type) *view.Field {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	all := view.Fields(t)
	for i := range all {
		if all[i].Body {
			return &all[i]
		}
	}
	return nil
}

// headerOf returns the header for a result's field.
func headerOf(f view.Field) string {
	return http.CanonicalHeaderKey("Linus-" + strings.ReplaceAll(f.Name, "_", "-"))
}

// sendBody sends bytes unencoded. A request with a Range gets the part that ranged has selected.
func sendBody(w http.ResponseWriter, r *http.Request, out reflect.Value, body *view.Field) {
	h := w.Header()
	for _, f := range view.Fields(out.Type()) {
		if !f.Body {
			h.Set(headerOf(f), fmt.Sprint(out.FieldByIndex(f.Path).Interface()))
		}
	}
	data := out.FieldByIndex(body.Path).Bytes()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Accept-Ranges", "bytes")
	code := http.StatusOK
	if r.Header.Get("Range") != "" {
		next := out.FieldByName("Next").Int()
		size := "*"
		if total := out.FieldByName("Size"); total.IsValid() && total.Int() > 0 {
			size = strconv.FormatInt(total.Int(), 10)
		}
		if len(data) == 0 {
			h.Set("Content-Range", "bytes */"+size)
			Refuse(w, http.StatusRequestedRangeNotSatisfiable, codeInvalid, "there is nothing, or nothing yet, from the first byte of the range on")
			return
		}
		code = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", next-int64(len(data)), next-1, size))
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data) // fails only if the client is gone
}

// readBytes decodes a response of sendBody.
func readBytes(resp *http.Response, data []byte, out reflect.Value, body *view.Field) error {
	for _, f := range view.Fields(out.Type()) {
		if f.Body {
			continue
		}
		if err := setField(out.FieldByIndex(f.Path), resp.Header.Get(headerOf(f))); err != nil {
			return fmt.Errorf("%s: %w", headerOf(f), err)
		}
	}
	out.FieldByIndex(body.Path).SetBytes(data)
	return nil
}

// ranged fills the offset and limit of an input from a Range header, if the result is bytes.
func (s shape) ranged(r *http.Request, in reflect.Value) error {
	text, body := r.Header.Get("Range"), bodyOf(s.Out)
	if text == "" || body == nil {
		return nil
	}
	wrong := &job.FieldError{Field: "Range", Problem: fmt.Sprintf("%.80q is not a single range of bytes", text), Remedy: "give one such as bytes=0-1023, bytes=1024- or bytes=-1024"}
	list, ok := strings.CutPrefix(text, "bytes=")
	first, last, dash := strings.Cut(list, "-")
	if !ok || !dash || r.URL.Query().Has("offset") || r.URL.Query().Has("limit") {
		return wrong
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 63)
		if err != nil || n < 0 {
			return -1
		}
		return n
	}
	offset, limit := number(first), int64(0)
	switch {
	case first == "" && number(last) > 0:
		offset = -number(last)
	case offset < 0 || last != "" && number(last) < offset:
		return wrong
	case last != "":
		limit = number(last) - offset + 1
	}
	in.FieldByName("Offset").SetInt(offset)
	in.FieldByName("Limit").SetInt(limit)
	return nil
}

// Headers of an artifact, in addition to its ETag, which is its SHA-256.
const (
	pathHeader = "Linus-Path" // percent-encoded
	modeHeader = "Linus-Mode"
)

// sendFile sends an artifact, or the requested range of it. If a read fails, it cuts the response
// off.
func sendFile(w http.ResponseWriter, r *http.Request, d job.Download) {
	defer func() { _ = d.File.Close() }()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(intake.Inert(path.Base(d.About.Path))))
	h.Set("ETag", strconv.Quote(d.About.SHA256))
	h.Set(pathHeader, url.QueryEscape(d.About.Path))
	h.Set(modeHeader, d.About.Mode)
	if file, ok := d.File.(io.ReadSeeker); ok {
		http.ServeContent(w, r, "", time.Time{}, file)
		return
	}
	h.Set("Content-Length", strconv.FormatInt(d.About.Size, 10))
	if _, err := io.Copy(w, d.File); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// aboutFile returns the artifact that a response of sendFile describes.
func aboutFile(resp *http.Response) (job.Artifact, error) {
	name, err := url.QueryUnescape(resp.Header.Get(pathHeader))
	if err != nil {
		return job.Artifact{}, err
	}
	sum, err := strconv.Unquote(resp.Header.Get("ETag"))
	return job.Artifact{Path: name, Size: resp.ContentLength, Mode: resp.Header.Get(modeHeader), SHA256: sum}, err
}

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"linus/internal/view"
)

const (
	treeType    = "application/x-tar"
	treeTrailer = "Linus-Error"
)

// sendTree sends a tar archive while the VM packs it. The trailer has an error during that.
func sendTree(w http.ResponseWriter, archive io.ReadCloser) {
	defer func() { _ = archive.Close() }()
	w.Header().Set("Content-Type", treeType)
	w.Header().Set("Trailer", treeTrailer)
	_, err := io.Copy(w, archive)
	if err != nil {
		_, p := encodeError(err)
		w.Header().Set(treeTrailer, headerText(p))
	}
}

// received is the body of a response of sendTree. The trailer says whether it is complete.
type received struct {
	io.ReadCloser

	resp *http.Response
}

func (r *received) Read(data []byte) (int, error) {
	n, err := r.ReadCloser.Read(data)
	switch text := r.resp.Trailer.Get(treeTrailer); {
	case errors.Is(err, io.EOF) && text != "":
		var f view.Problem
		if wrong := fromHeader(text, &f); wrong != nil {
			return n, fmt.Errorf("read the engine's response: %w", wrong)
		}
		return n, decodeError(f)
	case err != nil && !errors.Is(err, io.EOF):
		return n, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return n, err
}

// headerText encodes strings and numbers as a header's value.
func headerText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen
	}
	return url.QueryEscape(string(text))
}

// fromHeader decodes a header of headerText into what v points to.
func fromHeader(header string, v any) error {
	text, err := url.QueryUnescape(header)
	if err == nil {
		err = json.Unmarshal([]byte(text), v)
	}
	return err
}

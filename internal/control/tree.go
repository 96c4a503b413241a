package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

const (
	treeType    = "application/x-tar"
	treeTrailer = "Linus-Error"
)

// sendTree sends a tar archive from a VM while the VM packs it: an error that comes then is
// in the response's trailer.
func sendTree(w http.ResponseWriter, archive io.ReadCloser) {
	defer func() { _ = archive.Close() }()
	w.Header().Set("Content-Type", treeType)
	w.Header().Set("Trailer", treeTrailer)
	_, err := io.Copy(w, archive)
	if err != nil {
		_, f := encodeError(err)
		w.Header().Set(treeTrailer, f.inHeader())
	}
}

// received is the body of a response of sendTree, whose trailer says whether it is complete.
type received struct {
	io.ReadCloser

	resp *http.Response
}

func (r *received) Read(data []byte) (int, error) {
	n, err := r.ReadCloser.Read(data)
	switch text := r.resp.Trailer.Get(treeTrailer); {
	case errors.Is(err, io.EOF) && text != "":
		f, wrong := failureIn(text)
		if wrong != nil {
			return n, fmt.Errorf("read the engine's response: %w", wrong)
		}
		return n, f.decodeError()
	case err != nil && !errors.Is(err, io.EOF):
		return n, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return n, err
}

// inHeader returns the failure as a header's value.
func (f failure) inHeader() string {
	text, err := json.Marshal(f)
	if err != nil {
		return "" // cannot happen: strings and numbers
	}
	return url.QueryEscape(string(text))
}

func failureIn(header string) (f failure, err error) {
	text, err := url.QueryUnescape(header)
	if err == nil {
		err = json.Unmarshal([]byte(text), &f)
	}
	return f, err
}

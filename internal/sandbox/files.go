package sandbox

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// file describes an uploaded file in the answer.
type file struct {
	Name     string            `json:"name"`
	Type     string            `json:"type"` // file
	Path     string            `json:"path"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// problem is an error with an HTTP status.
type problem struct {
	status int
	error
}

// failing answers with a status that fits the handler's error.
func failing(handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := handle(w, r)
		status := http.StatusInternalServerError
		known, ok := errors.AsType[problem](err)
		switch {
		case err == nil:
			return
		case ok:
			status = known.status
		case errors.Is(err, fs.ErrNotExist):
			status = http.StatusNotFound
		case errors.Is(err, fs.ErrPermission):
			status = http.StatusForbidden
		case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
			status, err = http.StatusInsufficientStorage, fmt.Errorf("not enough disk space: %w", err)
		case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENAMETOOLONG):
			status = http.StatusBadRequest
		}
		refuse(w, status, err)
	}
}

func bad(format string, values ...any) error {
	return problem{http.StatusBadRequest, fmt.Errorf(format, values...)}
}

// asked returns the user and the absolute path of a request.
func (s *Server) asked(name, path string) (account, string, error) {
	a, err := s.account(name)
	if err != nil {
		return a, "", problem{http.StatusUnauthorized, err}
	}
	if path, err = s.path(a, path); err != nil {
		return a, "", problem{http.StatusBadRequest, err}
	}
	return a, path, nil
}

func (s *Server) getFiles(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	_, path, err := s.asked(q.Get("username"), q.Get("path"))
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not wait for a writer
	if errors.Is(err, fs.ErrNotExist) {
		err = problem{http.StatusNotFound, fmt.Errorf("path '%s' does not exist", path)}
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return bad("path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return bad("path '%s' is not a regular file", path)
	}
	packed, err := encoding(r.Header)
	if err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	var to io.Writer = w
	switch {
	case packed:
		w.Header().Set("Content-Encoding", "gzip")
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		defer z.Close() //nolint:errcheck // whoever asked is gone
		to = z
	case info.Size() > 0:
		http.ServeContent(w, r, path, info.ModTime(), f)
		return nil
	}
	// Files of /proc have size 0 but content.
	if w.Header().Set("Content-Type", "application/octet-stream"); r.Method != http.MethodHead {
		_, _ = io.Copy(to, f) // fails if the client is gone
	}
	return nil
}

// encoding reports whether to send gzip rather than the plain file. Most HTTP clients offer gzip by
// default; they get the plain file, which is faster.
func encoding(h http.Header) (packed bool, err error) {
	gzipped, plain, others := false, true, false
	for part := range strings.SplitSeq(strings.ToLower(h.Get("Accept-Encoding")), ",") {
		name, quality, _ := strings.Cut(part, ";")
		refused := strings.HasPrefix(strings.ReplaceAll(quality, " ", ""), "q=0") && !strings.ContainsAny(quality, "123456789")
		switch name = strings.TrimSpace(name); name {
		case "":
		case "gzip":
			gzipped = !refused
		case "identity", "*":
			plain, others = !refused, others || !refused
		default:
			others = true
		}
	}
	ranged := h.Get("Range") != "" || h.Get("If-Range") != "" || h.Get("If-None-Match") != "" || h.Get("If-Modified-Since") != ""
	if !plain && (!gzipped || ranged) {
		return false, problem{http.StatusNotAcceptable, errors.New("Accept-Encoding: no acceptable encoding found, supported: identity, gzip (not with Range or a condition)")} //nolint:staticcheck,revive // a header's name
	}
	return gzipped && !ranged && (!plain || !others), nil
}

func (s *Server) postFiles(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	a, path, err := s.asked(q.Get("username"), q.Get("path"))
	if err != nil {
		return err
	}
	metadata, err := metadataOf(r.Header)
	if err != nil {
		return err
	}
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return bad("Content-Encoding: the body is not gzip: %w", err)
		}
		r.Body = z
	default:
		return bad("Content-Encoding: %.100q is neither gzip nor identity", r.Header.Get("Content-Encoding"))
	}
	files := []file{}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case kind == "application/octet-stream" && !q.Has("path"):
		err = bad("path: required if the body is a file")
	case kind == "application/octet-stream":
		var f file
		f, err = a.store(path, r.Body, metadata)
		files = append(files, f)
	case strings.HasPrefix(kind, "multipart/"):
		if !q.Has("path") {
			path = ""
		}
		files, err = s.storeParts(a, r, path, metadata)
	default:
		err = bad("Content-Type: %.100q is neither multipart/form-data nor application/octet-stream", r.Header.Get("Content-Type"))
	}
	if err == nil {
		answer(w, http.StatusOK, files)
	}
	return err
}

// storeParts stores the files of a form. Without a path, each file's name is its path; with one,
// the form may have one file only.
func (s *Server) storeParts(a account, r *http.Request, path string, metadata map[string]string) ([]file, error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, bad("read the form: %w", err)
	}
	files := []file{}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) && len(files) > 0 {
			return files, nil
		}
		if err != nil {
			return nil, bad("read the form, up to its parts named file: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		to := path
		if to == "" {
			if fileName(part) == "" {
				return nil, bad("a file of the form has no filename: give it one, or the path in the query")
			}
			if to, err = s.path(a, fileName(part)); err != nil {
				return nil, bad("a file of the form has no name that is a path: %w", err)
			}
		}
		if slices.ContainsFunc(files, func(f file) bool { return f.Path == to }) {
			return nil, bad("you cannot upload multiple files to the same path '%s' in one request: only the first was uploaded", to)
		}
		f, err := a.store(to, part, metadata)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}

// fileName returns the complete file name: the standard library strips directories.
func fileName(part *multipart.Part) string {
	_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	return params["filename"]
}

// store writes a file owned by the user, and replaces an existing one.
func (a account) store(path string, body io.Reader, metadata map[string]string) (file, error) {
	if err := a.mkdir(filepath.Dir(path)); err != nil {
		return file{}, fmt.Errorf("make its directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, 0o666) //nolint:gosec // a user's ordinary file
	if errors.Is(err, syscall.EISDIR) {
		return file{}, bad("path is a directory: %s", path)
	}
	if err != nil {
		return file{}, err
	}
	defer f.Close() //nolint:errcheck // for what fails; else it is closed before
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return file{}, bad("path '%s' is not a regular file", path)
	}
	if err := f.Chown(int(a.uid), int(a.gid)); err != nil {
		return file{}, err
	}
	if _, err := io.Copy(f, body); err != nil {
		return file{}, fmt.Errorf("write %s: %w", path, err)
	}
	if err := writeMetadata(f, metadata); err != nil {
		return file{}, fmt.Errorf("write metadata of %s: %w", path, err)
	}
	return file{Name: filepath.Base(path), Type: "file", Path: path, Metadata: readMetadata(path)}, f.Close()
}

// File metadata are extended attributes with this prefix. All of them together fit into one block
// of ext4, which limits names and values of the headers.
const (
	attributes     = "user.e2b."
	maxMetadataKey = 255 - len(attributes)
	maxMetadata    = 4096
)

// metadataOf reads the headers X-Metadata-KEY of an upload.
func metadataOf(h http.Header) (map[string]string, error) {
	metadata, size := map[string]string{}, 0
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), "x-metadata-")
		if !ok || key == "" {
			continue
		}
		value := values[0]
		if strings.ContainsFunc(key+value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, bad("metadata: %.100q has characters other than printable ASCII", key)
		}
		if len(key) > maxMetadataKey {
			return nil, bad("metadata: the key %.20q... is longer than %d bytes", key, maxMetadataKey)
		}
		if size += len(attributes) + len(key) + len(value); size > maxMetadata {
			return nil, bad("metadata: all of it is more than %d bytes", maxMetadata)
		}
		metadata[key] = value
	}
	return metadata, nil
}

// writeMetadata replaces a file's metadata, if the file system supports them.
func writeMetadata(f *os.File, metadata map[string]string) error {
	for key := range readMetadata(f.Name()) {
		if _, ok := metadata[key]; !ok {
			_ = unix.Fremovexattr(int(f.Fd()), attributes+key)
		}
	}
	for key, value := range metadata {
		if err := unix.Fsetxattr(int(f.Fd()), attributes+key, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return nil
}

// readMetadata returns a file's metadata, without what is not text or exceeds the limits.
func readMetadata(path string) map[string]string {
	size, err := unix.Listxattr(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	list := make([]byte, size)
	if size, err = unix.Listxattr(path, list); err != nil {
		return nil
	}
	var metadata map[string]string
	value, room := make([]byte, maxMetadata), 2*maxMetadata
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		key, ours := strings.CutPrefix(name, attributes)
		if !ours {
			continue
		}
		n, err := unix.Getxattr(path, name, value)
		if room -= len(key) + n; err != nil || room < 0 || text(key+string(value[:n])) != key+string(value[:n]) {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = string(value[:n])
	}
	return metadata
}

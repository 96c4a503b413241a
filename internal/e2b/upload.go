package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/gate"
)

// Clients upload the files that a build copies before the build, as archives. The client names each
// archive by a hash of more than its content, so every principal has its own archives.

const (
	maxUpload  = 1 << 30        // bytes of an archive
	maxUploads = 4 << 30        // bytes of all archives of a principal
	uploadTime = 24 * time.Hour // until unused archives are removed
	uploadIdle = time.Minute    // longest wait for the next bytes of an archive
	linkTime   = time.Hour      // for an upload to begin, and again for it to end
	uploads    = "/uploads/"
)

func isHash(text string) bool { return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == "" }

func shelfOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8])
}

// uploadLink answers with the URL to upload an archive to, and with whether the archive exists.
func (s *server) uploadLink(w http.ResponseWriter, r *http.Request, owner, hash string) error {
	if !isHash(hash) {
		return invalid("hash", fmt.Sprintf("%.80q is not a SHA-256", hash), "give 64 hexadecimal digits")
	}
	present, err := s.Uploads.HasUpload(r.Context(), shelfOf(owner), hash)
	if err != nil {
		return err
	}
	scheme := "http"
	if s.Secure || r.TLS != nil {
		scheme = "https"
	}
	path := uploads + shelfOf(owner) + "/" + hash
	until := strconv.FormatInt(time.Now().Add(linkTime).Unix(), 10)
	respond(w, http.StatusCreated, map[string]any{"present": present, "url": scheme + "://" + r.Host + path + "?until=" + until + "&signature=" + s.mac("upload "+path+" "+until)})
	return nil
}

// upload stores an archive from a client that has a link.
func (s *server) upload(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	until, err := strconv.ParseInt(q.Get("until"), 10, 64)
	if err != nil || !hmac.Equal([]byte(s.mac("upload "+r.URL.Path+" "+q.Get("until"))), []byte(q.Get("signature"))) || time.Now().Unix() >= until {
		return &refusal{http.StatusForbidden, "this is not an upload link, or it has expired: build the template again"}
	}
	if r.ContentLength <= 0 || r.ContentLength > maxUpload {
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the files of a step may be at most %d bytes when packed, and their length must be given first", maxUpload)}
	}
	if s.Spare != nil {
		if err := s.Spare(); err != nil {
			return err
		}
	}
	gate.Serves(r.Context())
	control, over := http.NewResponseController(w), time.Now().Add(linkTime)
	shelf, hash, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, uploads), "/") // the signature covers the path
	room, err := s.Uploads.PutUpload(r.Context(), shelf, hash, r.ContentLength, maxUploads, time.Now().Add(-uploadTime), readerFunc(func(p []byte) (int, error) {
		if idle := time.Now().Add(uploadIdle); idle.Before(over) {
			_ = control.SetReadDeadline(idle)
		}
		return r.Body.Read(p)
	}))
	if err != nil {
		return fmt.Errorf("store the files of a step: %w", err)
	}
	if !room {
		return &refusal{http.StatusInsufficientStorage, fmt.Sprintf("files of your builds take more than %d bytes: they are removed %s after they were used", int64(maxUploads), uploadTime)}
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type shelves struct {
	dir string
	mu  sync.Mutex // held while the files are counted
}

func (s *shelves) HasUpload(_ context.Context, owner, hash string) (bool, error) {
	now := time.Now()
	return os.Chtimes(filepath.Join(s.dir, owner, hash), now, now) == nil, nil
}

func (s *shelves) OpenUpload(_ context.Context, owner, hash string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(s.dir, owner, hash))
}

func (s *shelves) PutUpload(_ context.Context, owner, hash string, size, most int64, old time.Time, from io.Reader) (room bool, err error) {
	f, err := s.place(filepath.Join(s.dir, owner), size, most, old)
	if f == nil {
		return false, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is renamed
	if err == nil {
		_, err = io.CopyN(f, from, size)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, owner, hash))
	}
	return true, err
}

// place returns a new file of size bytes in an owner's directory; nil: there is no room.
func (s *shelves) place(dir string, size, most int64, old time.Time) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := filepath.Glob(filepath.Join(s.dir, "*", "*"))
	if err != nil {
		return nil, err
	}
	total := size
	for _, path := range all {
		info, err := os.Lstat(path)
		switch {
		case err != nil:
		case info.ModTime().Before(old):
			_ = os.Remove(path) // if this fails, the next upload tries again
		case filepath.Dir(path) == dir:
			total += info.Size()
		}
	}
	if total > most {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err == nil {
		err = f.Truncate(size) // so that others count it
	}
	return f, err
}

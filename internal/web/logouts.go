package web

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/wholefile"
)

// logouts records sessions that were ended early. With a file, a copied cookie does not become
// valid again after a restart.
type logouts struct {
	path  string // empty: in memory only
	since int64  // sessions that expire at or before this time are invalid; seconds since 1970

	mu    sync.Mutex
	ended map[string]int64 // when each session would have expired, by its value
}

// readLogouts reads the record. If that fails, it is unknown which sessions were ended, so all
// sessions that began before now become invalid.
func readLogouts(path string) (*logouts, error) {
	l := &logouts{path: path, ended: map[string]int64{}}
	if path == "" {
		return l, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	for value := range strings.Lines(string(data)) {
		value = strings.TrimSuffix(value, "\n")
		expiry, wrong := expiryOf(value)
		if wrong != nil {
			err = errors.Join(err, wrong)
		} else if expiry > time.Now().Unix() {
			l.ended[value] = expiry
		}
	}
	if err != nil {
		l.path = "" // the file stays as it is, for somebody to examine
		l.since = time.Now().Add(sessionTime).Unix()
		err = fmt.Errorf("read which sessions were ended from %s: %w; all sessions are ended: remove the file, and http-token for a new token", path, err)
	}
	return l, err
}

func (l *logouts) has(value string, expiry int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ended := l.ended[value]
	return ended || expiry <= l.since
}

// add ends a session. If it fails, only this process knows that the session was ended.
func (l *logouts) add(value string, expiry int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now().Unix()
	maps.DeleteFunc(l.ended, func(_ string, expiry int64) bool { return expiry <= now })
	l.ended[value] = expiry
	if l.path == "" {
		return nil
	}
	text := strings.Join(slices.Sorted(maps.Keys(l.ended)), "\n") + "\n"
	if err := wholefile.Replace(l.path, []byte(text)); err != nil {
		return fmt.Errorf("remember that a session was ended: %w", err)
	}
	return nil
}

// expiryOf returns when a session expires, in seconds since 1970, from its value EXPIRY.RANDOM.
func expiryOf(value string) (seconds int64, err error) {
	text, random, ok := strings.Cut(value, ".")
	if !ok || random == "" {
		return 0, fmt.Errorf("%.100q is not a session", value)
	}
	return strconv.ParseInt(text, 10, 64)
}

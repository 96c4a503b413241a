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

// logouts records which sessions were ended early, in a file if it has one: a
// copied cookie does not become valid again after a restart.
type logouts struct {
	path  string // empty: in memory only
	since int64  // sessions that expire by then are invalid; seconds since 1970

	mu    sync.Mutex
	ended map[string]int64 // when the session would have expired, by its value
}

// readLogouts reads the record. If it cannot be read, nobody knows which
// sessions were ended: then all sessions that began before now are.
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

// has reports whether a session was ended.
func (l *logouts) has(value string, expiry int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ended := l.ended[value]
	return ended || expiry <= l.since
}

// add ends a session. After an error only this process knows that it was ended.
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

// expiryOf returns when a session expires, from its value EXPIRY.RANDOM.
func expiryOf(value string) (seconds int64, err error) {
	text, random, ok := strings.Cut(value, ".")
	if !ok || random == "" {
		return 0, fmt.Errorf("%.100q is not a session", value)
	}
	return strconv.ParseInt(text, 10, 64)
}

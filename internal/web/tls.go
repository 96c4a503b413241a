package web

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"
)

// Certificate is a server's certificate and key in two PEM files. It reads them again when they
// change.
type Certificate struct {
	files [2]string // certificate, key
	log   *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	seen    [2]stamp // of the files last read, whether or not they were a pair
}

// stamp distinguishes one content of a file from others.
type stamp struct {
	size int64
	time time.Time
}

// OpenCertificate reads a certificate (with those between it and its root) and its key. Nobody but
// the key's owner and group may be able to read the key.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{files: [2]string{cert, key}, log: log}
	_, err := c.refresh()
	if c.current == nil {
		return nil, err
	}
	return c, nil
}

// Config returns a server's TLS settings.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(), nil },
	}
}

// get returns the current certificate. While the files do not match, as between the writes of the
// two, that is the previous one.
func (c *Certificate) get() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch changed, err := c.refresh(); {
	case err != nil:
		c.log.Warn("the changed TLS certificate cannot be used; the previous one stays in use", "cert", c.files[0], "key", c.files[1], "err", err)
	case changed:
		c.log.Info("TLS certificate replaced", "cert", c.files[0], "expires", c.current.Leaf.NotAfter)
	}
	return c.current
}

// refresh reads the files if they have changed since they were last read. Each change is
// reported once.
func (c *Certificate) refresh() (changed bool, err error) {
	var now [2]stamp
	var mode fs.FileMode
	for i, name := range c.files {
		info, statErr := os.Stat(name)
		if statErr != nil {
			err = errors.Join(err, statErr) // the stamp stays zero
			continue
		}
		if !info.Mode().IsRegular() { // opening a FIFO blocks until somebody writes to it
			err = errors.Join(err, fmt.Errorf("%s is not a regular file", name))
		}
		now[i], mode = stamp{info.Size(), info.ModTime()}, info.Mode()
	}
	if now == c.seen && c.current != nil {
		return false, nil
	}
	c.seen = now
	switch {
	case err != nil:
		return false, fmt.Errorf("read the TLS certificate: %w", err)
	case mode.Perm()&0o037 != 0 && runtime.GOOS != "windows":
		return false, fmt.Errorf("the TLS key %s can be read by others, or changed (mode %04o); chmod 600 it", c.files[1], mode.Perm())
	}
	pair, err := tls.LoadX509KeyPair(c.files[0], c.files[1])
	if err != nil {
		return false, fmt.Errorf("the TLS certificate %s and key %s do not match: %w", c.files[0], c.files[1], err)
	}
	c.current = &pair
	return true, nil
}

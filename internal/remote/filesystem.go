package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/pkg/sftp"
)

// FileSystem is the other machine's files for one caller. It has its own SFTP session, so that a call
// that hangs there, such as opening a pipe, blocks nobody else. Paths are bytes; relative paths start at
// the user's home. Errors are fs.ErrNotExist, fs.ErrPermission, or the other machine's own.
type FileSystem struct{ client *sftp.Client }

// Errors of WithFiles.
var (
	ErrNoSFTP  = errNoSFTP
	ErrTooMuch = errors.New("the machine sends more than may be read at once")
)

// WithFiles runs work with a file system that is valid until work returns or ctx ends; then WithFiles
// returns, too. It returns ErrTooMuch if the other machine sends more than budget bytes in total.
func (p *Pool) WithFiles(ctx context.Context, budget int64, work func(*FileSystem) error) error {
	c, session, err := p.session(ctx)
	if err != nil {
		return err
	}
	from := &budgeted{}
	from.left.Store(budget)
	client, err := await(ctx, p, c.gone, func() (*sftp.Client, error) { return startSFTP(session, from.of) },
		func(client *sftp.Client) { _ = client.Close() })
	if err != nil {
		_ = session.Close()
		p.release(c)
		return p.refusedSFTP(ctx, c, err)
	}
	end := sync.OnceFunc(func() {
		_, _ = client.Close(), session.Close() // both may have ended already
		p.release(c)
	})
	_, err = await(ctx, p, c.gone, func() (struct{}, error) {
		defer end()
		return struct{}{}, survive(func() error { return work(&FileSystem{client}) })
	}, nil)
	switch {
	case errors.Is(err, errClosed): // work did not start
		end()
	case ctx.Err() != nil, errors.Is(err, io.EOF):
		_ = session.Close() // this ends work
	}
	switch {
	case from.left.Load() < 0:
		return ErrTooMuch
	case ctx.Err() == nil && broken(err):
		return &Error{Op: "transfer files with", Addr: p.Login(), Class: Lost, Err: err}
	}
	return err
}

// budgeted is a reader that fails with ErrTooMuch after a number of bytes.
type budgeted struct {
	from io.Reader
	left atomic.Int64 // negative: there was more
}

func (b *budgeted) of(from io.Reader) io.Reader {
	b.from = from
	return b
}

func (b *budgeted) Read(data []byte) (int, error) {
	n, err := b.from.Read(data)
	if b.left.Add(-int64(n)) < 0 {
		return 0, ErrTooMuch
	}
	return n, err
}

// Entry is a file as the other machine describes it.
type Entry struct {
	fs.FileInfo

	UID, GID uint32
}

func entry(info fs.FileInfo, err error) (Entry, error) {
	if err != nil {
		return Entry{}, err
	}
	e := Entry{FileInfo: info}
	if s, ok := info.Sys().(*sftp.FileStat); ok {
		e.UID, e.GID = s.UID, s.GID
	}
	return e, nil
}

// Stat describes the file that path leads to, following symbolic links.
func (f *FileSystem) Stat(path string) (Entry, error) { return entry(f.client.Stat(path)) }

// Lstat describes path itself, even if it is a symbolic link.
func (f *FileSystem) Lstat(path string) (Entry, error) { return entry(f.client.Lstat(path)) }

// ReadLink returns the target of a symbolic link.
func (f *FileSystem) ReadLink(path string) (string, error) { return f.client.ReadLink(path) }

// ReadDir returns a directory's entries, unsorted.
func (f *FileSystem) ReadDir(ctx context.Context, path string) ([]Entry, error) {
	infos, err := f.client.ReadDirContext(ctx, path)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(infos))
	for i, info := range infos {
		entries[i], _ = entry(info, nil)
	}
	return entries, nil
}

// MkdirAll creates a directory and its missing parents.
func (f *FileSystem) MkdirAll(path string) error { return explain(f.client.MkdirAll(path)) }

// unsized is how much to read at once of a file without a size, such as the kernel's files, in bytes.
const unsized = 256 << 10

var errIrregular = fmt.Errorf("%w: not a regular file", fs.ErrInvalid)

// Read returns at most limit bytes of a regular file from offset, and whether the file ends there.
func (f *FileSystem) Read(path string, offset, limit int64) (data []byte, end bool, about Entry, err error) {
	if about, err = entry(f.client.Stat(path)); err != nil {
		return nil, false, about, err
	}
	// Opening a pipe blocks until somebody writes to it. Checking again after opening would cost each
	// read a round trip; at most want bytes are read anyway, whatever the file is by then.
	if !about.Mode().IsRegular() {
		return nil, false, about, errIrregular
	}
	file, err := f.client.Open(path)
	if err != nil {
		return nil, false, about, err
	}
	defer file.Close() //nolint:errcheck // only read
	want := min(limit, max(0, about.Size()-offset))
	if about.Size() == 0 {
		want = min(limit, unsized)
	}
	data = make([]byte, want)
	n, err := file.ReadAt(data, offset)
	end = int64(n) < want || about.Size() > 0 && offset+want >= about.Size()
	return data[:n], end, about, discardEOF(err)
}

// ErrOwner means that a file cannot be replaced by one with the same owner.
var ErrOwner = errors.New("it has another owner")

// Replace puts a file in place atomically, as Upload does. before describes the existing file, if any:
// the new one gets its owner, or Replace returns ErrOwner if that is not allowed. Replace calls still
// just before the rename, and fails with its error.
func (f *FileSystem) Replace(ctx context.Context, file File, before *Entry, still func() error) error {
	return putSFTP(ctx, f.client, file, func(temporary string, info fs.FileInfo) error {
		if made, _ := entry(info, nil); before != nil && (made.UID != before.UID || made.GID != before.GID) {
			if f.client.Chown(temporary, int(before.UID), int(before.GID)) != nil {
				return ErrOwner
			}
		}
		return still()
	})
}

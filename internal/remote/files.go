package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// File is a file to upload to the other machine.
type File struct {
	Path string // absolute; its directory must exist
	Data []byte
	Mode fs.FileMode // permissions
}

type fileSession struct {
	client *sftp.Client
	conn   *conn
}

var errNoSFTP = errors.New("the machine has no SFTP subsystem")

// Upload puts files in place atomically: each is written under a temporary name in the same directory,
// checked, and renamed. All use one SFTP session. Without SFTP they are sent as base64 through a shell.
func (p *Pool) Upload(ctx context.Context, files ...File) error {
	for _, f := range files {
		err := p.withSFTP(ctx, func(c *sftp.Client) error { return putSFTP(ctx, c, f, nil) })
		if errors.Is(err, errNoSFTP) {
			err = p.putExec(ctx, f)
		}
		if err != nil {
			return fmt.Errorf("upload %s to %s: %w", f.Path, p.Login(), err)
		}
	}
	return nil
}

// ReadRange returns at most limit bytes of a file from offset; fewer only at its end. It returns
// fs.ErrNotExist if the file is missing.
func (p *Pool) ReadRange(ctx context.Context, path string, offset, limit int64) ([]byte, error) {
	var data []byte
	err := p.withSFTP(ctx, func(c *sftp.Client) (err error) {
		data, _, _, err = (&FileSystem{c}).Read(path, offset, limit)
		return err
	})
	if errors.Is(err, errNoSFTP) {
		data, err = p.readExec(ctx, path, offset, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s on %s: %w", path, p.Login(), err)
	}
	return data, nil
}

// withSFTP runs work on the pool's SFTP session, and again on a new one if the session turns out to be
// dead. All work must be repeatable.
func (p *Pool) withSFTP(ctx context.Context, work func(*sftp.Client) error) error {
	for attempt := 1; ; attempt++ {
		client, err := p.sftpClient(ctx)
		if err != nil {
			return err
		}
		_, err = await(ctx, p, nil, func() (struct{}, error) { return struct{}{}, survive(func() error { return work(client) }) }, nil)
		dead := broken(err)
		if !dead || attempt == 2 {
			if dead {
				err = &Error{Op: "transfer files with", Addr: p.Login(), Class: Lost, Err: err}
			}
			return err
		}
		p.forget(client)
	}
}

// errNonsense means that SFTP replies do not fit their requests.
var errNonsense = errors.New("the machine's SFTP replies make no sense")

// survive turns a panic of work into an error: pkg/sftp panics if a reply is "OK" where it expects a file
// or a description of one. A VM may reply that.
func survive(work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errNonsense, r)
		}
	}()
	return work()
}

// sftpClient returns the pool's SFTP session, and starts one if there is none.
func (p *Pool) sftpClient(ctx context.Context) (*sftp.Client, error) {
	if client, err := p.currentSFTP(); client != nil || err != nil {
		return client, err
	}
	select {
	case p.starting <- struct{}{}:
		defer func() { <-p.starting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if client, err := p.currentSFTP(); client != nil || err != nil {
		return client, err
	}
	c, session, err := p.session(ctx)
	if err != nil {
		return nil, err
	}
	client, err := await(ctx, p, nil, func() (*sftp.Client, error) { return startSFTP(session, nil) },
		func(client *sftp.Client) { _ = client.Close() })
	if err == nil && !p.own(func() { p.watchSFTP(c, session, client) }) {
		err = errors.Join(errClosed, client.Close())
	}
	if err != nil {
		_ = session.Close()
		p.release(c)
		return nil, p.refusedSFTP(ctx, c, err)
	}
	p.mu.Lock()
	p.files = &fileSession{client: client, conn: c}
	p.mu.Unlock()
	return client, nil
}

func (p *Pool) currentSFTP() (*sftp.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.noSFTP:
		return nil, errNoSFTP
	case p.files == nil:
		return nil, nil
	}
	select {
	case <-p.files.conn.gone:
		p.files = nil
		return nil, nil
	default:
		return p.files.client, nil
	}
}

// startSFTP starts SFTP in a session. Data from the other machine is read through from, unless that is nil.
func startSFTP(session *ssh.Session, from func(io.Reader) io.Reader) (*sftp.Client, error) {
	in, err := session.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := session.RequestSubsystem("sftp"); err != nil {
		return nil, err
	}
	if from != nil {
		out = from(out)
	}
	return sftp.NewClientPipe(out, &privateFiles{WriteCloser: in}, sftp.UseConcurrentWrites(true))
}

// privateFiles is the stream to an SFTP server that creates new files with mode 0600. pkg/sftp cannot do
// that, so its files would be readable until their mode is set.
type privateFiles struct {
	io.WriteCloser
	left int64 // bytes left of the packet being written
}

// Write writes the head of a packet or what follows it. For a request to open a file, the head is the
// whole packet.
func (p *privateFiles) Write(data []byte) (int, error) {
	if p.left > 0 {
		p.left -= int64(len(data))
		return p.WriteCloser.Write(data)
	}
	if len(data) < 5 {
		return 0, errors.New("SFTP packets are split differently than expected")
	}
	size := binary.BigEndian.Uint32(data)
	p.left = 4 + int64(size) - int64(len(data))
	// The packet ends with the open flags, among them create, and a mask of the attributes that follow.
	const open, create, permissions = 3, 0x08, 0x04
	if end := len(data) - 8; p.left == 0 && data[4] == open && end >= 13 &&
		binary.BigEndian.Uint32(data[end:])&create != 0 && binary.BigEndian.Uint32(data[end+4:]) == 0 {
		private := binary.BigEndian.AppendUint32(nil, size+4)
		private = append(private, data[4:end+4]...)
		private = binary.BigEndian.AppendUint32(private, permissions)
		private = binary.BigEndian.AppendUint32(private, 0o600)
		n, err := p.WriteCloser.Write(private)
		return min(n, len(data)), err
	}
	return p.WriteCloser.Write(data)
}

func (p *Pool) watchSFTP(c *conn, session *ssh.Session, client *sftp.Client) {
	_ = client.Wait()
	p.forget(client)
	_ = client.Close()
	_ = session.Close()
	p.release(c)
}

// forget makes the next transfer start a new SFTP session.
func (p *Pool) forget(client *sftp.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files != nil && p.files.client == client {
		p.files = nil
	}
}

// refusedSFTP distinguishes a machine without SFTP from a broken connection.
func (p *Pool) refusedSFTP(ctx context.Context, c *conn, err error) error {
	if ctx.Err() != nil || errors.Is(err, errClosed) {
		return err
	}
	_, dead := await(ctx, p, nil, func() (bool, error) {
		answered, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		return answered, err
	}, nil)
	if dead != nil {
		return &Error{Op: "transfer files with", Addr: p.Login(), Class: Lost, Err: err}
	}
	p.log.DebugContext(ctx, "no sftp on the host, using base64 over exec", "err", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noSFTP = true
	return errNoSFTP
}

// temporaryName returns a name in the same directory. A long file name is truncated, so that the result
// is at most 255 bytes.
func temporaryName(path string) string {
	const end = 17
	if base := len(path) - strings.LastIndexByte(path, '/') - 1; base > 255-end {
		path = path[:len(path)-base+255-end]
	}
	return path + ".linus-" + strings.ToLower(rand.Text()[:10])
}

// putSFTP calls ready, unless that is nil, with the temporary name before the rename. With ready, the
// file is also flushed to the other machine's disk if the server supports that, first its content and
// then its name; it is closed with the session, which saves a round trip.
func putSFTP(ctx context.Context, c *sftp.Client, f File, ready func(temporary string, info fs.FileInfo) error) (err error) {
	temporary := temporaryName(f.Path)
	file, err := c.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return explain(err)
	}
	defer func() {
		if err != nil {
			_ = c.Remove(temporary)
		}
	}()
	err = file.Chmod(f.Mode.Perm())
	if err == nil {
		_, err = file.ReadFrom(bytes.NewReader(f.Data))
	}
	var info fs.FileInfo
	switch {
	case err != nil:
	case ready != nil: // in parallel
		flushed := make(chan error, 1)
		go func() { flushed <- flush(file) }()
		info, err = c.Lstat(temporary)
		err = errors.Join(err, <-flushed)
	default:
		info, err = file.Stat()
	}
	if ready == nil {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}
	switch {
	case err != nil:
		return explain(err)
	case info.Size() != int64(len(f.Data)):
		return fmt.Errorf("only %d of %d bytes arrived: is the disk full?", info.Size(), len(f.Data))
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if ready != nil {
		if err := ready(temporary, info); err != nil {
			return err
		}
	}
	if err = c.PosixRename(temporary, f.Path); err == nil && ready != nil {
		err = flush(file)
	}
	return explain(err)
}

// flush syncs a file and its last rename to the other machine's disk, if its SFTP server supports that.
func flush(file *sftp.File) error {
	err := survive(file.Sync)
	if status, ok := errors.AsType[*sftp.StatusError](err); ok && status.FxCode() == sftp.ErrSSHFxOpUnsupported {
		return nil
	}
	return err
}

// explain adds the most likely causes to SFTP's bare "failure".
func explain(err error) error {
	if status, ok := errors.AsType[*sftp.StatusError](err); ok && status.FxCode() == sftp.ErrSSHFxFailure {
		return fmt.Errorf("%w (disk full, or not a directory?)", err)
	}
	return err
}

// putExec is putSFTP through a shell: base64 keeps the bytes unchanged on the way, and a checksum detects
// what nothing else would.
func (p *Pool) putExec(ctx context.Context, f File) error {
	const script = `umask 077 && base64 -d >"$1" && [ "$(sha256sum <"$1")" = "$2  -" ] && chmod "$3" "$1" && mv -f -- "$1" "$4" || { s=$?; rm -f -- "$1"; exit "$s"; }`
	line := Quote("sh", "-c", script, "upload", temporaryName(f.Path), fmt.Sprintf("%x", sha256.Sum256(f.Data)), fmt.Sprintf("%o", f.Mode.Perm()), f.Path)
	encoded := base64.StdEncoding.EncodeToString(f.Data)
	return p.Run(ctx, Command{Name: "upload", Line: line, Stdin: strings.NewReader(encoded)})
}

func (p *Pool) readExec(ctx context.Context, path string, offset, limit int64) ([]byte, error) {
	const missing, irregular = 66, 67
	script := fmt.Sprintf(`[ -e "$1" ] || exit %d; [ -f "$1" ] || exit %d; tail -c "+$2" -- "$1" | head -c "$3"`, missing, irregular)
	line := Quote("sh", "-c", script, "read", path, fmt.Sprint(offset+1), fmt.Sprint(limit))
	data, err := p.Output(ctx, Command{Name: "read", Line: line}, int(limit))
	switch exit, _ := errors.AsType[*ExitError](err); {
	case exit != nil && exit.Code == missing:
		return nil, fs.ErrNotExist
	case exit != nil && exit.Code == irregular:
		return nil, errIrregular
	}
	return data, err
}

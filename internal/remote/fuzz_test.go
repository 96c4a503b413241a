package remote

import (
	"encoding/binary"
	"io"
	"io/fs"
	"testing"

	"github.com/pkg/sftp"
)

// A machine may reply anything to SFTP's requests: each of data's parts, of a length that
// its first two bytes say, is one, to the request whose number it gets. What is read is no
// more than was asked for.
func FuzzSFTPReplies(f *testing.F) {
	part := func(kind byte, body ...byte) []byte {
		return append(binary.BigEndian.AppendUint16(nil, uint16(len(body)+1)), append([]byte{kind}, body...)...)
	}
	handle := part(102, 0, 0, 0, 1, 'h')
	attrs := part(105, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0x81, 0xa4)
	ok, eof := part(101, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), part(101, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
	data := part(103, 0, 0, 0, 3, 'a', 'b', 'c')
	name := part(104, 0, 0, 0, 1, 0, 0, 0, 1, 'x', 0, 0, 0, 0, 0, 0, 0, 0)
	for op, parts := range [][][]byte{{handle, attrs, data, ok}, {handle, name, eof, ok}, {attrs}, {name}, {handle, ok, ok, attrs, ok, ok}, {handle, attrs, data, eof, ok}} {
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
			f.Add(byte(op), p)
		}
		f.Add(byte(op), all)
	}
	f.Fuzz(func(t *testing.T, op byte, data []byte) {
		replies, to := io.Pipe()
		from, requests := io.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			defer func() { _, _ = io.Copy(io.Discard, from) }()
			defer to.Close() //nolint:errcheck // of a pipe
			for first := true; ; first = false {
				var size [4]byte
				if _, err := io.ReadFull(from, size[:]); err != nil {
					return
				}
				request := make([]byte, binary.BigEndian.Uint32(size[:]))
				if _, err := io.ReadFull(from, request); err != nil {
					return
				}
				reply := []byte{2, 0, 0, 0, 3}
				if !first {
					if len(data) < 3 || len(request) < 5 {
						return
					}
					n := min(1+int(binary.BigEndian.Uint16(data)), len(data)-2)
					reply = append([]byte{data[2]}, request[1:5]...)
					reply = append(reply, data[3:2+n]...)
					data = data[2+n:]
				}
				if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(reply))), reply...)); err != nil {
					return
				}
			}
		}()
		client, err := sftp.NewClientPipe(replies, &privateFiles{WriteCloser: requests}, sftp.UseConcurrentWrites(true))
		if err != nil {
			t.Fatal(err)
		}
		_ = survive(func() error {
			files := &FileSystem{client}
			switch op % 6 {
			case 0:
				if got, _, _, err := files.Read("/x", 0, 10); err == nil && len(got) > 10 {
					t.Errorf("%d bytes", len(got))
				}
			case 1:
				_, _ = files.ReadDir(t.Context(), "/x")
			case 2:
				if e, err := files.Lstat("/x"); err == nil {
					_, _, _ = e.Mode(), e.Size(), e.ModTime()
				}
			case 3:
				_, _ = files.ReadLink("/x")
			case 4:
				_ = putSFTP(t.Context(), client, File{Path: "/x", Data: []byte("abc"), Mode: 0o600}, func(string, fs.FileInfo) error { return nil })
			case 5:
				if got, _, _, err := files.Read("/x", 1, 10); err == nil && len(got) > 10 {
					t.Errorf("%d bytes", len(got))
				}
			}
			return nil
		})
		_ = client.Close()
		_ = requests.Close()
		_ = replies.Close()
		<-served
	})
}

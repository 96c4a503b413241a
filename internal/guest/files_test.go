package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"

	"linus/internal/job"
	"linus/internal/sshtest"
)

// opensshFiles serves files as a VM's OpenSSH does.
func opensshFiles(t *testing.T) sshtest.Options {
	t.Helper()
	return opensshFilesTelling(t, nil)
}

// opensshFilesTelling is opensshFiles; in log, unless it is nil, is what the server has done before
// it replies.
func opensshFilesTelling(t *testing.T, log *os.File) sshtest.Options {
	t.Helper()
	const server = "/usr/lib/openssh/sftp-server"
	if _, err := os.Stat(server); err != nil {
		t.Skip("there is no " + server)
	}
	home := t.TempDir()
	return sshtest.Options{Dir: home, ServeFiles: func(channel io.ReadWriteCloser) {
		cmd := exec.Command(server, "-e", "-l", "VERBOSE")
		cmd.Dir, cmd.Stdout = home, channel
		if log != nil {
			cmd.Stderr = log
		}
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(in, channel)
			_ = in.Close()
			_ = cmd.Process.Kill() // it may hang in a pipe
		}()
		_ = cmd.Wait()
	}}
}

// bothServers runs a test with OpenSSH's server of files, and with the one of the lab.
func bothServers(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	t.Run("openssh", func(t *testing.T) { test(t, bareVM(t, opensshFiles(t))) })
	t.Run("lab", func(t *testing.T) { test(t, bareVM(t, sshtest.Options{})) })
}

// put writes a file in the VM by itself.
func (r *rig) put(name, content string, mode fs.FileMode) {
	r.t.Helper()
	at := filepath.Join(r.root, name)
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		err = os.WriteFile(at, []byte(content), 0o600)
	}
	if err == nil {
		err = os.Chmod(at, mode)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// refusedFor checks that an error is about a field, and says something.
func refusedFor(t *testing.T, err error, field, text string) {
	t.Helper()
	var f *job.FieldError
	if !errors.As(err, &f) || f.Field != field || !strings.Contains(f.Problem, text) || f.Remedy == "" {
		t.Errorf("error %v, want one about %s that says %q", err, field, text)
	}
}

// What is said to be written is on the VM's disk: its content before it takes the name, and the
// name before that is said.
func TestWriteFile_IsOnTheDisk(t *testing.T) {
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // it was read
	r := bareVM(t, opensshFilesTelling(t, log))
	for _, write := range []func() error{
		func() error {
			_, err := r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: "/file", Data: []byte("one\n")})
			return err
		},
		func() error {
			_, err := r.EditFile(t.Context(), r.vm, job.FileEdit{Path: "/file", Old: "one", New: "two"})
			return err
		},
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		said, err := os.ReadFile(log.Name())
		if err == nil {
			err = log.Truncate(0)
		}
		if err != nil {
			t.Fatal(err)
		}
		var did []string
		for line := range strings.Lines(string(said)) {
			if verb, _, _ := strings.Cut(line, " "); verb == "fsync" || verb == "posix-rename" {
				did = append(did, verb)
			}
		}
		if !slices.Equal(did, []string{"fsync", "posix-rename", "fsync"}) {
			t.Errorf("the server did %q:\n%s", did, said)
		}
	}
}

const anyBytes = "a\r\nb\x00\xff\n\n no end"

func TestFiles_AreByteExact(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		ctx := t.Context()
		for _, name := range []string{"/plain", "/a b/$(x);'\"\n/né\xff", "/-rf", "/" + strings.Repeat("n", 255)} {
			written, err := r.WriteFile(ctx, r.vm, job.FileWrite{Path: name, Data: []byte(anyBytes), Parents: true})
			if err != nil || !written.Created || written.Size != int64(len(anyBytes)) || written.Mode != "0644" {
				t.Fatalf("%q: %+v, %v", name, written, err)
			}
			chunk, err := r.ReadFile(ctx, r.vm, job.FileRange{Path: name, Limit: job.MaxFileChunk})
			if err != nil || string(chunk.Data) != anyBytes || !chunk.End || chunk.Mode != "0644" {
				t.Errorf("%q: read %+v, %v", name, chunk, err)
			}
			if r.read(name) != anyBytes {
				t.Errorf("%q in the VM: %q", name, r.read(name))
			}
		}
		for name, mode := range r.tree() {
			if strings.Contains(name, ".linus-") || mode.Perm() != 0o644 {
				t.Errorf("the VM has %q with mode %o", name, mode)
			}
		}
	})
}

func TestFiles_AreReadInParts(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		content := strings.Repeat("0123456789abcde\n", 20000)
		r.put("big", content, 0o644)
		r.put("empty", "", 0o644)
		var got []byte
		for end, at := false, int64(0); !end; {
			chunk, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/big", Offset: at, Limit: 100_001})
			if err != nil || chunk.Next == at {
				t.Fatalf("at %d: %d bytes, %v", at, len(chunk.Data), err)
			}
			got = append(got, chunk.Data...)
			at, end = chunk.Next, chunk.End
		}
		if string(got) != content {
			t.Errorf("%d bytes read, or others than the file's %d", len(got), len(content))
		}
		for path, offset := range map[string]int64{"/big": 1 << 40, "/empty": 0} {
			chunk, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: path, Offset: offset, Limit: 10})
			if err != nil || len(chunk.Data) != 0 || !chunk.End || chunk.Next != offset {
				t.Errorf("%s from %d: %+v, %v", path, offset, chunk, err)
			}
		}
	})
}

// The kernel's files have no size, and content.
func TestFiles_WithoutASizeAreRead(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		if err := os.Symlink("/proc/self/status", filepath.Join(r.root, "status")); err != nil {
			t.Fatal(err)
		}
		chunk, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/status", Limit: job.MaxFileChunk})
		if err != nil || !bytes.HasPrefix(chunk.Data, []byte("Name:")) || !chunk.End {
			t.Errorf("read %d bytes, %v", len(chunk.Data), err)
		}
	})
}

// What is no regular file is not opened: that may never end.
func TestFiles_OtherThanRegularAreRefused(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r.put("d/f", "x", 0o644)
		err := errors.Join(
			syscall.Mkfifo(filepath.Join(r.root, "pipe"), 0o644), os.Symlink("/dev/zero", filepath.Join(r.root, "zero")),
			os.Symlink("loop", filepath.Join(r.root, "loop")), os.Symlink("pipe", filepath.Join(r.root, "topipe")),
		)
		if err != nil {
			t.Fatal(err)
		}
		for path, says := range map[string]string{
			"/pipe": "not a regular file", "/topipe": "not a regular file", "/zero": "not a regular file", "/d": "is a directory",
			"/none": "does not exist", "/none/f": "does not exist", "/a\x00b": "NUL", "/" + strings.Repeat("x", 5000): "longer than",
		} {
			_, err := r.ReadFile(ctx, r.vm, job.FileRange{Path: path, Limit: 10})
			refusedFor(t, err, "path", says)
			_, err = r.EditFile(ctx, r.vm, job.FileEdit{Path: path, Old: "x", New: "y"})
			refusedFor(t, err, "path", says)
			if path != "/none" {
				_, err = r.WriteFile(ctx, r.vm, job.FileWrite{Path: path, Data: []byte("x")})
				refusedFor(t, err, "path", says)
			}
		}
		_, err = r.WriteFile(ctx, r.vm, job.FileWrite{Path: "/loop", Data: []byte("x")})
		if err == nil {
			t.Error("a link to itself was written")
		}
		_, err = r.WriteFile(ctx, r.vm, job.FileWrite{Path: "/d/f/g", Data: []byte("x")})
		if err == nil {
			t.Error("a file below a file was written")
		}
		_, err = r.WriteFile(ctx, r.vm, job.FileWrite{Path: "/pipe/f", Data: []byte("x"), Parents: true})
		if err == nil {
			t.Error("a file below a pipe was written")
		}
	})
}

func TestWriteFile_KeepsModeAndLinks(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		r.put("dir/script", "old", 0o750)
		if err := os.Symlink("dir/script", filepath.Join(r.root, "link")); err != nil {
			t.Fatal(err)
		}
		written, err := r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: "/link", Data: []byte("new")})
		if err != nil || written.Created || written.Mode != "0750" {
			t.Errorf("%+v, %v", written, err)
		}
		info, err := os.Lstat(filepath.Join(r.root, "link"))
		if err != nil || info.Mode()&fs.ModeSymlink == 0 || r.read("dir/script") != "new" || r.tree()["dir/script"].Perm() != 0o750 {
			t.Errorf("the link is %v, the file %q with %v", info.Mode(), r.read("dir/script"), r.tree())
		}
		written, err = r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: "/link", Data: []byte("n"), Mode: "600"})
		if err != nil || written.Mode != "0600" || r.tree()["dir/script"].Perm() != 0o600 {
			t.Errorf("with a mode: %+v, %v, %v", written, err, r.tree())
		}
		_, err = r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: "/new/f", Data: []byte("n")})
		refusedFor(t, err, "path", `"/new" does not exist`)
	})
}

// No file system has such a name: that is the path's fault, and not the VM's.
func TestFiles_WithANameThatIsTooLong(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		for _, path := range []string{"/" + strings.Repeat("n", 256), "/" + strings.Repeat("n", 256) + "/f"} {
			_, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: path, Limit: 10})
			refusedFor(t, err, "path", "longer than 255 bytes")
			_, err = r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: path, Data: []byte("x"), Parents: true})
			refusedFor(t, err, "path", "longer than 255 bytes")
		}
	})
}

func TestWriteFile_NewReplacesNothing(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		r.put("there", "old", 0o644)
		for _, link := range []string{"there", "nowhere"} {
			if err := os.Symlink(link, filepath.Join(r.root, "to-"+link)); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"/there", "/to-there"} {
			_, err := r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: path, Data: []byte("new"), New: true})
			refusedFor(t, err, "new", "exists already")
		}
		for _, path := range []string{"/new", "/to-nowhere"} {
			if written, err := r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: path, Data: []byte("new"), New: true}); err != nil || !written.Created {
				t.Errorf("%s: %+v, %v", path, written, err)
			}
		}
		if r.read("there") != "old" || r.read("new") != "new" || r.read("nowhere") != "new" {
			t.Errorf("the VM has %q, %q and %q", r.read("there"), r.read("new"), r.read("nowhere"))
		}
	})
}

// A reader sees the old content or the new, never a part.
func TestWriteFile_IsAtomic(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	contents := []string{strings.Repeat("a", 300_000), strings.Repeat("b", 200_000)}
	r.put("f", contents[0], 0o644)
	done := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if got := r.read("f"); !slices.Contains(contents, got) {
				t.Errorf("a reader sees %d bytes", len(got))
				return
			}
		}
	})
	for i := range 20 {
		if _, err := r.WriteFile(t.Context(), r.vm, job.FileWrite{Path: "/f", Data: []byte(contents[i%2])}); err != nil {
			t.Error(err)
		}
	}
	close(done)
	reading.Wait()
}

func TestEditFile(t *testing.T) {
	big := strings.Repeat("x", job.MaxFileWrite)
	for _, tt := range []struct {
		name, content, old, new string
		all                     bool
		want                    string // content after
		edited                  job.FileEdited
		says                    string // of the error, with its field
	}{
		{name: "one match", content: "a\r\nb\r\nc", old: "b\r\n", new: "<&>\r\n", want: "a\r\n<&>\r\nc", edited: job.FileEdited{Replaced: 1, Line: 2, Size: 9}},
		{name: "all", content: "x\nx\xff\nx", old: "x", new: "", all: true, want: "\n\xff\n", edited: job.FileEdited{Replaced: 3, Line: 1, Size: 3}},
		{name: "several", content: "x\nx\nx", old: "x", new: "y", says: "old is 3 times"},
		{name: "none", content: "a\tb", old: "a b", new: "y", says: "old is not in \"/f\": 0 matches"},
		{name: "too large", content: big + "y", old: "y", new: "z", says: "path \"/f\" is larger"},
		{name: "would be too large", content: big, old: big, new: big + "y", says: "new would make"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := bareVM(t, sshtest.Options{})
			r.put("f", tt.content, 0o640)
			edited, err := r.EditFile(t.Context(), r.vm, job.FileEdit{Path: "/f", Old: tt.old, New: tt.new, All: tt.all})
			if tt.says != "" {
				field, says, _ := strings.Cut(tt.says, " ")
				refusedFor(t, err, field, says)
				tt.want = tt.content
			} else if err != nil || edited != tt.edited {
				t.Errorf("%+v, %v, want %+v", edited, err, tt.edited)
			}
			if got := r.read("f"); got != tt.want || r.tree()["f"].Perm() != 0o640 {
				t.Errorf("the file is %.60q with %v, want %.60q", got, r.tree(), tt.want)
			}
		})
	}
}

// Edits at the same time see each other's result.
func TestEditFile_AtTheSameTime(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	const n = 12
	var content strings.Builder
	for i := range n {
		fmt.Fprintf(&content, "line %02d\n", i)
	}
	r.put("f", content.String(), 0o644)
	var editing sync.WaitGroup
	for i := range n {
		editing.Go(func() {
			_, err := r.EditFile(t.Context(), r.vm, job.FileEdit{Path: "/f", Old: fmt.Sprintf("line %02d", i), New: fmt.Sprintf("done %02d", i)})
			if err != nil {
				t.Error(err)
			}
		})
	}
	editing.Wait()
	if got, want := r.read("f"), strings.ReplaceAll(content.String(), "line", "done"); got != want {
		t.Errorf("after %d edits:\n%s", n, got)
	}
}

func TestListFiles(t *testing.T) {
	bothServers(t, func(t *testing.T, r *rig) {
		for _, name := range []string{"d/b", "d/a\xff", "d/é\n", "d/sub/f", "one"} {
			r.put(name, "1234", 0o640)
		}
		err := errors.Join(os.Symlink("/nowhere", filepath.Join(r.root, "d/link")), syscall.Mkfifo(filepath.Join(r.root, "d/pipe"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		types := map[string]job.FileType{}
		q := job.FileList{Path: "/d", Limit: 4}
		for range 2 {
			page, err := r.ListFiles(t.Context(), r.vm, q)
			if err != nil || page.Total != 6 {
				t.Fatalf("%+v, %v", page, err)
			}
			for _, e := range page.Entries {
				names, types[e.Path()] = append(names, e.Path()), e.Type
				if e.Path() == "b" && (e.Size != 4 || e.Mode != "0640" || e.ModTime.IsZero() || e.UID != uint32(os.Getuid())) {
					t.Errorf("%+v", e)
				}
			}
			q.Offset = page.Next
		}
		if q.Offset != 0 {
			t.Errorf("after the last page another one begins at %d", q.Offset)
		}
		if diff := cmp.Diff([]string{"a\xff", "b", "link", "pipe", "sub", "é\n"}, names); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		want := map[string]job.FileType{"a\xff": job.FileRegular, "b": job.FileRegular, "link": job.FileSymlink, "pipe": job.FileOther, "sub": job.FileDirectory, "é\n": job.FileRegular}
		if diff := cmp.Diff(want, types); diff != "" {
			t.Errorf("types (-want +got):\n%s", diff)
		}
		one, err := r.ListFiles(t.Context(), r.vm, job.FileList{Path: "/one", Limit: 1})
		if err != nil || len(one.Entries) != 1 || one.Entries[0].Name != "one" || one.Entries[0].Type != job.FileRegular {
			t.Errorf("of a file: %+v, %v", one, err)
		}
		link, err := r.ListFiles(t.Context(), r.vm, job.FileList{Path: "/d/link", Limit: 1})
		if err != nil || len(link.Entries) != 1 || link.Entries[0].Type != job.FileSymlink {
			t.Errorf("of a link that leads nowhere: %+v, %v", link, err)
		}
		_, err = r.ListFiles(t.Context(), r.vm, job.FileList{Path: "/none", Limit: 1})
		refusedFor(t, err, "path", "does not exist")
	})
}

// hostile is a VM whose server of files does what it likes.
type hostile struct {
	sftp.Handlers

	left chan struct{} // closed with the test
}

type hostileInfo struct{ name string }

func (i hostileInfo) Name() string       { return i.name }
func (i hostileInfo) Size() int64        { return 1 << 50 }
func (i hostileInfo) ModTime() time.Time { return time.Unix(1<<40, 0) }
func (i hostileInfo) IsDir() bool        { return strings.HasPrefix(i.name, "endless") }
func (i hostileInfo) Sys() any           { return nil }
func (i hostileInfo) Mode() fs.FileMode {
	if i.IsDir() {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

// ListAt fills every list, for ever.
func (i hostileInfo) ListAt(infos []os.FileInfo, _ int64) (int, error) {
	for k := range infos {
		infos[k] = hostileInfo{strings.Repeat("x", 1000)}
	}
	return len(infos), nil
}

type hostileStat struct{ hostileInfo }

func (s hostileStat) ListAt(infos []os.FileInfo, offset int64) (int, error) {
	if offset > 0 {
		return 0, io.EOF
	}
	infos[0] = s.hostileInfo
	return 1, nil
}

func (h hostile) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	info := hostileInfo{filepath.Base(r.Filepath)}
	if r.Method == "List" {
		return info, nil
	}
	return hostileStat{info}, nil
}

// Fileread opens "hangs" never; anything else has no end.
func (h hostile) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if strings.HasSuffix(r.Filepath, "hangs") {
		<-h.left
	}
	return zeroes{}, nil
}

type zeroes struct{}

func (zeroes) ReadAt(data []byte, _ int64) (int, error) { return len(data), nil }

func hostileVM(t *testing.T) *rig {
	t.Helper()
	h := hostile{left: make(chan struct{})}
	h.FileGet, h.FileList = h, h
	r := bareVM(t, sshtest.Options{ServeFiles: func(channel io.ReadWriteCloser) {
		_ = sftp.NewRequestServer(channel, h.Handlers).Serve()
	}})
	t.Cleanup(func() { close(h.left) })
	return r
}

func TestFiles_AHostileVMIsBounded(t *testing.T) {
	r := hostileVM(t)
	_, err := r.ListFiles(t.Context(), r.vm, job.FileList{Path: "/endless", Limit: 10})
	refusedFor(t, err, "path", "more entries than")
	chunk, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/zero", Limit: 100_000})
	if err != nil || len(chunk.Data) != 100_000 || chunk.End {
		t.Errorf("of an endless file %d bytes, %v", len(chunk.Data), err)
	}
	_, err = r.EditFile(t.Context(), r.vm, job.FileEdit{Path: "/zero", Old: "x", New: "y"})
	refusedFor(t, err, "path", "larger")
}

// A call that hangs in a VM ends with its caller's patience, and holds no other.
func TestFiles_AHostileVMHoldsNobody(t *testing.T) {
	r := hostileVM(t)
	ctx, cancel := context.WithCancel(t.Context())
	hanging := make(chan error)
	for range 3 {
		go func() {
			_, err := r.ReadFile(ctx, r.vm, job.FileRange{Path: "/hangs", Limit: 10})
			hanging <- err
		}()
	}
	if _, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/zero", Limit: 10}); err != nil {
		t.Error(err)
	}
	cancel()
	for range 3 {
		if err := <-hanging; !errors.Is(err, context.Canceled) {
			t.Errorf("a call that hangs ends with %v", err)
		}
	}
}

func TestFiles_WithoutSFTP(t *testing.T) {
	r := bareVM(t, sshtest.Options{Faults: sshtest.Faults{NoSFTP: true}})
	_, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/f", Limit: 1})
	refusedFor(t, err, "vm", "no SFTP subsystem")
}

// A connection that has ended since the last call is replaced.
func TestFiles_AfterTheConnectionIsLost(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.put("f", "content", 0o644)
	for range 2 {
		chunk, err := r.ReadFile(t.Context(), r.vm, job.FileRange{Path: "/f", Limit: 100})
		if err != nil || string(chunk.Data) != "content" {
			t.Fatalf("%q, %v", chunk.Data, err)
		}
		r.inside.Drop()
	}
}

// names are what an archive has, with their types.
func names(t *testing.T, archive io.Reader) map[string]byte {
	t.Helper()
	found := map[string]byte{}
	for from := tar.NewReader(archive); ; {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Typeflag
	}
}

func TestTree_ComesAndGoes(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	for _, name := range []string{"d/-f", "d/é\xff\n", "d/sub/f"} {
		r.put(name, anyBytes, 0o640)
	}
	err := errors.Join(os.Symlink("sub/f", filepath.Join(r.root, "d/link")), os.Symlink("d", filepath.Join(r.root, "todir")),
		syscall.Mkfifo(filepath.Join(r.root, "d/pipe"), 0o600), os.Mkdir(filepath.Join(r.root, "out"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]map[string]byte{
		"/d":     {"./": tar.TypeDir, "./-f": tar.TypeReg, "./é\xff\n": tar.TypeReg, "./sub/": tar.TypeDir, "./sub/f": tar.TypeReg, "./link": tar.TypeSymlink, "./pipe": tar.TypeFifo},
		"/d/-f":  {"./-f": tar.TypeReg},
		"/d/sub": {"./": tar.TypeDir, "./f": tar.TypeReg},
		"/todir": {"./": tar.TypeDir, "./-f": tar.TypeReg, "./é\xff\n": tar.TypeReg, "./sub/": tar.TypeDir, "./sub/f": tar.TypeReg, "./link": tar.TypeSymlink, "./pipe": tar.TypeFifo},

		"/d/link": {"./link": tar.TypeReg},
	} {
		tree, err := r.ReadTree(t.Context(), r.vm, path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, names(t, tree)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	}
	tree, err := r.ReadTree(t.Context(), r.vm, "/d")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTree(t.Context(), r.vm, "/out", tree); err != nil {
		t.Error(err)
	}
	if r.read("out/é\xff\n") != anyBytes || r.read("out/sub/f") != anyBytes || r.tree()["out/-f"].Perm() != 0o640 {
		t.Errorf("there arrived %v", r.tree())
	}
}

// What is said to be there outlasts a power cut of the VM.
func TestWriteTree_IsOnTheDisk(t *testing.T) {
	bin := t.TempDir()
	r := bareVM(t, sshtest.Options{Env: []string{"PATH=" + bin + ":" + os.Getenv("PATH")}})
	at := filepath.Join(r.root, "out")
	for _, tt := range []struct{ name, sync, want string }{
		{"its file system alone", `echo "$*" >>` + bin + "/said; ls " + at + " >>" + bin + "/said", "-f " + at + "\n-f\n"},
		{"all, by a sync that knows no other", "echo \"$*\" >>" + bin + "/said; [ $# = 0 ]", "-f " + at + "\n\n"},
	} {
		if err := errors.Join(os.RemoveAll(at), os.MkdirAll(at, 0o755), os.RemoveAll(filepath.Join(bin, "said")), os.WriteFile(filepath.Join(bin, "sync"), []byte("#!/bin/sh\n"+tt.sync+"\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		r.put("d/-f", "abc", 0o644)
		tree, err := r.ReadTree(t.Context(), r.vm, "/d")
		if err == nil {
			err = r.WriteTree(t.Context(), r.vm, "/out", tree)
		}
		if said, _ := os.ReadFile(filepath.Join(bin, "said")); err != nil || string(said) != tt.want {
			t.Errorf("%s: sync was called with %q, want %q; %v", tt.name, said, tt.want, err)
		}
	}
}

// tar ends at the archive's end, which may be before the stream's: what comes after it, and
// when, is no error.
func TestTree_GoesOnAfterTheArchive(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.put("d/f", "abc", 0o644)
	if err := os.Mkdir(filepath.Join(r.root, "out"), 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := r.ReadTree(t.Context(), r.vm, "/d")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTree(t.Context(), r.vm, "/out", io.MultiReader(tree, bytes.NewReader(make([]byte, 8<<20)))); err != nil {
		t.Error(err)
	}
	if got := r.read("out/f"); got != "abc" {
		t.Errorf("there arrived %q", got)
	}
}

func TestTree_SaysWhatIsWrong(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.put("f", "x", 0o644)
	if err := syscall.Mkfifo(filepath.Join(r.root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{"/none": "does not exist", "/pipe": "neither a directory nor"} {
		tree, err := r.ReadTree(t.Context(), r.vm, path)
		if err == nil {
			_, err = io.ReadAll(tree)
			_ = tree.Close()
		}
		refusedFor(t, err, "path", says)
	}
	for path, says := range map[string]string{"/none": "does not exist", "/f": "neither a directory nor"} {
		refusedFor(t, r.WriteTree(t.Context(), r.vm, path, strings.NewReader("")), "path", says)
	}
	refusedFor(t, r.WriteTree(t.Context(), r.vm, "/", strings.NewReader(strings.Repeat("no archive", 1000))), "path", "tar")
	cut := errors.New("the client has left")
	err := r.WriteTree(t.Context(), r.vm, "/", io.MultiReader(bytes.NewReader(make([]byte, 512)), failingReader{cut}))
	if !errors.Is(err, cut) {
		t.Errorf("a client that leaves: %v", err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// Who reads no further ends the transfer; the workspace has a place again.
func TestTree_ThatNobodyReadsEnds(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.put("d/f", strings.Repeat("x", 8<<20), 0o644)
	for range 12 { // more than are allowed at once
		ctx, cancel := context.WithCancel(t.Context())
		tree, err := r.ReadTree(ctx, r.vm, "/d")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(tree, make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		cancel()
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	}
}

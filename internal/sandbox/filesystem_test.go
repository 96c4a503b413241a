package sandbox_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"linus/internal/sandbox/rpc"
)

func (b *box) path(names ...string) string {
	return filepath.Join(append([]string{b.dir}, names...)...)
}

// put makes a file of the test's directory, and what is above it.
func (b *box) put(t *testing.T, name, text string) string {
	t.Helper()
	path := b.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStat(t *testing.T) {
	b := serve(t)
	file := b.put(t, "a/file", "four")
	for link, to := range map[string]string{"link": file, "to-dir": b.path("a"), "broken": "/no/such", "loop": b.path("loop")} {
		if err := os.Symlink(to, b.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(b.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		kind        rpc.FileType
		mode        uint32
		permissions string
		target      string
	}{
		file:             {rpc.FileType_FILE_TYPE_FILE, 0o644, "-rw-r--r--", ""},
		b.path("a"):      {rpc.FileType_FILE_TYPE_DIRECTORY, 0o755, "drwxr-xr-x", ""},
		b.path("link"):   {rpc.FileType_FILE_TYPE_FILE, 0o644, "Lrwxrwxrwx", file},
		b.path("to-dir"): {rpc.FileType_FILE_TYPE_DIRECTORY, 0o755, "Lrwxrwxrwx", b.path("a")},
		b.path("broken"): {0, 0, "Lrwxrwxrwx", b.path("broken")},
		b.path("loop"):   {0, 0, "Lrwxrwxrwx", b.path("loop")},
		b.path("fifo"):   {0, 0o600, "prw-------", ""},
	} {
		answer, err := b.Stat(t.Context(), &rpc.StatRequest{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		e := answer.GetEntry()
		if e.GetType() != want.kind || e.GetMode() != want.mode || e.GetPermissions() != want.permissions || e.GetSymlinkTarget() != want.target || e.GetPath() != path || e.GetName() != filepath.Base(path) || time.Since(e.GetModifiedTime().AsTime()).Abs() > time.Hour || e.GetOwner() == "" || e.GetGroup() == "" {
			t.Errorf("%s: %v", path, e)
		}
		if path == file && e.GetSize() != 4 {
			t.Errorf("its size: %d", e.GetSize())
		}
	}
	for path, want := range map[string]connect.Code{
		"/no/such":                       connect.CodeNotFound,
		file + "/below":                  connect.CodeNotFound,
		b.path("loop", "x"):              connect.CodeFailedPrecondition,
		"a\x00b":                         connect.CodeInvalidArgument,
		"~other/x":                       connect.CodeInvalidArgument,
		"/" + strings.Repeat("x", 300):   connect.CodeInvalidArgument,
		"/" + strings.Repeat("x/", 3000): connect.CodeInvalidArgument,
	} {
		_, err := b.Stat(t.Context(), &rpc.StatRequest{Path: path})
		wantCode(t, err, want)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"": b.dir, "~": home, "~/.": home, ".": home, "/etc/../etc/./passwd": "/etc/passwd"} {
		if e, err := b.Stat(t.Context(), &rpc.StatRequest{Path: path}); err != nil || e.GetEntry().GetPath() != want {
			t.Errorf("%q is %v, %v", path, e, err)
		}
	}
}

func TestListDir(t *testing.T) {
	b := serve(t)
	b.put(t, "d/b/c/file", "")
	b.put(t, "d/a", "")
	if err := os.Symlink(b.path("d"), b.path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.path("d"), b.path("d/up")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		depth uint32
		want  []string
	}{
		{"d", 0, []string{"d/a", "d/b", "d/up"}},
		{"d", 1, []string{"d/a", "d/b", "d/up"}},
		{"d", 2, []string{"d/a", "d/b", "d/b/c", "d/up"}},
		{"d", 1 << 31, []string{"d/a", "d/b", "d/b/c", "d/b/c/file", "d/up"}},
		{"link", 2, []string{"link/a", "link/b", "link/b/c", "link/up"}},
		{"d/b/c", 9, []string{"d/b/c/file"}},
	} {
		list, err := b.ListDir(t.Context(), &rpc.ListDirRequest{Path: b.path(c.path), Depth: c.depth})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range list.GetEntries() {
			got = append(got, strings.TrimPrefix(e.GetPath(), b.dir+"/"))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s to depth %d (-want +got):\n%s", c.path, c.depth, diff)
		}
	}
	for path, want := range map[string]connect.Code{"no": connect.CodeNotFound, "d/a": connect.CodeInvalidArgument} {
		_, err := b.ListDir(t.Context(), &rpc.ListDirRequest{Path: b.path(path)})
		wantCode(t, err, want)
	}
}

// A name that is no text does not make the directory unreadable.
func TestListDir_NamesThatAreNoText(t *testing.T) {
	b := serve(t, connect.WithProtoJSON())
	b.put(t, "d/\xff\xfe", "")
	list, err := b.ListDir(t.Context(), &rpc.ListDirRequest{Path: b.path("d")})
	if err != nil || len(list.GetEntries()) != 1 {
		t.Error(list, err)
	}
}

func TestMakeDirMoveRemove(t *testing.T) {
	b := serve(t)
	file := b.put(t, "file", "text")
	made, err := b.MakeDir(t.Context(), &rpc.MakeDirRequest{Path: b.path("x/y/z")})
	if err != nil || made.GetEntry().GetType() != rpc.FileType_FILE_TYPE_DIRECTORY || made.GetEntry().GetPath() != b.path("x/y/z") {
		t.Fatal(made, err)
	}
	for path, want := range map[string]connect.Code{"x/y": connect.CodeAlreadyExists, "file": connect.CodeInvalidArgument, "file/below": connect.CodeInvalidArgument} {
		_, err := b.MakeDir(t.Context(), &rpc.MakeDirRequest{Path: b.path(path)})
		wantCode(t, err, want)
	}

	moved, err := b.Move(t.Context(), &rpc.MoveRequest{Source: file, Destination: b.path("new/place/file")})
	if err != nil || moved.GetEntry().GetPath() != b.path("new/place/file") || moved.GetEntry().GetSize() != 4 {
		t.Fatal(moved, err)
	}
	if memory, err := os.MkdirTemp("/dev/shm", "linus-sandbox"); err == nil { // another file system
		t.Cleanup(func() { _ = os.RemoveAll(memory) })
		if _, err := b.Move(t.Context(), &rpc.MoveRequest{Source: b.path("new"), Destination: memory + "/new"}); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(memory + "/new/place/file"); err != nil || string(text) != "text" {
			t.Errorf("what was moved: %q, %v", text, err)
		}
		if _, err := os.Stat(b.path("new")); err == nil {
			t.Error("it is still there")
		}
	}
	_, err = b.Move(t.Context(), &rpc.MoveRequest{Source: b.path("no"), Destination: b.path("made/for/it")})
	wantCode(t, err, connect.CodeNotFound)
	if _, err := os.Stat(b.path("made")); err == nil {
		t.Error("a directory was made for what is not there")
	}
	b.put(t, "full/file", "")
	_, err = b.Move(t.Context(), &rpc.MoveRequest{Source: b.path("x"), Destination: b.path("full")})
	wantCode(t, err, connect.CodeAlreadyExists)

	for _, path := range []string{"x", "full/file", "no"} {
		if _, err := b.Remove(t.Context(), &rpc.RemoveRequest{Path: b.path(path)}); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(b.path(path)); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

var octets = http.Header{"Content-Type": {"application/octet-stream"}}

func header(pairs ...string) http.Header {
	h := octets.Clone()
	for pair := range slices.Chunk(pairs, 2) {
		h.Set(pair[0], pair[1])
	}
	return h
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, err := io.WriteString(z, text)
	if err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestFiles_UpAndDown(t *testing.T) {
	b := serve(t)
	at := func(name string) string { return "/files?path=" + url.QueryEscape(b.path(name)) }
	large := strings.Repeat("0123456789abcdef", 1<<17)
	status, text := b.call(t, "POST", at("a b/large"), octets, large)
	if want := `[{"name":"large","type":"file","path":"` + b.path("a b/large") + `"}]` + "\n"; status != http.StatusOK || text != want {
		t.Fatal(status, text)
	}
	if status, text := b.call(t, "GET", at("a b/large"), nil, ""); status != http.StatusOK || text != large {
		t.Errorf("%d, %d bytes", status, len(text))
	}
	if status, text := b.call(t, "GET", at("a b/large"), http.Header{"Range": {"bytes=3-5"}}, ""); status != http.StatusPartialContent || text != "345" {
		t.Errorf("a range: %d, %.20q", status, text)
	}
	// One that is shorter takes its place, and a missing body is an empty file.
	for _, body := range []string{"short", ""} {
		b.call(t, "POST", at("a b/large"), octets, body)
		if status, text := b.call(t, "GET", at("a b/large"), nil, ""); status != http.StatusOK || text != body {
			t.Errorf("%d, %.100q", status, text)
		}
	}
	b.call(t, "POST", at("zipped"), header("Content-Encoding", "gzip"), zipped(t, "in short"))
	for accept, want := range map[string]string{"": "in short", "gzip": zipped(t, "in short"), "gzip, deflate": "in short", "gzip;q=0": "in short", "gzip, identity;q=0": zipped(t, "in short")} {
		status, text := b.call(t, "GET", at("zipped"), http.Header{"Accept-Encoding": {accept}}, "")
		if r, err := gzip.NewReader(strings.NewReader(text)); err == nil && strings.HasPrefix(want, "\x1f\x8b") {
			plain, _ := io.ReadAll(r)
			text = zipped(t, string(plain))
		}
		if status != http.StatusOK || text != want {
			t.Errorf("Accept-Encoding %q: %d, %.100q", accept, status, text)
		}
	}
	// Files without a size have something in them, too.
	if status, text := b.call(t, "GET", "/files?path=/proc/self/comm", nil, ""); status != http.StatusOK || len(text) < 2 {
		t.Errorf("of /proc: %d, %q", status, text)
	}
}

func TestFiles_Forms(t *testing.T) {
	b := serve(t)
	form := func(files ...string) (http.Header, string) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.WriteField("other", "x")
		for pair := range slices.Chunk(files, 2) {
			part, err := w.CreateFormFile("file", pair[0])
			if err == nil {
				_, err = io.WriteString(part, pair[1])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return http.Header{"Content-Type": {w.FormDataContentType()}}, body.String()
	}
	h, body := form(b.path("m/one"), "1", b.path("m/two"), "2")
	status, text := b.call(t, "POST", "/files", h, body)
	var files []struct{ Name, Path, Type string }
	if err := json.Unmarshal([]byte(text), &files); err != nil || status != http.StatusOK || len(files) != 2 || files[1].Path != b.path("m/two") || files[1].Name != "two" {
		t.Fatal(status, text, err)
	}
	for name, want := range map[string]string{"m/one": "1", "m/two": "2"} {
		if got, err := os.ReadFile(b.path(name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	h, body = form("ignored", "text")
	if status, text := b.call(t, "POST", "/files?path="+b.path("named"), h, body); status != http.StatusOK || !strings.Contains(text, `"name":"named"`) {
		t.Error(status, text)
	}
	for name, files := range map[string][]string{"twice the same": {b.path("x"), "1", b.path("x"), "2"}, "a user's home": {"~other/x", ""}, "no name": {"", ""}} {
		h, body = form(files...)
		if status, text := b.call(t, "POST", "/files", h, body); status != http.StatusBadRequest || strings.Contains(text, "%!") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	if status, text := b.call(t, "POST", "/files", http.Header{"Content-Type": h["Content-Type"]}, "no form"); status != http.StatusBadRequest {
		t.Error(status, text)
	}
}

func TestFiles_Refusals(t *testing.T) {
	b := serve(t)
	b.put(t, "file", "")
	if err := syscall.Mkfifo(b.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		header       http.Header
		body         string
		status       int
	}{
		{"GET", "/files?path=" + b.path("no"), nil, "", http.StatusNotFound},
		{"GET", "/files?path=" + b.dir, nil, "", http.StatusBadRequest},
		{"GET", "/files?path=" + b.path("fifo"), nil, "", http.StatusBadRequest},
		{"GET", "/files?path=/dev/zero", nil, "", http.StatusBadRequest},
		{"GET", "/files?path=" + b.path("file", "below"), nil, "", http.StatusBadRequest},
		{"GET", "/files?path=%00", nil, "", http.StatusBadRequest},
		{"GET", "/files?path=" + b.path("file"), http.Header{"Accept-Encoding": {"br, identity;q=0"}}, "", http.StatusNotAcceptable},
		{"POST", "/files", octets, "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.dir, octets, "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.path("fifo"), octets, "x", http.StatusInternalServerError},
		{"POST", "/files?path=/dev/null", octets, "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.path("file", "below"), octets, "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.path("x"), http.Header{"Content-Type": {"text/plain"}}, "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.path("x"), header("Content-Encoding", "gzip"), "x", http.StatusBadRequest},
		{"POST", "/files?path=" + b.path("x"), header("Content-Encoding", "br"), "x", http.StatusBadRequest},
		{"DELETE", "/files?path=" + b.path("file"), nil, "", http.StatusMethodNotAllowed},
	} {
		status, text := b.call(t, c.method, c.path, c.header, c.body)
		if status != c.status || c.method != "DELETE" && !strings.Contains(text, fmt.Sprintf(`"code":%d`, c.status)) {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, text)
		}
	}
	if _, err := os.Stat(b.path("x")); err == nil {
		t.Error("what was refused was written")
	}
}

func TestFiles_Metadata(t *testing.T) {
	b := serve(t)
	at := "/files?path=" + b.path("file")
	of := func() map[string]string {
		t.Helper()
		e, err := b.Stat(t.Context(), &rpc.StatRequest{Path: b.path("file")})
		if err != nil {
			t.Fatal(err)
		}
		return e.GetEntry().GetMetadata()
	}
	status, text := b.call(t, "POST", at, header("X-Metadata-Author", "me", "X-Metadata-a.b", "c d"), "x")
	if status != http.StatusOK {
		t.Fatal(status, text)
	}
	if len(of()) == 0 {
		t.Skip("this file system has no extended attributes")
	}
	want := map[string]string{"author": "me", "a.b": "c d"}
	if !strings.Contains(text, `"metadata":{"a.b":"c d","author":"me"}`) || cmp.Diff(want, of()) != "" {
		t.Errorf("%s, %v", text, of())
	}
	b.call(t, "POST", at, header("X-Metadata-New", "1"), "x")
	if diff := cmp.Diff(map[string]string{"new": "1"}, of()); diff != "" {
		t.Error(diff)
	}
	if err := syscall.Setxattr(b.path("file"), "user.e2b.binary", []byte("\xff"), 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"new": "1"}, of()); diff != "" {
		t.Error(diff)
	}
	b.call(t, "POST", at, octets, "x")
	if got := of(); len(got) != 0 {
		t.Errorf("an upload without leaves %v", got)
	}
	for name, h := range map[string]http.Header{
		"no text":    header("X-Metadata-A", "ä"),
		"a long key": header("X-Metadata-"+strings.Repeat("a", 247), ""),
		"too much":   header("X-Metadata-A", strings.Repeat("a", 2050), "X-Metadata-B", strings.Repeat("a", 2050)),
	} {
		if status, text := b.call(t, "POST", at, h, "x"); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
}

// watched is a stream of what changes.
type watched struct {
	*connect.ServerStreamForClient[rpc.WatchDirResponse]
}

func (b *box) watch(t *testing.T, req *rpc.WatchDirRequest) watched {
	t.Helper()
	stream, err := b.WatchDir(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	if !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatal(stream.Msg(), stream.Err())
	}
	return watched{stream}
}

// until waits for an event, and returns all that came.
func (w watched) until(t *testing.T, last string) (events []string) {
	t.Helper()
	for !slices.Contains(events, last) {
		if !w.Receive() {
			t.Fatalf("%s does not come, but %q: %v", last, events, w.Err())
		}
		e := w.Msg().GetFilesystem()
		events = append(events, strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_")+" "+e.GetName())
		if e.GetEntry() != nil && e.GetEntry().GetName() != filepath.Base(e.GetName()) {
			t.Errorf("%v is about %v", e, e.GetEntry())
		}
	}
	return events
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchDir(t *testing.T) {
	b := serve(t)
	b.put(t, "d/sub/below", "")
	w := b.watch(t, &rpc.WatchDirRequest{Path: b.path("d"), IncludeEntry: true})
	file := b.put(t, "d/file", "text")
	b.put(t, "d/sub/below", "not told")
	do(t, os.Chmod(file, 0o600), os.Rename(file, file+"2"), os.Remove(file+"2"))
	want := []string{"CREATE file", "WRITE file", "CHMOD file", "RENAME file", "CREATE file2", "REMOVE file2"}
	if got := w.until(t, "REMOVE file2"); cmp.Diff(want, got) != "" {
		t.Errorf("what is told: %q", got)
	}
	// What replaces it is not told as what is gone.
	b.put(t, "d/entry", "12345")
	for w.Receive() && w.Msg().GetFilesystem().GetType() != rpc.EventType_EVENT_TYPE_WRITE {
	}
	if e := w.Msg().GetFilesystem().GetEntry(); e.GetSize() != 5 || e.GetPath() != b.path("d/entry") || e.GetType() != rpc.FileType_FILE_TYPE_FILE {
		t.Errorf("its entry: %v", e)
	}
	do(t, os.RemoveAll(b.path("d")))
	w.until(t, "REMOVE .")

	for path, want := range map[string]connect.Code{"no": connect.CodeNotFound, "file": connect.CodeInvalidArgument} {
		b.put(t, "file", "")
		stream, err := b.WatchDir(t.Context(), &rpc.WatchDirRequest{Path: b.path(path)})
		if err == nil {
			stream.Receive()
			err = stream.Err()
			_ = stream.Close()
		}
		wantCode(t, err, want)
	}
}

func TestWatchDir_Recursive(t *testing.T) {
	b := serve(t)
	b.put(t, "d/old/file", "")
	b.put(t, "elsewhere/in/file", "")
	do(t, os.Symlink("/", b.path("d/link")))
	w := b.watch(t, &rpc.WatchDirRequest{Path: b.path("d"), Recursive: true})
	b.put(t, "d/old/file", "text")
	w.until(t, "WRITE old/file")
	// What a new directory has before it is watched is told.
	b.put(t, "d/new/deep/file", "text")
	w.until(t, "CREATE new/deep/file")
	b.put(t, "d/new/deep/file", "more")
	w.until(t, "WRITE new/deep/file")
	// A directory that is moved has its new name, and no old one.
	do(t, os.Rename(b.path("d/new"), b.path("d/moved")))
	w.until(t, "CREATE moved/deep/file")
	b.put(t, "d/moved/deep/file", "again")
	for _, event := range w.until(t, "WRITE moved/deep/file") {
		if strings.Contains(event, " new") {
			t.Errorf("it is told as %s", event)
		}
	}
	do(t, os.Rename(b.path("elsewhere"), b.path("d/here")))
	w.until(t, "CREATE here/in/file")
	do(t, os.Rename(b.path("d/here"), b.path("gone")))
	w.until(t, "RENAME here")
	b.put(t, "gone/in/file", "not told")
	do(t, os.RemoveAll(b.path("d/moved")))
	events := w.until(t, "REMOVE moved")
	for _, want := range []string{"REMOVE moved/deep/file", "REMOVE moved/deep"} {
		if !slices.Contains(events, want) {
			t.Errorf("%s is not in %q", want, events)
		}
	}
	for _, event := range events {
		if strings.Contains(event, "gone") || strings.Contains(event, "here") {
			t.Errorf("it tells %s of what was moved away", event)
		}
	}
}

func TestWatcher(t *testing.T) {
	b := serve(t)
	do(t, os.Mkdir(b.path("d"), 0o755))
	made, err := b.CreateWatcher(t.Context(), &rpc.CreateWatcherRequest{Path: b.path("d"), Recursive: true, IncludeEntry: true})
	do(t, err)
	get := func() []*rpc.FilesystemEvent {
		t.Helper()
		events, err := b.GetWatcherEvents(t.Context(), &rpc.GetWatcherEventsRequest{WatcherId: made.GetWatcherId()})
		do(t, err)
		return events.GetEvents()
	}
	if got := get(); len(got) != 0 {
		t.Errorf("nothing has changed: %v", got)
	}
	b.put(t, "d/file", "text")
	var got []*rpc.FilesystemEvent
	eventually(t, func() bool { got = append(got, get()...); return len(got) == 2 })
	if got[0].GetType() != rpc.EventType_EVENT_TYPE_CREATE || got[1].GetType() != rpc.EventType_EVENT_TYPE_WRITE || got[1].GetName() != "file" || got[1].GetEntry().GetSize() != 4 {
		t.Errorf("what has changed: %v", got)
	}
	if got := get(); len(got) != 0 {
		t.Errorf("it is told twice: %v", got)
	}
	_, err = b.RemoveWatcher(t.Context(), &rpc.RemoveWatcherRequest{WatcherId: made.GetWatcherId()})
	do(t, err)
	for _, id := range []string{made.GetWatcherId(), "", "w1"} {
		_, err := b.RemoveWatcher(t.Context(), &rpc.RemoveWatcherRequest{WatcherId: id})
		wantCode(t, err, connect.CodeNotFound)
		_, err = b.GetWatcherEvents(t.Context(), &rpc.GetWatcherEventsRequest{WatcherId: id})
		wantCode(t, err, connect.CodeNotFound)
	}
}

// Who never asks has its events kept up to a bound, and is told that they are lost.
func TestWatcher_KeepsNoMoreThanABound(t *testing.T) {
	b := serve(t)
	do(t, os.Mkdir(b.path("d"), 0o755))
	made, err := b.CreateWatcher(t.Context(), &rpc.CreateWatcherRequest{Path: b.path("d")})
	do(t, err)
	file, err := os.Create(b.path("d/file"))
	do(t, err)
	defer file.Close()
	eventually(t, func() bool {
		for i := range 6000 {
			_, err := file.WriteString("x") // else it were the same event as the one before
			do(t, err, file.Chmod(os.FileMode(0o600|i%2)))
		}
		_, err = b.GetWatcherEvents(t.Context(), &rpc.GetWatcherEventsRequest{WatcherId: made.GetWatcherId()})
		return err != nil
	})
	wantCode(t, err, connect.CodeDataLoss)
}

func TestWatches_AreBounded(t *testing.T) {
	b := serve(t)
	var err error
	made := 0
	for ; err == nil && made < 100; made++ {
		_, err = b.CreateWatcher(t.Context(), &rpc.CreateWatcherRequest{Path: b.dir})
	}
	wantCode(t, err, connect.CodeResourceExhausted)
	if made != 65 {
		t.Errorf("%d can be made", made-1)
	}
}

package web_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/job"
	"linus/internal/web"
)

// at finds a file, with the directory of the user that relative paths begin at.
func (e *engine) at(vm, path string) (string, error) {
	_, ok := e.files[path+"/"]
	content, file := e.files[path]
	switch {
	case e.fileErr != nil:
		return "", e.fileErr
	case vm != id && vm != doneID && vm != "dev" && vm != "105":
		return "", &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q is not a VM of ours", vm)}
	case path == "" || path == "/" || ok:
		return "", nil
	case file:
		return content, nil
	}
	return "", &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q does not exist", path), Remedy: "list its directory"}
}

func (e *engine) isFile(path string) bool { _, ok := e.files[path]; return ok }

func (e *engine) ListFiles(_ context.Context, q job.FileList) (job.FilePage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.at(q.VM, q.Path); err != nil {
		return job.FilePage{}, err
	}
	describe := func(path string) (f job.FileInfo) {
		f = job.FileInfo{Type: job.FileRegular, Size: int64(len(e.files[path])), Mode: "0644", UID: 1000, GID: 1000, ModTime: time.Now().Add(-time.Hour)}
		name := strings.TrimSuffix(path, "/")
		f.SetName(name[strings.LastIndexByte(name, '/')+1:])
		switch {
		case strings.HasSuffix(path, "/"):
			f.Type = job.FileDirectory
		case strings.HasSuffix(path, ".sock"):
			f.Type = job.FileOther
		case strings.HasSuffix(path, ".lnk"):
			f.Type = job.FileSymlink
		}
		return f
	}
	if e.isFile(q.Path) {
		one := describe(q.Path)
		return job.FilePage{Type: one.Type, Entries: []job.FileInfo{one}, Total: 1}, nil
	}
	page := job.FilePage{Type: job.FileDirectory}
	dir := q.Path
	if dir != "" && dir != "/" {
		dir += "/"
	}
	for _, path := range slices.Sorted(maps.Keys(e.files)) {
		rest, ok := strings.CutPrefix(path, dir)
		if ok && rest != "" && !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
			page.Entries = append(page.Entries, describe(path))
		}
	}
	page.Total = len(page.Entries)
	from := min(q.Offset, page.Total)
	to := min(from+q.Limit, page.Total)
	if to < page.Total {
		page.Next = to
	}
	page.Entries = page.Entries[from:to]
	return page, nil
}

func (e *engine) ReadFile(_ context.Context, r job.FileRange) (job.FileChunk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, fmt.Sprintf("read %q %d", r.Path, r.Offset))
	content, err := e.at(r.VM, r.Path)
	if err != nil {
		return job.FileChunk{}, err
	}
	from := min(r.Offset, int64(len(content)))
	data := content[from:min(from+r.Limit, int64(len(content)))]
	chunk := job.FileChunk{Data: []byte(data), Next: from + int64(len(data)), Size: int64(len(content)), Mode: "0644"}
	chunk.End = chunk.Next == int64(len(content))
	switch {
	case strings.HasPrefix(r.Path, "/proc/"): // as the kernel's
		chunk.Size = 0
	case r.Path == "/shrinks" && from > 0:
		chunk = job.FileChunk{Next: from, End: true, Size: from}
	case r.Path == "/breaks" && from > 0:
		return job.FileChunk{}, errors.New("the VM is gone")
	}
	return chunk, nil
}

func (e *engine) WriteFile(_ context.Context, w job.FileWrite) (job.FileWritten, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.at(w.VM, ""); err != nil {
		return job.FileWritten{}, err
	}
	if strings.HasPrefix(w.Path, "/etc/") {
		return job.FileWritten{}, &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q permission denied to the VM's SSH user", w.Path)}
	}
	if w.New && e.isFile(w.Path) {
		return job.FileWritten{}, &job.FieldError{Field: "new", Problem: "exists already"}
	}
	e.files[w.Path] = string(w.Data)
	return job.FileWritten{Created: true}, nil
}

func (e *engine) ReadTree(_ context.Context, f job.FileRef) (io.ReadCloser, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.at(f.VM, f.Path); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}) // into memory
	if f.Path == "/broken" {
		return io.NopCloser(io.MultiReader(&b, failing{})), nil
	}
	_ = w.Close()
	return io.NopCloser(&b), nil
}

// failing is a stream that has ended early.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("cut off") }

// withFiles is an engine with files in its VMs.
func withFiles() *engine {
	e := sample()
	e.files = map[string]string{
		"notes.txt": "hello\n", "src/": "", "src/main.go": "package main\n", "/etc/": "", "/etc/os-release": "ID=debian\n",
		"/var/": "", "/var/log/": "", "/var/log/syslog": strings.Repeat("a line of the log\n", 40000),
	}
	return e
}

// links returns the addresses on a page that begin with a prefix.
func links(text, prefix string) []string {
	var found []string
	for _, m := range regexp.MustCompile(`(?:href|action)="(`+regexp.QuoteMeta(html.EscapeString(prefix))+`[^"]*)"`).FindAllStringSubmatch(text, -1) {
		found = append(found, html.UnescapeString(m[1]))
	}
	return found
}

func TestFiles_AreBrowsedAndRead(t *testing.T) {
	e := withFiles()
	v := loggedIn(t, e)
	_, text := v.get("/vms/105")
	if got := links(text, "/jobs/"+doneID+"/files"); len(got) != 1 {
		t.Errorf("the VM's page leads to %q", got)
	}
	_, text = v.get("/jobs/" + id)
	if got := links(text, "/jobs/"+id+"/files"); len(got) != 1 {
		t.Errorf("the job's page leads to %q", got)
	}
	code, text := v.get("/jobs/" + id + "/files")
	if code != 200 || !strings.Contains(text, "linus-job-000000000001") || !strings.Contains(text, ">notes.txt</a>") || !strings.Contains(text, ">src</a>/") || strings.Contains(text, "main.go") {
		t.Fatalf("%d %s", code, text)
	}
	if _, text = v.get("/jobs/" + id + "/files?path=src"); !strings.Contains(text, ">main.go</a>") || !slices.Contains(links(text, "/jobs/"+id+"/files"), "/jobs/"+id+"/files?path=src%2Fmain.go") {
		t.Errorf("%s", text)
	}
	if _, text = v.get("/jobs/" + id + "/files?path=src%2Fmain.go"); !strings.Contains(text, "package main\n</pre>") {
		t.Errorf("%s", text)
	}
	// A large text is shown in pieces that end with a line, and none of it is left out.
	var whole strings.Builder
	next := "/jobs/" + id + "/files?path=/var/log/syslog"
	for n := 0; next != "" && n < 10; n++ {
		_, text = v.get(next)
		piece := regexp.MustCompile(`(?s)<pre id="text"[^>]*>\n(.*?)</pre>`).FindStringSubmatch(text)
		if piece == nil || !strings.HasSuffix(piece[1], "log\n") || len(piece[1]) > 300<<10 {
			t.Fatalf("%s: %.2000s", next, text)
		}
		whole.WriteString(piece[1])
		next = ""
		if m := regexp.MustCompile(`id="next-page" href="([^"]+)"`).FindStringSubmatch(text); m != nil {
			next = html.UnescapeString(m[1])
		}
	}
	if whole.String() != e.files["/var/log/syslog"] {
		t.Errorf("%d bytes were shown of %d", whole.Len(), len(e.files["/var/log/syslog"]))
	}
	for _, path := range []string{"none", "/none"} {
		if code, text := v.get("/jobs/" + id + "/files?path=" + path); code != 422 || !strings.Contains(text, "does not exist") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, at := range []string{"-1", "x", "99999999999999999999"} {
		if code, _ := v.get("/jobs/" + id + "/files?path=notes.txt&at=" + at); code != 400 {
			t.Errorf("at %s: %d", at, code)
		}
	}
	if code, text := v.get("/jobs/" + id + "/files?path=notes.txt&at=99"); code != 200 || !strings.Contains(text, "The file ends here") {
		t.Errorf("past the end: %d %s", code, text)
	}
	for _, ref := range []string{"none", "dev", "105"} { // a VM may have another's name or ID by now
		if code, _ := v.get("/jobs/" + ref + "/files"); code != 404 {
			t.Errorf("files of %s: %d", ref, code)
		}
		if code, _ := v.get("/jobs/" + ref + "/file?path=notes.txt"); code != 404 {
			t.Errorf("a file of %s: %d", ref, code)
		}
	}
}

// A directory may have any number of entries, with any names.
func TestFiles_HostileNames(t *testing.T) {
	e := withFiles()
	e.files = map[string]string{"many/": "", "odd/": ""}
	for i := range 1203 {
		e.files[fmt.Sprintf("many/%04d", i)] = ""
	}
	v := loggedIn(t, e)
	next, seen := "/jobs/"+id+"/files?path=many", 0
	for n := 0; next != "" && n < 10; n++ {
		_, text := v.get(next)
		seen += strings.Count(text, ">Download</a>")
		next = ""
		if m := regexp.MustCompile(`id="next-page" href="([^"]+)"`).FindStringSubmatch(text); m != nil {
			next = html.UnescapeString(m[1])
		}
	}
	if seen != 1203 {
		t.Errorf("%d of 1203 entries", seen)
	}

	names := []string{
		`<script>alert(1)`, `"onmouseover="alert(1)`, `javascript:alert(1)`, "a\nb\x1b]0;x\x07", "\u202egnp.exe", "..%2f..", "a&path=shadow", "# ?+%41", "\xff\xfe", "ü 漢.txt", ".envrc",
	}
	for _, name := range names {
		e.files["odd/"+name] = "content of " + name
	}
	e.files["odd/"+strings.Repeat("x", 5000)] = "too long"
	e.files["odd/a.sock"] = ""
	_, text := v.get("/jobs/" + id + "/files?path=odd")
	for _, bad := range []string{"<script>alert", `"onmouseover=`, "\x1b", "\x07", "\u202e", `href="javascript:`, strings.Repeat("x", 300)} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	// Each leads to its file and to no other.
	downloads := links(text, "/jobs/"+id+"/file?")
	if len(downloads) != len(names)+1 { // and the directory itself
		t.Errorf("%d downloads of %d files: %q", len(downloads), len(names), downloads)
	}
	got := map[string]bool{}
	for _, href := range downloads {
		resp, err := v.client.Get(v.server.URL + href)
		if err != nil {
			t.Fatal(err)
		}
		content := body(t, resp)
		resp.Body.Close()
		got[content] = true
		disposition := resp.Header.Get("Content-Disposition")
		if !strings.HasPrefix(disposition, "attachment; filename") || strings.ContainsAny(disposition, "\n\x1b/\x07") || strings.Contains(disposition, "=.envrc") || resp.Header.Get("Content-Type") != "application/octet-stream" || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %q", href, resp.Header)
		}
	}
	for _, name := range names {
		if !got["content of "+name] {
			t.Errorf("no link leads to %q", name)
		}
		if code, text := v.get("/jobs/" + id + "/files?path=" + url.QueryEscape("odd/"+name)); code != 200 || strings.Contains(text, "<script>alert") || strings.ContainsAny(text, "\x1b\u202e") {
			t.Errorf("the page of %q: %d %s", name, code, text)
		}
	}
	if _, text := v.get("/jobs/" + id + "/files?path=odd%2Fa.sock"); !strings.Contains(text, "a pipe, a socket or a device") || slices.ContainsFunc(e.asked(), func(c string) bool { return strings.Contains(c, "a.sock") }) {
		t.Errorf("%s", text)
	}
}

func TestFiles_ShowsTextAsItIsAndNothingElse(t *testing.T) {
	e := withFiles()
	v := loggedIn(t, e)
	for name, tt := range map[string]struct{ content, has, not string }{
		"markup":      {"</pre><script>alert(1)</script>", "&lt;/pre&gt;&lt;script&gt;alert(1)", "<script>alert"},
		"escapes":     {"a\x1b[31mred\x1b[0m\u202eb\r\n", "a\\x1b[31mred\\x1b[0m\\u202eb\n</pre>", "\x1b"},
		"NUL":         {"a\x00b", `id="no-text"`, "a\x00b"},
		"not UTF-8":   {"\xff\xfe\x00a", `id="no-text"`, `id="text"`},
		"one line":    {strings.Repeat("é", 200000), "é</pre>", "\uFFFD"},
		"empty":       {"", "The file is empty", `id="text"`},
		"first blank": {"\n\nx", "tabindex=\"0\">\n\n\nx</pre>", "no-text"},
	} {
		e.change(func() { e.files["f"] = tt.content })
		code, text := v.get("/jobs/" + id + "/files?path=f")
		if code != 200 || !strings.Contains(text, tt.has) || strings.Contains(text, tt.not) {
			t.Errorf("%s: %d %.3000s", name, code, text)
		}
	}
	e.change(func() { e.files["f"] = strings.Repeat("é", 200000) })
	if _, text := v.get("/jobs/" + id + "/files?path=f&at=3"); strings.Contains(text, "\uFFFD") || strings.Contains(text, "no-text") {
		t.Errorf("from within a character: %.2000s", text)
	}
}

func TestFiles_DownloadIsWholeOrFails(t *testing.T) {
	e := withFiles()
	v := loggedIn(t, e)
	large := strings.Repeat("\x00\xff<&>large", 500000)
	e.change(func() {
		e.files["/large"], e.files["/shrinks"], e.files["/breaks"] = large, large, large
		e.files["/proc/version"], e.files["/proc/endless"] = "Linux\n", strings.Repeat("x", 65<<20)
		e.files["/empty"], e.files["/broken/"] = "", ""
	})
	for _, tt := range []struct {
		path, want string
		whole      bool
	}{
		{"/large", large, true}, {"/empty", "", true}, {"/proc/version", "Linux\n", true},
		{"/shrinks", "", false}, {"/breaks", "", false}, {"/proc/endless", "", false}, {"/broken", "", false},
	} {
		resp, err := v.client.Get(v.server.URL + "/jobs/" + id + "/file?path=" + tt.path)
		var data []byte
		if err == nil {
			data, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if (err == nil) != tt.whole || tt.whole && string(data) != tt.want {
			t.Errorf("%s: %d bytes, %v", tt.path, len(data), err)
		}
	}
	resp, err := v.client.Get(v.server.URL + "/jobs/" + id + "/file?path=src")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if h, err := tar.NewReader(resp.Body).Next(); err != nil || h.Name != "./" || !strings.Contains(resp.Header.Get("Content-Disposition"), "src.tar") {
		t.Errorf("a directory: %+v, %v, %v", h, err, resp.Header)
	}
	for path, code := range map[string]int{"/none": 422, "": 200} {
		if got, _ := v.get("/jobs/" + id + "/file?path=" + path); got != code {
			t.Errorf("%q: %d", path, got)
		}
	}
}

func TestFiles_Upload(t *testing.T) {
	e := withFiles()
	v := loggedIn(t, e)
	send := func(path string, parts ...part) (answer, string) {
		return v.upload("/jobs/"+id+"/files?path="+url.QueryEscape(path), append([]part{{"form_token", v.formToken(), ""}}, parts...)...)
	}
	resp, text := send("/tmp\xff", part{"files", "a\x00\xff", "a b.bin"}, part{"files", "", "empty"})
	if e.files["/tmp\xff/a b.bin"] != "a\x00\xff" || !e.isFile("/tmp\xff/empty") {
		t.Errorf("%+v %s: %q", resp, text, slices.Collect(maps.Keys(e.files)))
	}
	if resp, text = send("src", part{"files", "x", "new.go"}); resp.StatusCode != 200 || resp.Path != "/jobs/"+id+"/files" || !strings.Contains(text, ">new.go</a>") {
		t.Errorf("%+v %s", resp, text)
	}
	// What cannot be written is said; the rest is.
	resp, text = send("", part{"files", strings.Repeat("x", job.MaxFileWrite+1), "large<b>"}, part{"files", "ok", "small"})
	if resp.StatusCode != 422 || !strings.Contains(text, "large&lt;b&gt;: is larger than 10.0 MiB; use linus vm cp") || e.files["small"] != "ok" || e.isFile("large<b>") {
		t.Errorf("%+v %s", resp, text)
	}
	if resp, text = send("/etc", part{"files", "x", "passwd"}); resp.StatusCode != 422 || !strings.Contains(text, "permission denied") || !strings.Contains(text, "os-release") {
		t.Errorf("%+v %s", resp, text)
	}
	if resp, text = send("src"); resp.StatusCode != 422 || !strings.Contains(text, "No file was chosen") {
		t.Errorf("%+v %s", resp, text)
	}
	if resp, _ = send("", part{"files", "x", ".."}); resp.StatusCode != 422 {
		t.Errorf("..: %+v", resp)
	}
	if resp, _ = v.upload("/jobs/dev/files?path=src", part{"form_token", v.formToken(), ""}, part{"files", "x", "by-name"}); resp.StatusCode != 404 || e.isFile("src/by-name") {
		t.Errorf("to a VM by its name: %+v", resp)
	}
	if resp, _ = v.upload("/jobs/"+id+"/files?path=src", part{"form_token", "wrong", ""}, part{"files", "x", "forged"}); resp.StatusCode != 403 || e.isFile("src/forged") {
		t.Errorf("without the form's token: %+v", resp)
	}
	e.fileErr = &job.HostError{Op: "write", Class: job.HostUnreachable, Text: "no route"}
	if resp, text = send("src", part{"files", "x", "y"}); resp.StatusCode != http.StatusBadGateway || !strings.Contains(text, "no route") {
		t.Errorf("%+v %s", resp, text)
	}
}

// What would replace a file is asked about first, with and without JavaScript.
func TestFiles_UploadAsksBeforeItReplaces(t *testing.T) {
	e := withFiles()
	v := loggedIn(t, e)
	send := func(parts ...part) (answer, string) {
		return v.upload("/jobs/"+id+"/files", append([]part{{"form_token", v.formToken(), ""}}, parts...)...)
	}
	e.change(func() { e.files["<b>\xff"], e.files["large"] = "old", "old" })
	large := strings.Repeat("x", 9<<20)
	resp, text := send(part{"files", "a\r\n\x00\xff", "<b>\xff"}, part{"files", "new", "fresh"}, part{"files", large, "large"})
	if resp.StatusCode != http.StatusConflict || !strings.Contains(text, `id="replace-now"`) || !strings.Contains(text, "large: that file exists") || strings.Contains(text, "<b>") {
		t.Fatalf("%+v %.3000s", resp, text)
	}
	if e.files["<b>\xff"] != "old" || e.files["large"] != "old" || e.files["fresh"] != "new" {
		t.Errorf("before the answer: %q", e.files["<b>\xff"])
	}
	// The question's form, as a browser sends it.
	again := []part{{"replace", "on", ""}}
	question := text[strings.Index(text, `id="replacing"`):]
	for _, m := range regexp.MustCompile(`name="(kept[^"]*)" value="([^"]*)"`).FindAllStringSubmatch(question, -1) {
		again = append(again, part{m[1], html.UnescapeString(m[2]), ""})
	}
	if resp, text = send(again...); resp.StatusCode != 200 || e.files["<b>\xff"] != "a\r\n\x00\xff" {
		t.Errorf("%+v %.3000s: %q", resp, text, e.files["<b>\xff"])
	}
	if resp, _ = send(part{"replace", "on", ""}, part{"files", large, "large"}); resp.StatusCode != 200 || e.files["large"] != large {
		t.Errorf("with the box ticked: %+v", resp)
	}
	// What a form claims to have kept is a file's name and content, like any other.
	name := base64.StdEncoding.EncodeToString([]byte("../x"))
	if resp, _ = send(part{"kept_name", name, ""}, part{"kept", "eA==", ""}); resp.StatusCode != 422 || e.isFile("../x") {
		t.Errorf("a path: %+v", resp)
	}
	if resp, _ = send(part{"kept_name", "%", ""}, part{"kept", "eA==", ""}); resp.StatusCode != 422 {
		t.Errorf("no base64: %+v", resp)
	}
}

func TestFiles_AreOfferedToThoseWhoMay(t *testing.T) {
	keys := &keyring{tokens: map[string]job.Principal{"linus_reader": {Name: "reader", Token: "r1", Role: job.RoleRead, Life: t.Context()}}}
	v := visitWith(t, web.Options{Engine: withFiles(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	v.do(http.MethodPost, "/login", url.Values{"token": {"linus_reader"}}.Encode(), nil)
	for _, path := range []string{"/vms/105", "/jobs/" + id} {
		if code, text := v.get(path); code != 200 || len(links(text, "/jobs/"+doneID+"/files"))+len(links(text, "/jobs/"+id+"/files")) > 0 {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if resp, _ := v.upload("/jobs/"+id+"/files", part{"form_token", v.formToken(), ""}, part{"files", "x", "y"}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("upload: %+v", resp)
	}
	// A job that has ended, and a VM that is off, have no files to reach.
	o := loggedIn(t, withFiles())
	for _, path := range []string{"/jobs/" + doneID, "/vms/fresh"} {
		if _, text := o.get(path); strings.Contains(text, `id="files"`) {
			t.Errorf("%s offers files: %s", path, text)
		}
	}
}

func TestBrowser_Files(t *testing.T) {
	ctx := browsertest.Start(t)
	e := withFiles()
	addr, end := serve(t, "127.0.0.1:0", e)
	defer end()
	browsertest.Do(t, ctx, chromedp.Navigate("http://"+addr+web.LoginPath(token)), chromedp.Navigate("http://"+addr+"/vms/105"), chromedp.Click(on("#files")))
	browsertest.Shows(t, ctx, "h1", "Files")
	browsertest.Do(t, ctx, chromedp.Click(chromedp.CSS(`td.main a[href$="path=src"]`)))
	browsertest.Shows(t, ctx, ".files", "main.go")
	browsertest.Read(t, ctx, chromedp.Evaluate[string](`{
		const files = new DataTransfer();
		files.items.add(new File(["one"], "dropped <b>.txt"));
		document.querySelector(".drop").dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
		document.querySelector("#files").files[0].name}`))
	browsertest.Do(t, ctx, chromedp.Click(on("#upload")))
	browsertest.Shows(t, ctx, ".files", "dropped <b>.txt")
	browsertest.Read(t, ctx, chromedp.Evaluate[string](`{
		const files = new DataTransfer();
		files.items.add(new File(["two"], "dropped <b>.txt"));
		document.querySelector("#files").files = files.files;
		document.querySelector("#files").files[0].name}`))
	browsertest.Do(t, ctx, chromedp.Click(on("#upload")), chromedp.Click(on("#replace-now")),
		chromedp.WaitNotPresent(on("#replacing"))) // which has the same list below it
	browsertest.Shows(t, ctx, ".files", "dropped <b>.txt")
	browsertest.Do(t, ctx, chromedp.Click(chromedp.CSS(`td.main a[href*="dropped"]`)))
	browsertest.Shows(t, ctx, "#text", "two")
}

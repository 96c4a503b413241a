package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorilla/mux"

	"linus/internal/intake"
	"linus/internal/job"
	"linus/internal/term"
)

// Bounds of the file pages, in bytes unless stated otherwise.
const (
	filesPage    = 500         // directory entries on a page
	textPage     = 256 << 10   // of a file that is shown
	downloadPart = 1 << 20     // read at a time
	maxUnsized   = 64 << 20    // of a file whose size is unknown, such as those in /proc
	filesTime    = time.Minute // limit for reading a directory or a piece of a file
)

type filesView struct {
	viewer

	ID       string // of the job
	VM       string // its name
	Path     string // as it is shown
	Crumbs   []filterLink
	Href     string // the address of the page
	Download string // address of the contents: a file, or a directory as a tar archive
	Dir      bool
	Problems []string // of an upload
	Kept     []upload // small uploads that would replace a file

	Rows     []fileRow // of a directory
	From, To int       // the first and last row, from 1
	Total    int
	Next     string // the address of the next page, or piece; empty: there is none

	File fileRow // only if this is not a directory
	Text textPiece
}

func (v filesView) title() string { return cmp.Or(v.Path, "files") + " · " + v.VM }

// UploadLimit returns the maximum size of an uploaded file, as text.
func (filesView) UploadLimit() string { return bytesText(job.MaxFileWrite) }

type fileRow struct {
	job.FileInfo

	Shown    string // its name
	Href     string // of its page; empty: there is none
	Download string // of its contents; empty: only regular files have one
}

// textPiece is a piece of a file, if it is text.
type textPiece struct {
	Is       bool
	Text     string
	From, To int64  // bytes
	Size     int64  // of the whole file; 0: unknown
	Last     string // the address of the last piece; empty: this is it
}

func filesPath(id, name string) string { return filesAt(id, "files", name) }

// filesAt returns the address of a page about a path, which may contain any bytes.
func filesAt(id, page, name string) string {
	return jobPath(id) + "/" + page + "?" + url.Values{"path": {name}}.Encode()
}

// inDir returns the path of a name in a directory. The empty directory is the user's home.
func inDir(dir, name string) string {
	if dir == "" || strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// shownName returns a name for display: shortened, and with every character visible.
func shownName(name string) string {
	if len(name) > job.MaxFileName {
		name = strings.ToValidUTF8(name[:job.MaxFileName], "") + "…"
	}
	return term.Name(name)
}

// fileCrumbs returns links to the directories above a path and to the path itself.
func fileCrumbs(id, name string) []filterLink {
	at, first := "", filterLink{Name: "Home", Href: filesPath(id, "")}
	if strings.HasPrefix(name, "/") {
		at, first = "/", filterLink{Name: "/", Href: filesPath(id, "/")}
	}
	crumbs := []filterLink{first}
	for part := range strings.SplitSeq(name, "/") {
		if part != "" {
			at = inDir(at, part)
			crumbs = append(crumbs, filterLink{Name: shownName(part), Href: filesPath(id, at)})
		}
	}
	crumbs[len(crumbs)-1].Current = true
	return crumbs
}

// newFileRow returns an entry of a directory. It has addresses only if its name is valid in a path.
func newFileRow(id, dir string, f job.FileInfo) fileRow {
	name := f.Path()
	row := fileRow{FileInfo: f, Shown: shownName(f.Name)}
	if name == "" || name == "." || name == ".." || len(name) > job.MaxFileName || strings.ContainsAny(name, "/\x00") {
		return row
	}
	at := inDir(dir, name)
	if f.Type != job.FileOther {
		row.Href = filesPath(id, at)
	}
	if f.Type == job.FileRegular {
		row.Download = filesAt(id, "file", at)
	}
	return row
}

func (p *pages) files(w http.ResponseWriter, r *http.Request) {
	p.showFiles(w, r, http.StatusOK, nil, nil)
}

// showFiles shows the directory or file at ?path=, with the problems of an upload and the uploaded
// files that would replace others: a page of a directory from entry ?at=, or a piece of a text from
// byte ?at=.
func (p *pages) showFiles(w http.ResponseWriter, r *http.Request, code int, problems []string, kept []upload) {
	ctx, cancel := context.WithTimeout(r.Context(), filesTime)
	defer cancel()
	id, name := mux.Vars(r)["id"], r.URL.Query().Get("path")
	at, err := number(r.URL.Query().Get("at"), 0)
	if err != nil || at < 0 {
		p.problem(w, r, http.StatusBadRequest, fmt.Sprintf("at: %q is not a whole number", r.URL.Query().Get("at")))
		return
	}
	v := filesView{
		viewer: p.viewer(r), ID: id, Path: term.Name(job.Bounded(name)), Problems: problems, Kept: kept,
		Href: filesPath(id, name), Download: filesAt(id, "file", name),
	}
	j, err := p.Engine.Job(ctx, id) // by job ID: another VM may have got the same name or VM ID meanwhile
	var page job.FilePage
	if err == nil {
		page, err = p.Engine.ListFiles(ctx, job.FileList{VM: id, Path: name, Offset: int(min(at, 1<<31)), Limit: filesPage})
	}
	if err == nil && page.Type == job.FileRegular {
		err = p.readText(ctx, &v, job.FileRange{VM: id, Path: name, Offset: at, Limit: textPage})
	}
	if err != nil {
		p.failed(w, r, err)
		return
	}
	if j.VM != nil {
		v.VM = j.VM.Name
	}
	v.Crumbs = fileCrumbs(id, name) // only now is the path known to be valid
	if v.Dir = page.Type == job.FileDirectory; v.Dir {
		for _, f := range page.Entries {
			v.Rows = append(v.Rows, newFileRow(id, name, f))
		}
		v.From, v.To, v.Total = int(at)+1, int(at)+len(v.Rows), page.Total
		if page.Next > 0 {
			v.Next = pieceAt(v.Href, int64(page.Next))
		}
	} else if len(page.Entries) > 0 {
		v.File = newFileRow(id, path.Dir(name), page.Entries[0])
	}
	p.render(w, r, code, "files", v)
}

func pieceAt(href string, at int64) string { return href + "&at=" + strconv.FormatInt(at, 10) }

// readText reads a piece of a file. The piece ends at the last line break if that is in its second
// half.
func (p *pages) readText(ctx context.Context, v *filesView, at job.FileRange) error {
	chunk, err := p.Engine.ReadFile(ctx, at)
	if err != nil {
		return err
	}
	data, from := chunk.Data, at.Offset
	for from > 0 && len(data) > 0 && !utf8.RuneStart(data[0]) && from < at.Offset+utf8.UTFMax {
		data, from = data[1:], from+1 // the rest of a character
	}
	if !chunk.End {
		data = data[:term.WholeRunes(data)]
		if end := bytes.LastIndexByte(data, '\n') + 1; end > len(data)/2 {
			data = data[:end]
		}
	}
	to := from + int64(len(data))
	v.Text = textPiece{Is: utf8.Valid(data) && bytes.IndexByte(data, 0) < 0, From: from, To: to, Size: chunk.Size}
	if !v.Text.Is {
		return nil
	}
	v.Text.Text = term.Visible(string(data))
	if !chunk.End && len(data) > 0 {
		v.Next = pieceAt(v.Href, to)
		if last := chunk.Size - textPage; last > to {
			v.Text.Last = pieceAt(v.Href, last)
		}
	}
	return nil
}

// download sends a regular file byte for byte, or a directory as a tar archive.
func (p *pages) download(w http.ResponseWriter, r *http.Request) {
	id, name := mux.Vars(r)["id"], r.URL.Query().Get("path")
	_, err := p.Engine.Job(r.Context(), id) // as in showFiles
	var page job.FilePage
	if err == nil {
		page, err = p.Engine.ListFiles(r.Context(), job.FileList{VM: id, Path: name, Limit: 1})
	}
	if err == nil && page.Type == job.FileDirectory {
		p.downloadTree(w, r, job.FileRef{VM: id, Path: name})
		return
	}
	at := job.FileRange{VM: id, Path: name, Limit: downloadPart}
	var chunk job.FileChunk
	if err == nil {
		chunk, err = p.Engine.ReadFile(r.Context(), at)
	}
	if err != nil {
		p.failed(w, r, err)
		return
	}
	// What is appended to the file meanwhile belongs to the next download.
	size, left := chunk.Size, cmp.Or(chunk.Size, maxUnsized)
	attachment(w, shownName(path.Base(name)))
	if size > 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if r.Method == http.MethodHead {
		return
	}
	for err == nil {
		var n int
		n, err = w.Write(chunk.Data[:min(int64(len(chunk.Data)), left)])
		if left -= int64(n); left == 0 || chunk.End || len(chunk.Data) == 0 {
			break
		}
		if err == nil {
			at.Offset = chunk.Next
			chunk, err = p.Engine.ReadFile(r.Context(), at)
		}
	}
	if whole := size > 0 && left == 0 || size == 0 && chunk.End; err != nil || !whole {
		panic(http.ErrAbortHandler) // a browser must not take a part for the whole
	}
}

func (p *pages) downloadTree(w http.ResponseWriter, r *http.Request, f job.FileRef) {
	base := path.Base(f.Path) + ".tar"
	if strings.Trim(f.Path, "/.") == "" {
		base = "files.tar"
	}
	if r.Method == http.MethodHead {
		attachment(w, shownName(base))
		return
	}
	archive, err := p.Engine.ReadTree(r.Context(), f)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	defer archive.Close() //nolint:errcheck // only read
	attachment(w, shownName(base))
	err = intake.Archive(w, archive)
	if err == nil {
		_, err = io.Copy(io.Discard, archive) // only the end of the archive proves that it is complete
	}
	if err != nil {
		p.Log.Debug("download was cut off", "job_id", f.VM, "err", err)
		panic(http.ErrAbortHandler)
	}
}

// upload writes files to the directory ?path=: those that were sent, and those that an earlier form
// kept. A file that cannot be written is reported and does not prevent the others from being
// written. The user is asked before a file is replaced.
func (p *pages) upload(w http.ResponseWriter, r *http.Request, uploads []upload) {
	ctx, cancel := context.WithTimeout(r.Context(), uploadTime)
	defer cancel()
	id, dir, replace := mux.Vars(r)["id"], r.URL.Query().Get("path"), r.PostForm.Get("replace") == "on"
	if _, err := p.Engine.Job(ctx, id); err != nil { // as in showFiles
		p.failed(w, r, err)
		return
	}
	var problems []string
	uploads = append(uploads, keptUploads(r.PostForm)...)
	if len(uploads) == 0 {
		problems = append(problems, "No file was chosen.")
	}
	var kept []upload
	left := maxKept
	for i, u := range uploads {
		err := p.uploadOne(ctx, id, dir, u, replace)
		var field *job.FieldError
		switch {
		case errors.As(err, &field) && field.Field == "new" && len(u.data) <= left:
			kept, left = append(kept, u), left-len(u.data)
		case errors.As(err, &field) && field.Field == "new":
			problems = append(problems, shownName(u.name)+": that file exists, and was left as it is. To replace it, choose it again and tick Replace.")
		case errors.As(err, &field):
			problems = append(problems, shownName(u.name)+": "+words.In(fieldText(field)))
		case err != nil && i == 0:
			p.failed(w, r, err)
			return
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s and the files after it were not uploaded: %s", shownName(u.name), words.In(err.Error())))
		}
		if err != nil && field == nil {
			break
		}
	}
	switch {
	case len(problems)+len(kept) == 0:
		http.Redirect(w, r, filesPath(id, dir), http.StatusSeeOther) //nolint:gosec // a path of this server
	case len(kept) > 0:
		p.showFiles(w, r, http.StatusConflict, problems, kept)
	default:
		p.showFiles(w, r, http.StatusUnprocessableEntity, problems, nil)
	}
}

func (p *pages) uploadOne(ctx context.Context, id, dir string, u upload, replace bool) error {
	switch {
	case u.name == "" || u.name == "." || u.name == ".." || strings.ContainsAny(u.name, "/\x00"):
		return &job.FieldError{Field: "path", Problem: "is not a file's name"}
	case len(u.data) > job.MaxFileWrite:
		return &job.FieldError{Field: "data", Problem: "is larger than " + bytesText(job.MaxFileWrite), Remedy: "use linus vm cp"}
	}
	_, err := p.Engine.WriteFile(ctx, job.FileWrite{VM: id, Path: inDir(dir, u.name), Data: u.data, New: !replace})
	return err
}

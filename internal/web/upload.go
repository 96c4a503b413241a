package web

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"linus/internal/job"
)

// Limits of a form with files. Its total size is limited by MaxBody.
const (
	maxFormFiles  = 200
	maxFormFields = 3000
)

type upload struct {
	name string // as the browser calls it, without directories
	data []byte
}

// Shown returns the file's name for people.
func (u upload) Shown() string { return shownName(u.name) }

// NameText and Text return its name and content for a form that is sent again, byte for byte.
func (u upload) NameText() string { return base64.StdEncoding.EncodeToString([]byte(u.name)) }
func (u upload) Text() string     { return base64.StdEncoding.EncodeToString(u.data) }

// keptUploads returns the files that the form has kept.
func keptUploads(form url.Values) []upload {
	var files []upload
	names, texts := form["kept_name"], form["kept"]
	for i := range min(len(names), len(texts)) {
		name, bad := base64.StdEncoding.DecodeString(names[i])
		data, err := base64.StdEncoding.DecodeString(texts[i])
		if bad == nil && err == nil { // encoded as the form does it
			files = append(files, upload{string(name), data})
		}
	}
	return files
}

// uploading is changing for forms with files. The body is not read if the user may not call verb.
func (p *pages) uploading(verb job.AnyVerb, next func(http.ResponseWriter, *http.Request, []upload)) http.Handler {
	return p.loggedIn(p.forThoseWhoMay(verb, p.sent(MaxBody, readParts, next)))
}

// readParts reads a form with files. Its other fields go into r.PostForm.
func readParts(r *http.Request) ([]upload, error) {
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, err
	}
	r.PostForm = url.Values{}
	var files []upload
	for count := 0; ; count++ {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(part)
		switch {
		case err != nil:
			return nil, err
		case count == maxFormFields:
			return nil, fmt.Errorf("it has more than %d fields", maxFormFields)
		case part.FormName() != "files":
			r.PostForm.Add(part.FormName(), string(data))
		case part.FileName() == "": // no file was chosen
		case len(files) == maxFormFiles:
			return nil, fmt.Errorf("it has more than %d files: pack them into an archive, and unpack that in the task", maxFormFiles)
		default:
			files = append(files, upload{part.FileName(), data})
		}
	}
}

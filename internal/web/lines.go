package web

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gorilla/mux"

	"linus/internal/job"
	"linus/internal/term"
)

// Bounds of a page of lines.
const (
	linesPage = 1000
	mostFound = 1000
	lineShown = 4 << 10 // bytes
)

// linesView is an output with line numbers: a page of it, or the matches of a search.
type linesView struct {
	job.Job

	Stream  string
	Text    string // the search text; empty: this is not a search
	From    int    // the first line of the page
	Lines   []numbered
	More    bool  // there are more lines, or more matches
	Dropped int64 // bytes that were not kept before some of the lines

	partial []byte // the beginning of the line being read
	n       int    // lines read so far
}

type numbered struct {
	N    int
	Text string
}

func (v linesView) title() string { return v.Stream + " · job " + shortID(v.ID) }

// at returns the address of the page of all lines that starts at line from.
func (v linesView) at(from int) string {
	return jobPath(v.ID) + "/lines?" + url.Values{"stream": {v.Stream}, "from": {strconv.Itoa(from)}}.Encode()
}

// At returns the address of a line.
func (v linesView) At(n int) string {
	return fmt.Sprintf("%s#L%d", v.at((n-1)/linesPage*linesPage+1), n)
}

// All returns the address of the first page. Before and After return "" if there is no such page.
func (v linesView) All() string { return v.at(1) }

func (v linesView) Before() string {
	if v.From == 1 {
		return ""
	}
	return v.at(max(1, v.From-linesPage))
}

func (v linesView) After() string {
	if !v.More || v.Text != "" {
		return ""
	}
	return v.at(v.From + linesPage)
}

// lines shows the lines of an output with their numbers. Each line has an address.
func (p *pages) lines(w http.ResponseWriter, r *http.Request) {
	get := r.URL.Query().Get
	v := linesView{Stream: job.Stdout, Text: get("text"), From: 1}
	if get("stream") == job.Stderr {
		v.Stream = job.Stderr
	}
	if n, err := strconv.Atoi(get("from")); err == nil && n > 0 && v.Text == "" {
		v.From = n
	}
	id := mux.Vars(r)["id"]
	var err error
	if v.Job, err = p.Engine.Job(r.Context(), id); err == nil {
		err = v.read(r.Context(), p.Engine)
	}
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.render(w, r, http.StatusOK, "lines", v)
}

// read reads the output from its beginning until v has all that the page shows.
func (v *linesView) read(ctx context.Context, e job.Engine) error {
	for offset, last := int64(0), false; !last && !v.More; {
		chunk, err := e.Output(ctx, v.ID, v.Stream, offset, maxChunk)
		if err != nil {
			return err
		}
		v.Dropped += chunk.Dropped
		last, offset = chunk.Complete || chunk.Next == offset, chunk.Next
		for line := range bytes.Lines(chunk.Data) {
			v.partial = append(v.partial, line[:min(len(line), max(0, lineShown-len(v.partial)))]...)
			if line[len(line)-1] == '\n' {
				v.take()
			}
		}
	}
	if len(v.partial) > 0 {
		v.take()
	}
	return nil
}

// take finishes the current line and adds it to the page if it belongs there.
func (v *linesView) take() {
	v.n++
	line := term.Text(strings.TrimRight(string(v.partial), "\r\n"))
	v.partial = v.partial[:0]
	most := linesPage
	if v.Text != "" {
		most = mostFound
	}
	switch {
	case v.n < v.From, v.Text != "" && !strings.Contains(strings.ToLower(line), strings.ToLower(v.Text)):
	case len(v.Lines) == most:
		v.More = true
	default:
		v.Lines = append(v.Lines, numbered{v.n, line})
	}
}

package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
	"linus/internal/junit"
	"linus/internal/term"
	"linus/internal/vm"
)

const (
	watchTime  = time.Second     // a job's page is refreshed at least this often
	eventsTime = 5 * time.Second // limit for reading a job's past events
	newest     = 200             // events a job's page shows; they are sent again with each new one
	eventsPage = 1000            // events on a separate page
)

type jobView struct {
	job.Job
	viewer

	Events  []job.Event // the newest
	Earlier int         // events before them, on separate pages
	Bars    []bar
	Total   time.Duration // of the bars
	Streams []streamView
	// Together reports whether both streams are shown as one.
	Together bool
	SSH      string // the command that logs in to the VM; empty if nobody can
	Rest     string // the manifest without its task, as JSON
}

func (v jobView) title() string { return string(v.Status) + " · job " + shortID(v.ID) }
func (v jobView) goesOn() bool  { return !v.Done() }

// Took returns how long the job took, or has taken so far.
func (v jobView) Took() time.Duration {
	if v.CompletedAt.IsZero() {
		return time.Since(v.CreatedAt)
	}
	return v.CompletedAt.Sub(v.CreatedAt)
}

// CanCancel reports whether there is something to cancel: the job, or the collection of its output
// and artifacts.
func (v jobView) CanCancel() bool {
	collects := v.Outcome != nil && v.Outcome.Reason != job.ReasonCancelled && !v.SkipCollect
	return v.Who.May(job.VerbCancel) && !v.Status.Terminal() && (v.Outcome == nil || collects)
}

// CanKill reports whether a task is running that could be killed.
func (v jobView) CanKill() bool { return v.Who.May(job.VerbKill) && v.takes() }

// CanRepeat reports whether a client may submit the job again.
func (v jobView) CanRepeat() bool {
	if v.Kind == job.KindMake {
		return v.Who.May(job.VerbCreateVM) && v.Manifest.Lifecycle != vm.Pooled
	}
	return v.Who.May(job.VerbSubmit)
}

// HasFiles reports whether the files of the job's VM can be accessed.
func (v jobView) HasFiles() bool {
	return v.Who.May(job.VerbListFiles) && v.VM != nil && v.VM.State == vm.Created && !v.VM.Unwanted && (v.Outcome == nil || v.VM.Job == v.ID && (v.Manifest.Lifecycle == vm.Persistent || v.VM.KeptFor != ""))
}

// Counted returns the number of events and how many of the shown ones are warnings, as text.
func (v jobView) Counted() string {
	text, warnings := strconv.Itoa(v.Earlier+len(v.Events)), 0
	for _, e := range v.Events {
		if e.Kind == job.EventWarning {
			warnings++
		}
	}
	switch warnings {
	case 0:
		return text
	case 1:
		return text + ", 1 warning"
	}
	return fmt.Sprintf("%s, %d warnings", text, warnings)
}

// Unlisted returns the number of skipped artifacts that are not listed.
func (v jobView) Unlisted() int { return v.ArtifactsSkippedCount - len(v.ArtifactsSkipped) }

// TakesInput reports whether the task's stdin is open.
func (v jobView) TakesInput() bool {
	return v.Who.May(job.VerbInput) && v.takes() && v.Manifest.Stdin == job.StdinOpen && !v.Stdin.Closed
}

func (v jobView) takes() bool { return v.Outcome == nil && v.Status == job.Running }

// Heading returns the task's title.
func (v jobView) Heading() string { return job.Title(v.Manifest.Task) }

// Fault returns what went wrong, or "" if the exit code already says so.
func (v jobView) Fault() string {
	o := v.Outcome
	if o == nil || o.ExitCode != nil && o.Error == fmt.Sprintf("exit status %d", *o.ExitCode) {
		return ""
	}
	return o.Error
}

// Ending reports whether the outcome is decided but the status is not final yet.
func (v jobView) Ending() bool { return v.Outcome != nil && !v.Status.Terminal() }

func (p *pages) jobView(r *http.Request, j job.Job, events []job.Event) jobView {
	earlier := max(0, len(events)-newest)
	v := jobView{Job: j, Events: events[earlier:], Earlier: earlier, viewer: p.viewer(r)}
	v.Bars, v.Total = timeline(spans(j, events, time.Now()))
	v.Rest = manifestText(j.Manifest)
	if j.VM != nil && j.VM.State == vm.Created && j.VM.IP != "" {
		v.SSH = loginCommand(j.VM.Name)
	}
	return v
}

// manifestText returns a manifest without its task, as indented JSON.
func manifestText(m job.Manifest) string {
	m.Task = ""
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(m) // strings and numbers: cannot fail
	return strings.Replace(b.String(), "  \"task\": \"\",\n", "", 1)
}

// streams returns the outputs of a job's task that the request asks for. A terminal has a single
// output, and a job that creates a VM has none.
func streams(r *http.Request, j job.Job) []string {
	switch {
	case j.Kind == job.KindMake:
		return nil
	case j.Manifest.TTY:
		return []string{job.Stdout}
	case r.URL.Query().Get("output") == together:
		return []string{together}
	case j.Status == job.Failed && j.Stderr.Total > 0: // stderr says why
		return []string{job.Stderr, job.Stdout}
	}
	return []string{job.Stdout, job.Stderr}
}

// watch is Engine.Watch for at most limit.
func (p *pages) watch(ctx context.Context, id string, after int64, limit time.Duration) ([]job.Event, job.Job, error) {
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	events, j, err := p.Engine.Watch(timed, id, after)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, job.Job{}, errNothingNew
	}
	return events, j, err
}

var errNothingNew = errors.New("nothing new in time")

func (p *pages) job(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	j, err := p.Engine.Job(r.Context(), id)
	var events []job.Event
	if err == nil {
		events, _, err = p.watch(r.Context(), id, 0, eventsTime)
	}
	if err != nil && !errors.Is(err, errNothingNew) {
		p.failed(w, r, err)
		return
	}
	v := p.jobView(r, j, events)
	names := streams(r, j)
	v.Streams, v.Together = p.firstOutput(r.Context(), id, names), slices.Contains(names, together)
	p.render(w, r, http.StatusOK, "job", v)
}

// eventsView is a page of a job's events, oldest first.
type eventsView struct {
	job.Job
	Events []job.Event
	Next   int64 // the number of the last one, if there are more; else 0
}

func (v eventsView) title() string { return "events · job " + shortID(v.ID) }

// events shows a job's events from the first, or from the one after ?after=.
func (p *pages) events(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0: from the first
	j, err := p.Engine.Job(r.Context(), id)
	v := eventsView{Job: j}
	if err == nil {
		v.Events, _, err = p.watch(r.Context(), id, max(0, after), eventsTime)
	}
	if err != nil && !errors.Is(err, errNothingNew) {
		p.failed(w, r, err)
		return
	}
	if len(v.Events) > eventsPage {
		v.Events = v.Events[:eventsPage]
		v.Next = last(v.Events)
	}
	p.render(w, r, http.StatusOK, "events", v)
}

// mostDiff limits how many bytes of a patch a page shows.
const mostDiff = 512 << 10

type diffView struct {
	job.Job
	Lines []diffLine
	More  bool // there is more than is shown
}

type diffLine struct{ Class, Text string }

func (v diffView) title() string { return "diff · job " + shortID(v.ID) }

func (p *pages) diff(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	j, err := p.Engine.Job(r.Context(), id)
	var patch io.ReadCloser
	if err == nil && !j.HasPatch() {
		err = fmt.Errorf("the job has no patch of a repository: %w", job.ErrNotFound)
	}
	if err == nil {
		patch, _, err = p.Engine.OpenArtifact(r.Context(), id, job.PatchArtifact)
	}
	if err != nil {
		p.failed(w, r, err)
		return
	}
	defer patch.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(patch, mostDiff+1))
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v := diffView{Job: j, More: len(data) > mostDiff}
	within := false // the patch; a summary precedes it
	for line := range strings.Lines(strings.ToValidUTF8(string(data[:min(len(data), mostDiff)]), "\uFFFD")) {
		class := ""
		switch {
		case strings.HasPrefix(line, "diff --git "):
			class, within = "file", true
		case !within:
		case strings.HasPrefix(line, "@@"):
			class = "hunk"
		case strings.HasPrefix(line, "+"):
			class = "added"
		case strings.HasPrefix(line, "-"):
			class = "removed"
		}
		v.Lines = append(v.Lines, diffLine{class, term.Text(strings.TrimSuffix(line, "\n"))})
	}
	p.render(w, r, http.StatusOK, "diff", v)
}

// mostFailed limits how many failed tests a page shows.
const mostFailed = 200

type reportView struct {
	job.Job
	junit.Report
	Left   []string // what was not read, and why
	Failed []failedTest
	More   int // failed tests that are not shown
}

type failedTest struct{ Suite, Name, Text string }

func (v reportView) title() string { return "tests · job " + shortID(v.ID) }

// tests shows the JUnit reports of a job, or of its children, merged into one. With ?as=xml the
// response is a file.
func (p *pages) tests(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	j, err := p.Engine.Job(r.Context(), id)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v := reportView{Job: j}
	v.Report, v.Left = junit.Collect(j.ArtifactPaths(), len(j.Children) > 0, func(path string) (io.ReadCloser, error) {
		file, _, err := p.Engine.OpenArtifact(r.Context(), id, path)
		return file, err
	})
	if r.URL.Query().Get("as") == "xml" {
		attachment(w, shortID(id)+"-tests.xml")
		_ = v.Write(w) // fails only if the client is gone
		return
	}
	for _, s := range v.Suites {
		for _, c := range s.Cases {
			said := c.Wrong()
			switch {
			case said == nil:
			case len(v.Failed) == mostFailed:
				v.More++
			default:
				v.Failed = append(v.Failed, failedTest{s.Name, strings.TrimPrefix(c.Class+" "+c.Name, " "), term.Text(strings.TrimSpace(said.Message + "\n" + said.Text))})
			}
		}
	}
	p.render(w, r, http.StatusOK, "tests", v)
}

// HasTests reports whether the job's artifacts may contain test reports.
func (v jobView) HasTests() bool {
	return v.Who.May(job.VerbOpenArtifact) && slices.ContainsFunc(v.ArtifactPaths(), func(path string) bool { return strings.HasSuffix(path, ".xml") })
}

// HasDiff reports whether there is a patch of the job's repository to show.
func (v jobView) HasDiff() bool {
	return v.Who.May(job.VerbOpenArtifact) && v.Status.Terminal() && v.HasPatch()
}

func (p *pages) firstOutput(ctx context.Context, id string, names []string) []streamView {
	ctx, cancel := context.WithTimeout(ctx, firstOutputTime)
	defer cancel()
	views := make([]streamView, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		o := newOutput(p.Engine, id, name)
		wg.Go(func() {
			o.read(ctx)
			views[i] = o.view(true)
		})
	}
	wg.Wait()
	return views
}

// jobParts are the parts of a job's page that are sent when they change.
var jobParts = []string{"summary", "actions", "children", "facts", "timeline", "input", "artifacts", "webhooks", "counted", "events"}

// jobLive streams a job's status and outputs until the job ends.
func (p *pages) jobLive(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	j, err := p.Engine.Job(r.Context(), id)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	var (
		s      = newStream(w)
		pen    = make(chan struct{}, 1) // holds a token while a goroutine writes to s
		wg     sync.WaitGroup
		events []job.Event
		over   = make(chan struct{}) // closed when nothing more will be written
	)
	s.begin()
	for _, name := range streams(r, j) {
		wg.Go(func() {
			err := p.followOutput(ctx, id, name, over, func(event, html string) error {
				pen <- struct{}{}
				defer func() { <-pen }()
				return s.event(event, html)
			})
			if err != nil {
				end()
			}
		})
	}
	for {
		more, j, err := p.watch(ctx, id, last(events), watchTime)
		if p.sessions.of(r) == "" {
			break // logged out in the meantime
		}
		if errors.Is(err, errNothingNew) {
			continue
		}
		if err != nil || ctx.Err() != nil {
			break
		}
		events = append(events, more...)
		v := p.jobView(r, j, events)
		pen <- struct{}{}
		err = p.sendJob(s, v)
		<-pen
		if err != nil {
			break
		}
		if j.Done() && len(more) == 0 {
			close(over)
			wg.Wait()
			if ctx.Err() == nil {
				_ = s.event("done", "") // fails only if the browser is gone
			}
			return
		}
	}
	end()
	wg.Wait()
}

func (p *pages) sendJob(s *stream, v jobView) error {
	for _, part := range jobParts {
		html, err := p.fragment("job", part, v)
		if err == nil {
			err = s.part(part, html)
		}
		if err != nil {
			return err
		}
	}
	return s.ping()
}

func last(events []job.Event) int64 {
	if len(events) == 0 {
		return 0
	}
	return events[len(events)-1].Seq
}

func (p *pages) cancel(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	p.acted(w, r, jobPath(id), p.Engine.Cancel(r.Context(), id))
}

func (p *pages) kill(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	killed, err := p.Engine.Kill(r.Context(), id, "")
	switch {
	case err != nil:
	case killed == job.KillNotFound:
		err = job.ErrNotFound
	case killed == job.AlreadyTerminated:
		err = job.ErrCompleted
	}
	p.acted(w, r, jobPath(id), err)
}

// input sends a line to the task's stdin, closes stdin, or sends what a terminal sends for Ctrl-C.
func (p *pages) input(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["id"]
	j, err := p.Engine.Job(r.Context(), id)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	newline := "\n"
	if j.Manifest.TTY {
		newline = "\r" // what the Enter key of a terminal sends
	}
	var data string
	closed := false
	switch r.PostForm.Get("do") {
	case "close":
		closed = true
	case "interrupt":
		data = "\x03"
	default:
		data = r.PostForm.Get("data") + newline
	}
	p.acted(w, r, jobPath(id), p.Engine.Input(r.Context(), id, []byte(data), closed))
}

// acted responds to a form with a redirect to an address, or with no content if a script sent it.
func (p *pages) acted(w http.ResponseWriter, r *http.Request, to string, err error) {
	switch {
	case err != nil:
		p.failed(w, r, err)
	case r.Header.Get("HX-Request") != "":
		w.WriteHeader(http.StatusNoContent)
	default:
		http.Redirect(w, r, to, http.StatusSeeOther)
	}
}

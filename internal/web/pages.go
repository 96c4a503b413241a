package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/gate"
	"linus/internal/job"
)

//go:embed templates static
var files embed.FS

// contentTypes are those of the static files, which the machine's own tables may lack.
var contentTypes = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}

// pages are the engine's pages for a browser. They can be read without JavaScript; with it they
// update themselves.
type pages struct {
	Options
	sessions sessions
	asking   gate.Counts // requests of each principal that are being served
	static   string      // hash of the static files: part of their address, so that browsers can cache them forever
	views    map[string]*template.Template
}

func newPages(o Options) *pages {
	ended, err := readLogouts(o.Logouts)
	if err != nil {
		o.Log.Error("all sessions have ended: everybody has to log in again", "err", err)
	}
	p := &pages{Options: o, sessions: newSessions(o, ended), static: staticHash(), views: map[string]*template.Template{}}
	functions := template.FuncMap{
		"age":         func(t time.Time) string { return age(time.Since(t)) },
		"took":        shortDuration,
		"title":       job.Title,
		"bytes":       bytesText,
		"short":       shortID,
		"stamp":       func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"iso":         func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"pathPart":    job.EscapePath,
		"savedOutput": func(id, name string) streamView { return streamView{ID: id, Name: name} },
		"vmVerb": func(v vmView, verb, label, hint string) map[string]any {
			return map[string]any{"VM": v, "Verb": verb, "Label": label, "Hint": hint}
		},
	}
	for _, name := range []string{"jobs", "job", "events", "diff", "tests", "lines", "terminal", "files", "vms", "vm", "confirm", "form", "list", "pools", "pool", "nodes", "tokens", "host", "help", "login", "welcome", "problem"} {
		p.views[name] = template.Must(template.New(name).Funcs(functions).
			ParseFS(files, "templates/layout.html", "templates/shared.html", "templates/fields.html", "templates/"+name+".html"))
	}
	return p
}

func (p *pages) routes(r *mux.Router) {
	get := func(path string, h http.Handler) { r.Handle(path, h).Methods(http.MethodGet, http.MethodHead) }
	post := func(path string, h http.Handler) { r.Handle(path, h).Methods(http.MethodPost) }
	part := func(path string, s section) {
		get(path, p.loggedIn(p.page(s)))
		get(path+"/live", p.loggedIn(p.live(s)))
	}
	to := func(target func(*http.Request) string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target(r), http.StatusSeeOther)
		})
	}
	get("/", to(func(*http.Request) string { return "/jobs" }))
	get("/static/{hash}/{file}", p.secured(p.staticFile))
	get("/login", p.secured(p.login))
	post("/login", p.secured(p.login))
	post("/logout", p.changing(p.logout))
	if p.Issuer != nil {
		r.Handle(beginPath, p.secured(p.beginSignIn)).Methods(http.MethodGet) // HEAD would use up what the browser needs
		r.Handle(ReturnPath, p.secured(p.endSignIn)).Methods(http.MethodGet)
	}

	get("/jobs", p.loggedIn(p.jobs))
	get("/jobs/live", p.loggedIn(p.live(section{"jobs", "list", listPause, func(r *http.Request) (any, error) { return p.jobsView(r) }})))
	get("/jobs/new", p.loggedIn(p.forThoseWhoMay(job.VerbSubmit, newJob.blank(p))))
	post("/jobs/new", p.uploading(job.VerbSubmit, newJob.send(p)))
	get("/jobs/{id}", p.loggedIn(p.job))
	get("/jobs/{id}/events", p.loggedIn(p.events))
	get("/jobs/{id}/lines", p.loggedIn(p.forThoseWhoMay(job.VerbOutput, p.lines)))
	get("/jobs/{id}/diff", p.loggedIn(p.forThoseWhoMay(job.VerbOpenArtifact, p.diff)))
	get("/jobs/{id}/tests", p.loggedIn(p.forThoseWhoMay(job.VerbOpenArtifact, p.tests)))
	get("/jobs/{id}/live", p.loggedIn(p.jobLive))
	get("/jobs/{id}/terminal", p.loggedIn(p.terminalPage))
	get("/jobs/{id}/files", p.loggedIn(p.forThoseWhoMay(job.VerbListFiles, p.files)))
	get("/jobs/{id}/file", p.loggedIn(p.forThoseWhoMay(job.VerbReadFile, p.download)))
	post("/jobs/{id}/files", p.uploading(job.VerbWriteFile, p.upload))
	post("/jobs/{id}/cancel", p.changing(p.cancel))
	post("/jobs/{id}/kill", p.changing(p.kill))
	post("/jobs/{id}/input", p.changing(p.input))
	// A login that interrupted a form leads here.
	get("/jobs/{id}/{verb:cancel|kill|input}", to(func(r *http.Request) string { return jobPath(mux.Vars(r)["id"]) }))

	part("/pools", section{"pools", "list", poolsPause, p.poolsView})
	get("/pools/new", p.loggedIn(p.forThoseWhoMay(job.VerbCreatePool, p.newPool)))
	post("/pools/new", p.uploading(job.VerbCreatePool, p.createPool))
	get("/pools/{pool}", p.loggedIn(p.pool))
	post("/pools/{pool}/resize", p.changing(p.resizePool))
	post("/pools/{pool}/remove", p.changing(acting(p, "pool", job.Engine.RemovePool)))
	get("/pools/{pool}/{verb:resize|remove}", to(func(r *http.Request) string { return poolPath(mux.Vars(r)["pool"]) }))

	part("/nodes", section{"nodes", "list", nodesPause, p.nodesView})
	post("/nodes/{node}/cordon", p.changing(acting(p, "node", job.Engine.CordonNode)))
	post("/nodes/{node}/uncordon", p.changing(acting(p, "node", job.Engine.UncordonNode)))
	get("/nodes/{node}/{verb:cordon|uncordon}", to(func(*http.Request) string { return "/nodes" }))

	get("/tokens", p.loggedIn(p.tokens))
	get("/tokens/new", p.loggedIn(p.forThoseWhoMay(job.VerbCreateToken, p.newToken)))
	post("/tokens/new", p.uploading(job.VerbCreateToken, p.createToken))
	post("/tokens/{token}/revoke", p.changing(acting(p, "token", job.Engine.RevokeToken)))
	get("/tokens/{token}/revoke", to(func(*http.Request) string { return "/tokens" }))

	part("/vms", section{"vms", "list", vmsPause, p.vmsView})
	get("/vms/new", p.loggedIn(p.forThoseWhoMay(job.VerbCreateVM, newVM.blank(p))))
	post("/vms/new", p.uploading(job.VerbCreateVM, newVM.send(p)))
	get("/vms/{ref}", p.loggedIn(p.page(section{"vm", "state", vmsPause, p.vmPage})))
	get("/vms/{ref}/live", p.loggedIn(p.live(section{"vm", "state", vmsPause, func(r *http.Request) (any, error) { return p.vmView(r) }})))
	get("/vms/{ref}/{verb:destroy|forget|revert|remove-snapshot}", p.loggedIn(p.confirm))
	for verb := range vmVerbs {
		post("/vms/{ref}/"+verb, p.changing(p.changeVM(verb)))
	}
	post("/vms/{ref}/terminal", p.changing(p.openTerminal))
	get("/vms/{ref}/{verb:terminal|start|stop|suspend|resume|snapshot|fork|expose|unexpose}", to(func(r *http.Request) string { return vmPath(mux.Vars(r)["ref"]) }))

	get("/templates", listing(p, job.VerbNodes, listView{
		Section: "templates", Heading: "Templates", About: "VMs are cloned from them.", Help: "templates", Command: "linus template build",
		Columns: []string{"Template", "Nodes"},
	}, templates, func(row []any) []any { return row }))
	get("/checkpoints", listing(p, job.VerbCheckpoints, listView{
		Section: "checkpoints", Heading: "Checkpoints", About: "The saved memory of booted VMs: a VM of the same template and size continues from it instead of booting.", Help: "templates", Command: "linus template checkpoint build",
		Columns: []string{"Checkpoint", "Template", "Size", "Node", "Status", "Memory", "Uses", "Last used"},
	}, job.Engine.Checkpoints, checkpointRow))
	get("/volumes", listing(p, job.VerbVolumes, listView{
		Section: "volumes", Heading: "Volumes", About: "Disks that outlive VMs.", Help: "manifest", Command: "linus volume create",
		Columns: []string{"Volume", "Size", "Node", "Status", "Used by", "Owner", "Created"},
	}, job.Engine.Volumes, volumeRow))
	get("/queues", listing(p, job.VerbDispatchers, listView{
		Section: "queues", Heading: "Queues", About: "Dispatchers serve external queues, with a VM for each piece of work.", Help: "dispatch", Command: "linus dispatch",
		Columns: []string{"Queue", "Dispatcher", "Status", "Sessions", "Waiting", "The oldest since", "Failed", "Owner", "Heard of"},
	}, job.Engine.Dispatchers, queueRow))
	get("/credentials", listing(p, job.VerbCredentials, listView{
		Section: "credentials", Heading: "Credentials", About: "Keys that jobs may use but never hold; their values are not shown.", Help: "credentials", Command: "linus credential add",
		Columns: []string{"Credential", "For", "As", "Variable", "Secret", "Created", "By"},
	}, job.Engine.Credentials, credentialRow))

	get("/schedules", listing(p, job.VerbSchedules, listView{
		Section: "schedules", Heading: "Schedules", About: "Schedules submit jobs at given times.", Help: "operate", Command: "linus schedule add",
		Columns: []string{"Schedule", "Times", "Zone", "State", "Next", "Last", "Its job", "Task", "Owner"},
	}, job.Engine.Schedules, scheduleRow))
	get("/usage", p.loggedIn(p.forThoseWhoMay(job.VerbUsage, p.usage)))
	get("/host", p.loggedIn(p.host))
	get("/host/live", p.loggedIn(p.forThoseWhoMay(job.VerbHostTests, p.live(section{"host", "tests", testsPause, p.testsView}))))
	post("/host/test", p.changing(func(w http.ResponseWriter, r *http.Request) {
		_, err := p.Engine.TestHost(r.Context(), job.HostTestSpec{Node: r.PostForm.Get("node"), Quick: r.PostForm.Get("quick") == "on"})
		p.acted(w, r, "/host", err)
	}))
	post("/host/test/{test}/cancel", p.changing(func(w http.ResponseWriter, r *http.Request) {
		_, err := p.Engine.CancelHostTest(r.Context(), mux.Vars(r)["test"])
		p.acted(w, r, "/host", err)
	}))
	for _, form := range []string{"/host/test", "/host/test/{test}/cancel"} {
		get(form, to(func(*http.Request) string { return "/host" }))
	}
	get("/help", p.loggedIn(p.help))
	get("/help/{plot:[a-z0-9-]+\\.svg}", p.loggedIn(p.plot))
	get("/help/{topic}", p.loggedIn(p.help))
}

// acting performs an action on the node, pool or token that the address names, and then shows the
// list of them.
func acting[T any](p *pages, kind string, do func(job.Engine, context.Context, string) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, err := do(p.Engine, r.Context(), mux.Vars(r)[kind])
		p.acted(w, r, "/"+kind+"s", err)
	}
}

func jobPath(id string) string { return "/jobs/" + url.PathEscape(id) }

// Icon returns the icon of linus, as SVG.
func Icon() []byte {
	data, _ := files.ReadFile("static/icon.svg") // embedded: cannot fail
	return data
}

func staticHash() string {
	sum := sha256.New()
	_ = fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error { // embedded: cannot fail
		if err == nil && !d.IsDir() {
			data, _ := files.ReadFile(name)
			_, _ = fmt.Fprintf(sum, "%s %d\n", name, len(data))
			_, _ = sum.Write(data)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

func (p *pages) staticFile(w http.ResponseWriter, r *http.Request) {
	vars := mux.Vars(r)
	data, err := files.ReadFile("static/" + vars["file"])
	packed := err != nil
	if packed {
		data, err = files.ReadFile("static/" + vars["file"] + ".gz")
	}
	if err != nil || vars["hash"] != p.static {
		fail(w, http.StatusNotFound, "Not found")
		return
	}
	if packed { // every browser unpacks it
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("Content-Type", contentTypes[path.Ext(vars["file"])])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, vars["file"], time.Time{}, bytes.NewReader(data))
}

// frame is what the layout shows around a page's own view.
type frame struct {
	viewer

	Title   string
	Section string   // current section of the navigation
	Static  string   // address of the static files
	Live    bool     // the page changes: without JavaScript it is reloaded
	Scripts []string // static files, besides those of every page
	Styles  []string
	View    any
}

// titled, live and loads are optional interfaces of views, for the frame.
type (
	titled interface{ title() string }
	live   interface{ goesOn() bool }
	loads  interface {
		scripts() []string
		styles() []string
	}
)

func (p *pages) frame(r *http.Request, name string, view any) frame {
	f := frame{viewer: p.viewer(r), Title: name, Section: name, Static: "/static/" + p.static, View: view}
	if v, ok := view.(titled); ok {
		f.Title = v.title()
	}
	if v, ok := view.(live); ok {
		f.Live = v.goesOn()
	}
	if v, ok := view.(loads); ok {
		f.Scripts, f.Styles = v.scripts(), v.styles()
	}
	switch name {
	case "job", "events", "diff", "tests", "lines", "terminal", "files":
		f.Section = "jobs"
	case "vm", "confirm":
		f.Section = "vms"
	case "pool":
		f.Section = "pools"
	case "list":
		f.Section = view.(listView).Section //nolint:forcetypeassert // no other view has this page
	case "form":
		f.Section = strings.TrimPrefix(view.(formView).Base, "/") //nolint:forcetypeassert // no other view has this page
	}
	return f
}

func (p *pages) render(w http.ResponseWriter, r *http.Request, code int, name string, view any) {
	var b bytes.Buffer
	if err := p.views[name].ExecuteTemplate(&b, "layout", p.frame(r, name, view)); err != nil {
		p.Log.Error("page failed", "page", name, "err", err)
		http.Error(w, "This page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // fails only if the browser is gone
}

func (p *pages) fragment(page, part string, view any) (string, error) {
	var b strings.Builder
	err := p.views[page].ExecuteTemplate(&b, part, view)
	return b.String(), err
}

type problemView struct {
	Code int
	Text string
}

// Title returns the text of the status code.
func (v problemView) Title() string { return http.StatusText(v.Code) }
func (v problemView) title() string { return v.Title() }

// problem sends a page that says what is wrong. A script gets only the text.
func (p *pages) problem(w http.ResponseWriter, r *http.Request, code int, text string) {
	if r.Header.Get("HX-Request") != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(text)) //nolint:gosec // as plain text, and never sniffed
		return
	}
	p.render(w, r, code, "problem", problemView{code, text})
}

func (p *pages) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser is gone
	}
	p.problem(w, r, p.codeOf(r, err), words.In(err.Error()))
}

func (p *pages) codeOf(r *http.Request, err error) int {
	var (
		field   *job.FieldError
		invalid *job.InvalidError
		host    *job.HostError
	)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, job.ErrCompleted):
		return http.StatusConflict
	case errors.Is(err, job.ErrNotAllowed):
		return http.StatusForbidden
	case errors.As(err, &field), errors.As(err, &invalid):
		return http.StatusUnprocessableEntity
	case job.IsEngineFault(err):
		return http.StatusServiceUnavailable
	case errors.As(err, &host), errors.Is(err, context.DeadlineExceeded):
		return http.StatusBadGateway
	}
	p.Log.Error("page failed", "path", r.URL.Path, "err", err)
	return http.StatusInternalServerError
}

// notFound responds to a browser's request for a missing page.
func (p *pages) notFound(w http.ResponseWriter, r *http.Request) {
	p.problem(w, r, http.StatusNotFound, "There is no such page.")
}

// isBrowser reports whether the client wants a page.
func isBrowser(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// shortID returns the end of a job's ID, as in its VM's name.
func shortID(id string) string { return id[max(0, len(id)-12):] }

func bytesText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

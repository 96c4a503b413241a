package web

import (
	"crypto/rand"
	"net/http"

	"github.com/gorilla/mux"

	"linus/internal/job"
)

// terminalView is a job's terminal. xterm creates style elements, so this page's policy, unlike all
// others, allows those with its nonce.
type terminalView struct {
	job.Job

	Nonce   string
	Written int64 // bytes of output that exist already
}

func (v terminalView) title() string     { return "terminal · job " + shortID(v.ID) }
func (v terminalView) scripts() []string { return []string{"xterm.js", "addon-fit.js", "terminal.js"} }
func (v terminalView) styles() []string  { return []string{"xterm.css"} }

// Heading returns the task's title.
func (v terminalView) Heading() string { return job.Title(v.Manifest.Task) }

func (p *pages) terminalPage(w http.ResponseWriter, r *http.Request) {
	j, err := p.Engine.Job(r.Context(), mux.Vars(r)["id"])
	switch {
	case err != nil:
		p.failed(w, r, err)
		return
	case !j.Manifest.TTY:
		http.Redirect(w, r, jobPath(j.ID), http.StatusSeeOther)
		return
	}
	v := terminalView{Job: j, Nonce: rand.Text(), Written: j.Stdout.Total}
	w.Header().Set("Content-Security-Policy", policy("style-src 'self' 'nonce-"+v.Nonce+"'"))
	p.render(w, r, http.StatusOK, "terminal", v)
}

// openTerminal runs a shell on a terminal in the form's VM, and shows it. The same form sent again
// leads to the same terminal.
func (p *pages) openTerminal(w http.ResponseWriter, r *http.Request) {
	info, err := p.vmOf(r)
	var j job.Job
	if err == nil {
		j, err = p.Engine.Submit(r.Context(), job.Submission{
			Client: "web", IdempotencyKey: r.PostForm.Get("key"),
			Manifest: job.Manifest{Task: "exec bash -l\n", AgentType: job.AgentScript, VM: info.Name, TTY: true, Stdin: job.StdinOpen, StatusMode: job.StatusStreaming},
		})
	}
	p.acted(w, r, jobPath(j.ID)+"/terminal", err)
}

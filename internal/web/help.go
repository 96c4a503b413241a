package web

import (
	"html/template"
	"net/http"

	"github.com/gorilla/mux"

	"linus/internal/manual"
)

type helpView struct {
	Topics []manual.Topic
	Topic  manual.Topic  // the one shown; zero on the list of all
	Text   template.HTML // of the topic
}

func (v helpView) title() string {
	if v.Topic.Title == "" {
		return "Help"
	}
	return v.Topic.Title
}

// help shows the built-in documents: the list, or one of them.
func (p *pages) help(w http.ResponseWriter, r *http.Request) {
	view := helpView{Topics: manual.Topics()}
	if name := mux.Vars(r)["topic"]; name != "" {
		topic, ok := manual.Find(name)
		if !ok {
			p.notFound(w, r)
			return
		}
		text, err := manual.HTML(topic, "/help/")
		if err != nil {
			p.failed(w, r, err)
			return
		}
		view.Topic, view.Text = topic, template.HTML(text) //nolint:gosec // compiled in, and without raw HTML
	}
	p.render(w, r, http.StatusOK, "help", view)
}

// plot returns a document's plot.
func (p *pages) plot(w http.ResponseWriter, r *http.Request) {
	svg, ok := manual.Plot(mux.Vars(r)["plot"])
	if !ok {
		p.notFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(svg) // fails only if the client is gone
}

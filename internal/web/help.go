package web

import (
	"html/template"
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"linus/internal/manual"
)

type helpView struct {
	Topics []manual.Topic
	Topic  manual.Topic  // the one shown; zero on the list of all
	Text   template.HTML // of the topic
	Query  string        // the search text
}

func (v helpView) title() string {
	if v.Topic.Title == "" {
		return "Help"
	}
	return v.Topic.Title
}

// help shows the built-in documents: the list, or one of them.
func (p *pages) help(w http.ResponseWriter, r *http.Request) {
	view := helpView{Topics: manual.Topics(), Query: strings.TrimSpace(r.URL.Query().Get("q"))}
	if view.Query != "" {
		view.Topics = about(view.Topics, view.Query)
	}
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

// about returns the topics that contain all words of a query. Matches in names and titles come
// first.
func about(topics []manual.Topic, query string) []manual.Topic {
	wanted := strings.Fields(strings.ToLower(query))
	has := func(text string) bool {
		text = strings.ToLower(text)
		return !slices.ContainsFunc(wanted, func(word string) bool { return !strings.Contains(text, word) })
	}
	var named, others []manual.Topic
	for _, t := range topics {
		switch head := t.Topic + " " + t.Title; {
		case has(head):
			named = append(named, t)
		case has(head + " " + t.Summary + " " + t.Text):
			others = append(others, t)
		}
	}
	return append(named, others...)
}

func (p *pages) plot(w http.ResponseWriter, r *http.Request) {
	svg, ok := manual.Plot(mux.Vars(r)["plot"])
	if !ok {
		p.notFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(svg) // fails only if the client is gone
}

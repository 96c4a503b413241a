package web

import (
	"net/http"
	"slices"

	"linus/internal/job"
)

// viewer is what views know about the user who looks at a page.
type viewer struct {
	FormToken string // empty: not logged in
	Who       job.Principal
}

// May reports whether the viewer may call a verb of the engine, which templates name.
func (v viewer) May(name string) bool {
	return slices.ContainsFunc(job.Verbs(), func(verb *job.Verb) bool { return verb.Name == name && v.Who.May(verb) })
}

// Home returns the path of the first section that the viewer may see.
func (v viewer) Home() string {
	switch {
	case v.Who.May(job.VerbList):
		return "/jobs"
	case v.Who.May(job.VerbVMs):
		return "/vms"
	case v.Who.May(job.VerbSubmit):
		return "/jobs/new"
	case v.Who.May(job.VerbCheckHost):
		return "/host"
	}
	return "/help"
}

// viewer returns the user of a request that loggedIn has let in.
func (p *pages) viewer(r *http.Request) viewer {
	who, ok := job.PrincipalFrom(r.Context())
	if !ok {
		return viewer{}
	}
	return viewer{FormToken: p.sessions.formToken(p.sessions.of(r)), Who: who}
}

// forThoseWhoMay passes requests of users who may call a verb of the engine to next.
func (p *pages) forThoseWhoMay(verb job.AnyVerb, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := p.viewer(r).Who.Refusal(verb); err != nil {
			p.failed(w, r, err)
			return
		}
		next(w, r)
	}
}

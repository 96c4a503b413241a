package web

import (
	"net/http"

	"linus/internal/job"
)

// viewer is who looks at a page: what views know of it.
type viewer struct {
	FormToken string // empty: not logged in
	Who       job.Principal
}

// MayRun reports whether the viewer may begin and change things.
func (v viewer) MayRun() bool { return v.Who.Role.Includes(job.RoleRun) }

// MayAdmin reports whether the viewer may do everything.
func (v viewer) MayAdmin() bool { return v.Who.Admin() }

// viewer returns who made a request that loggedIn has let in.
func (p *pages) viewer(r *http.Request) viewer {
	who, ok := job.PrincipalFrom(r.Context())
	if !ok {
		return viewer{}
	}
	return viewer{FormToken: p.sessions.formToken(p.sessions.of(r)), Who: who}
}

// forThoseWhoMay passes requests of those whose role includes a verb of the engine to next.
func (p *pages) forThoseWhoMay(verb string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := p.viewer(r).Who.Refusal(verb); err != nil {
			p.failed(w, r, err)
			return
		}
		next(w, r)
	}
}

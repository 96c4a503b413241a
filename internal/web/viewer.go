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

// May reports whether the viewer may call a verb of the engine.
func (v viewer) May(verb string) bool { return v.Who.May(verb) }

// MaySubmit reports whether the viewer may begin jobs with a task.
func (v viewer) MaySubmit() bool { return v.Who.Submits(job.KindTask) == nil }

// MayCreateVM reports whether the viewer may create VMs.
func (v viewer) MayCreateVM() bool { return v.Who.Submits(job.KindVM) == nil }

// Home is the first section that the viewer may see.
func (v viewer) Home() string {
	switch {
	case v.May("List"):
		return "/jobs"
	case v.May("VMs"):
		return "/vms"
	case v.MaySubmit():
		return "/jobs/new"
	case v.May("CheckHost"):
		return "/host"
	}
	return "/help"
}

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

// forThoseWhoMaySubmit passes requests of those who may submit this kind of job to next.
func (p *pages) forThoseWhoMaySubmit(kind job.Kind, next http.HandlerFunc) http.HandlerFunc {
	return p.unless(func(who job.Principal) error { return who.Submits(kind) }, next)
}

// forThoseWhoMay passes requests of those who may call a verb of the engine to next.
func (p *pages) forThoseWhoMay(verb string, next http.HandlerFunc) http.HandlerFunc {
	return p.unless(func(who job.Principal) error { return who.Refusal(verb) }, next)
}

// unless passes requests of those who are not refused to next.
func (p *pages) unless(refusal func(job.Principal) error, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := refusal(p.viewer(r).Who); err != nil {
			p.failed(w, r, err)
			return
		}
		next(w, r)
	}
}

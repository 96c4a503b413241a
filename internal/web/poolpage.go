package web

import (
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
)

func poolPath(name string) string { return "/pools/" + url.PathEscape(name) }

// poolView is a pool as its page shows it: what it is, and a form for its size.
type poolView struct {
	formView

	Pool poolRow
}

func (v poolView) title() string { return "Pool " + v.Pool.Name }

// Seconds returns a number of seconds as text.
func (v poolView) Seconds(n int) string { return shortDuration(time.Duration(n) * time.Second) }

func (p *pages) poolForm(r *http.Request) formView {
	return formView{
		Heading: "New pool", Crumb: "Pools", Base: "/pools", Action: "/pools/new", Button: "Create the pool",
		viewer: p.viewer(r), Errors: map[string][]string{},
	}
}

func newPoolDraft() poolDraft { return poolDraft{PoolSize: job.PoolSize{Warm: 1}} }

func (p *pages) newPool(w http.ResponseWriter, r *http.Request) {
	v := p.poolForm(r)
	v.show(poolGroups(), newPoolDraft(), nil)
	v.offer(p.offers(r))
	p.render(w, r, http.StatusOK, "form", v)
}

func (p *pages) createPool(w http.ResponseWriter, r *http.Request, _ []upload) {
	d := newPoolDraft()
	var err error
	if bad := typed(&d, poolGroups(), r.PostForm.Get); len(bad) > 0 {
		err = &job.InvalidError{Fields: bad}
	} else {
		_, err = p.Engine.CreatePool(r.Context(), job.Pool{Name: d.Name, VMTemplate: d.VMTemplate, OS: d.OS, Resources: d.Resources, Network: d.Network, PoolSize: d.PoolSize})
	}
	if err == nil {
		http.Redirect(w, r, "/pools", http.StatusSeeOther)
		return
	}
	v := p.poolForm(r)
	v.show(poolGroups(), d, r.PostForm.Get)
	v.offer(p.offers(r))
	v.blame(err)
	p.render(w, r, p.codeOf(r, err), "form", v)
}

// showPool shows a pool with the form for its size: as it is if value is nil, else
// as it was typed, with what is wrong.
func (p *pages) showPool(w http.ResponseWriter, r *http.Request, value values, wrong error) {
	info, err := p.Engine.Pool(r.Context(), mux.Vars(r)["pool"])
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v := poolView{formView: p.poolForm(r), Pool: poolRow{info}}
	v.show([]group{sizeGroup()}, info.PoolSize, value)
	code := http.StatusOK
	if wrong != nil {
		v.blame(wrong)
		code = p.codeOf(r, wrong)
	}
	p.render(w, r, code, "pool", v)
}

func (p *pages) pool(w http.ResponseWriter, r *http.Request) { p.showPool(w, r, nil, nil) }

func (p *pages) resizePool(w http.ResponseWriter, r *http.Request) {
	name := mux.Vars(r)["pool"]
	info, err := p.Engine.Pool(r.Context(), name)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	info.MaxAge = 0 // empty is the default
	if bad := typed(&info.PoolSize, []group{sizeGroup()}, r.PostForm.Get); len(bad) > 0 {
		err = &job.InvalidError{Fields: bad}
	} else {
		_, err = p.Engine.ResizePool(r.Context(), name, info.PoolSize)
	}
	if err != nil {
		p.showPool(w, r, r.PostForm.Get, err)
		return
	}
	http.Redirect(w, r, "/pools", http.StatusSeeOther)
}

func (p *pages) removePool(w http.ResponseWriter, r *http.Request) {
	if _, err := p.Engine.RemovePool(r.Context(), mux.Vars(r)["pool"]); err != nil {
		p.failed(w, r, err)
		return
	}
	http.Redirect(w, r, "/pools", http.StatusSeeOther)
}

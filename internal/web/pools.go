package web

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
	"linus/internal/vm"
)

// poolsPause is the time between two reads of the pools.
const poolsPause = 2 * time.Second

type poolsView struct{ Pools []poolRow }

func (poolsView) title() string { return "Pools" }
func (poolsView) goesOn() bool  { return true }

type poolRow struct{ job.PoolInfo }

// From returns the template or operating system of the pool's VMs.
func (p poolRow) From() string { return p.VMTemplate + p.OS }

// Ready returns how many members in a state there are and how many are wanted, as text.
func (p poolRow) Ready(state vm.MemberState, wanted int) string {
	return fmt.Sprintf("%d of %d", p.Count(state), wanted)
}

// Rate returns the share of jobs that got a member, as text.
func (p poolRow) Rate() string {
	rate, any := p.HitRate()
	if !any {
		return "no job yet"
	}
	return fmt.Sprintf("%.0f %% of %d jobs", 100*rate, p.Hits+p.Misses)
}

func (p *pages) poolsView(r *http.Request) (any, error) {
	infos, err := p.Engine.Pools(r.Context())
	v := poolsView{}
	for _, info := range infos {
		v.Pools = append(v.Pools, poolRow{info})
	}
	return v, err
}

func poolPath(name string) string { return "/pools/" + url.PathEscape(name) }

// poolView is a pool as its page shows it, with a form for its size.
type poolView struct {
	formView

	Pool poolRow
}

func (v poolView) title() string { return "Pool " + v.Pool.Name }

// Seconds formats a number of seconds.
func (v poolView) Seconds(n int) string { return shortDuration(time.Duration(n) * time.Second) }

var poolForm = form{poolGroups, "New pool", "Pools", "/pools", "Create the pool", false}

func newPoolDraft() poolDraft { return poolDraft{PoolSize: job.PoolSize{Warm: 1}} }

// poolDefaults returns a pool with every optional field at its default.
func poolDefaults(d job.Defaults) poolDraft {
	p := job.Pool{}.WithDefaults(d)
	return poolDraft{Manifest: job.Manifest{VMTemplate: p.VMTemplate, Resources: p.Resources, Network: p.Network}, PoolSize: p.PoolSize}
}

func (p *pages) newPool(w http.ResponseWriter, r *http.Request) {
	v := poolForm.view(p, r)
	v.show(newPoolDraft(), nil)
	v.offer(p.offers(r))
	v.defaults(poolDefaults(p.Defaults))
	p.render(w, r, http.StatusOK, "form", v)
}

func (p *pages) createPool(w http.ResponseWriter, r *http.Request, _ []upload) {
	d := newPoolDraft()
	err := faulty(typed(&d, poolGroups(), r.PostForm.Get))
	if err == nil {
		_, err = p.Engine.CreatePool(r.Context(), job.Pool{Name: d.Name, VMTemplate: d.VMTemplate, OS: d.OS, Resources: d.Resources, Network: d.Network, Labels: d.Labels, PoolSize: d.PoolSize})
	}
	if err == nil {
		http.Redirect(w, r, "/pools", http.StatusSeeOther)
		return
	}
	v := poolForm.view(p, r)
	v.show(d, r.PostForm.Get)
	v.offer(p.offers(r))
	v.defaults(poolDefaults(p.Defaults))
	p.refused(w, r, v, err)
}

// showPool shows a pool with the form for its size. If value is nil, the form has the current size;
// otherwise it has what was typed. wrong is the error to show, or nil.
func (p *pages) showPool(w http.ResponseWriter, r *http.Request, value values, wrong error) {
	info, err := p.Engine.Pool(r.Context(), mux.Vars(r)["pool"])
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v := poolView{formView: form{groups: poolSize}.view(p, r), Pool: poolRow{info}}
	v.show(info.PoolSize, value)
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
	info.MaxAge = 0 // an empty field leaves it as it is
	if err = faulty(typed(&info.PoolSize, poolSize(), r.PostForm.Get)); err == nil {
		_, err = p.Engine.ResizePool(r.Context(), name, info.Change())
	}
	if err != nil {
		p.showPool(w, r, r.PostForm.Get, err)
		return
	}
	http.Redirect(w, r, "/pools", http.StatusSeeOther)
}

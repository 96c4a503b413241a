package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// poolsPause is the time between two looks at the pools.
const poolsPause = 2 * time.Second

type poolsView struct{ Pools []poolRow }

func (poolsView) title() string { return "Pools" }
func (poolsView) goesOn() bool  { return true }

type poolRow struct{ job.PoolInfo }

// From is what its VMs are made from.
func (p poolRow) From() string { return p.VMTemplate + p.OS }

// Ready is how many members of a kind are ready, and how many are wanted.
func (p poolRow) Ready(state vm.MemberState, wanted int) string {
	return fmt.Sprintf("%d of %d", p.Count(state), wanted)
}

// Rate is the share of jobs that got a member, as text.
func (p poolRow) Rate() string {
	rate, any := p.HitRate()
	if !any {
		return "no job yet"
	}
	return fmt.Sprintf("%.0f %% of %d jobs", 100*rate, p.Hits+p.Misses)
}

func (p *pages) poolsView(ctx context.Context) (poolsView, error) {
	infos, err := p.Engine.Pools(ctx)
	v := poolsView{}
	for _, info := range infos {
		v.Pools = append(v.Pools, poolRow{info})
	}
	return v, err
}

func (p *pages) pools(w http.ResponseWriter, r *http.Request) {
	v, err := p.poolsView(r.Context())
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.render(w, r, http.StatusOK, "pools", v)
}

func (p *pages) poolsLive(w http.ResponseWriter, r *http.Request) {
	p.follow(w, r, poolsPause, func(ctx context.Context, s *stream) (bool, error) {
		v, err := p.poolsView(ctx)
		if err != nil {
			return false, err
		}
		html, err := p.fragment("pools", "list", v)
		if err != nil {
			return false, err
		}
		return true, s.part("list", html)
	})
}

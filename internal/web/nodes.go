package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"linus/internal/job"
)

// nodesPause is the time between two looks at the nodes.
const nodesPause = 10 * time.Second

type nodesView struct{ Nodes []nodeRow }

func (nodesView) title() string { return "Nodes" }
func (nodesView) goesOn() bool  { return true }

type nodeRow struct{ job.NodeInfo }

// Memory is the node's memory, with what of it is used, as text.
func (n nodeRow) Memory() string {
	if n.MemoryMB == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s, %s used", gibibytes(n.MemoryMB), gibibytes(n.UsedMB))
}

// Committed is the memory that VMs are configured with, as text.
func (n nodeRow) Committed() string { return gibibytes(n.CommittedMB) }

// Free is the memory for new VMs, as text.
func (n nodeRow) Free() string { return gibibytes(n.FreeMB) }

func gibibytes(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

func (p *pages) nodesView(ctx context.Context) (nodesView, error) {
	ctx, cancel := context.WithTimeout(ctx, vmsTime)
	defer cancel()
	infos, err := p.Engine.Nodes(ctx)
	v := nodesView{}
	for _, info := range infos {
		v.Nodes = append(v.Nodes, nodeRow{info})
	}
	return v, err
}

func (p *pages) nodes(w http.ResponseWriter, r *http.Request) {
	v, err := p.nodesView(r.Context())
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.render(w, r, http.StatusOK, "nodes", v)
}

func (p *pages) nodesLive(w http.ResponseWriter, r *http.Request) {
	p.follow(w, r, nodesPause, func(ctx context.Context, s *stream) (bool, error) {
		v, err := p.nodesView(ctx)
		if err != nil {
			return false, err
		}
		html, err := p.fragment("nodes", "list", v)
		if err != nil {
			return false, err
		}
		return true, s.part("list", html)
	})
}

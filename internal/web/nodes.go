package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"linus/internal/job"
)

const nodesPause = 10 * time.Second

type nodesView struct {
	viewer

	Nodes   []nodeRow
	Engines []engineRow
}

func (nodesView) title() string { return "Nodes" }
func (nodesView) goesOn() bool  { return true }

type nodeRow struct{ job.NodeInfo }

// Memory returns the node's memory and how much of it is used, as text.
func (n nodeRow) Memory() string {
	if n.MemoryMB == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s, %s used", gibibytes(n.MemoryMB), gibibytes(n.UsedMB))
}

// Committed returns the memory that VMs are configured with, as text.
func (n nodeRow) Committed() string { return gibibytes(n.CommittedMB) }

// Free returns the memory for new VMs, as text.
func (n nodeRow) Free() string { return gibibytes(n.FreeMB) }

func gibibytes(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

type engineRow struct{ job.EngineInfo }

// LeaseText returns how long the engine's lease lasts, as text.
func (e engineRow) LeaseText() string {
	switch {
	case e.ID == "":
		return "none needed"
	case e.Lease <= 0:
		return "ended " + age(-e.Lease) + " ago"
	}
	return age(e.Lease) + " left"
}

// Dead reports whether the engine's lease has expired, so that other engines consider it dead.
func (e engineRow) Dead() bool { return e.ID != "" && e.Lease <= 0 }

func (p *pages) nodesView(r *http.Request) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
	defer cancel()
	infos, err := p.Engine.Nodes(ctx)
	v := nodesView{viewer: p.viewer(r)}
	for _, info := range infos {
		v.Nodes = append(v.Nodes, nodeRow{info})
	}
	if err != nil {
		return v, err
	}
	engines, err := p.Engine.Engines(ctx)
	for _, info := range engines {
		v.Engines = append(v.Engines, engineRow{info})
	}
	return v, err
}

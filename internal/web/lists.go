package web

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// listView is a list of things that the command line creates and removes.
type listView struct {
	viewer

	Section string // the last part of its address, too
	Heading string
	About   string // what the listed things are
	Help    string // the document about them
	Command string // the command that creates one
	Columns []string
	Links   []link  // to similar lists
	Rows    [][]any // one cell per column; times are time.Time
}

type link struct{ To, Text string }

func (v listView) title() string { return v.Heading }

// IsTime reports whether a cell is a time.
func (listView) IsTime(cell any) bool {
	_, ok := cell.(time.Time)
	return ok
}

// listing returns a page with one row for each item that all returns, for users who may call the
// verb.
func listing[T any](p *pages, verb job.AnyVerb, view listView, all func(job.Engine, context.Context) ([]T, error), row func(T) []any) http.Handler {
	return p.loggedIn(p.forThoseWhoMay(verb, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
		defer cancel()
		rows, err := all(p.Engine, ctx)
		if err != nil {
			p.failed(w, r, err)
			return
		}
		v := view
		for _, one := range rows {
			v.Rows = append(v.Rows, row(one))
		}
		v.viewer = p.viewer(r)
		p.render(w, r, http.StatusOK, "list", v)
	}))
}

func sizeText(r vm.Resources) string {
	return fmt.Sprintf("%d CPU, %s, %s disk", r.CPU, r.Memory, r.Disk)
}

// templates returns one row per template, with the nodes that have it.
func templates(e job.Engine, ctx context.Context) (rows [][]any, err error) {
	nodes, err := e.Nodes(ctx)
	on := map[string][]string{}
	for _, n := range nodes {
		for _, t := range n.Templates {
			on[t] = append(on[t], n.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		rows = append(rows, []any{name, strings.Join(on[name], ", ")})
	}
	return rows, err
}

func checkpointRow(c job.CheckpointInfo) []any {
	memory := ""
	if c.Bytes > 0 {
		memory = bytesText(c.Bytes)
	}
	return []any{c.Name, c.Template, sizeText(c.Resources), c.Node, strings.TrimSuffix(string(c.Status)+": "+c.Text, ": "), memory, c.Uses, c.UsedAt}
}

func volumeRow(v job.VolumeInfo) []any {
	var uses []string
	for _, u := range v.Uses {
		uses = append(uses, fmt.Sprintf("VM %d at %s (%s)", u.VMID, u.Path, u.Mode()))
	}
	size := ""
	if v.SizeGB > 0 {
		size = fmt.Sprintf("%d GB", v.SizeGB)
	}
	return []any{v.Name, size, v.Node, v.Status, strings.Join(uses, ", "), cmp.Or(v.Principal, "operator"), v.CreatedAt}
}

func scheduleRow(s job.Schedule) []any {
	var last job.Run
	if len(s.Runs) > 0 {
		last = s.Runs[0]
	}
	return []any{s.Name, s.Cron, s.Timezone, strings.TrimSuffix(s.State()+": "+s.Problem, ": "), s.NextAt, last.At, cmp.Or(last.Job, last.Why), job.Title(s.Manifest.Task), cmp.Or(s.Principal, job.OperatorName)}
}

func credentialRow(c job.Credential) []any {
	return []any{c.Name, c.Host + c.Path, cmp.Or(c.Header, "SSH"), c.Env, c.Secret, c.CreatedAt, c.CreatedBy}
}

func queueRow(d job.Dispatcher) []any {
	status := strings.TrimSuffix(d.Status()+": "+d.Problem, ": ")
	return []any{d.Queue, d.Name, status, fmt.Sprintf("%d of %d", d.Sessions, d.Places), d.Waiting, d.Oldest, d.FailedText(), cmp.Or(d.Principal, "operator"), d.HeardAt}
}

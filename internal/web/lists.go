package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// listView is a list of what the command line makes and removes.
type listView struct {
	viewer

	Section string // its address, too
	Heading string
	About   string // what they are
	Help    string // the document about them
	Command string // that makes one
	Columns []string
	Links   []link  // to others like it
	Rows    [][]any // a cell of each column; times as such
}

// link is an address and what is there.
type link struct{ To, Text string }

func (v listView) title() string { return v.Heading }

// IsTime reports whether a cell is a time.
func (listView) IsTime(cell any) bool {
	_, ok := cell.(time.Time)
	return ok
}

// listing is a page of a list, for those who may call a verb of the engine, whose answer has the
// rows.
func (p *pages) listing(verb job.AnyVerb, view listView, rows func(context.Context) ([][]any, error)) http.Handler {
	return p.loggedIn(p.forThoseWhoMay(verb, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
		defer cancel()
		v, err := view, error(nil)
		if v.Rows, err = rows(ctx); err != nil {
			p.failed(w, r, err)
			return
		}
		v.viewer = p.viewer(r)
		p.render(w, r, http.StatusOK, "list", v)
	}))
}

func sizeText(r vm.Resources) string {
	return fmt.Sprintf("%d CPU, %s, %s disk", r.CPU, r.Memory, r.Disk)
}

// templates returns each template, with the nodes that have it.
func (p *pages) templates(ctx context.Context) (rows [][]any, err error) {
	nodes, err := p.Engine.Nodes(ctx)
	on := map[string][]string{}
	for _, n := range nodes {
		for _, t := range n.Templates {
			on[t] = append(on[t], n.Name)
		}
	}
	for name, nodes := range on {
		rows = append(rows, []any{name, strings.Join(nodes, ", ")})
	}
	slices.SortFunc(rows, func(a, b []any) int { return cmp.Compare(fmt.Sprint(a[0]), fmt.Sprint(b[0])) })
	return rows, err
}

func (p *pages) checkpoints(ctx context.Context) (rows [][]any, err error) {
	all, err := p.Engine.Checkpoints(ctx)
	for _, c := range all {
		memory := ""
		if c.Bytes > 0 {
			memory = bytesText(c.Bytes)
		}
		rows = append(rows, []any{c.Name, c.Template, sizeText(c.Resources), c.Node, strings.TrimSuffix(string(c.Status)+": "+c.Text, ": "), memory, c.Uses, c.UsedAt})
	}
	return rows, err
}

func (p *pages) volumes(ctx context.Context) (rows [][]any, err error) {
	all, err := p.Engine.Volumes(ctx)
	for _, v := range all {
		var uses []string
		for _, u := range v.Uses {
			uses = append(uses, fmt.Sprintf("VM %d at %s (%s)", u.VMID, u.Path, u.Mode()))
		}
		size := ""
		if v.SizeGB > 0 {
			size = fmt.Sprintf("%d GB", v.SizeGB)
		}
		rows = append(rows, []any{v.Name, size, v.Node, v.Status, strings.Join(uses, ", "), cmp.Or(v.Principal, "operator"), v.CreatedAt})
	}
	return rows, err
}

func (p *pages) schedules(ctx context.Context) (rows [][]any, err error) {
	all, err := p.Engine.Schedules(ctx)
	for _, s := range all {
		var last job.Run
		if len(s.Runs) > 0 {
			last = s.Runs[0]
		}
		rows = append(rows, []any{s.Name, s.Cron, s.Timezone, strings.TrimSuffix(s.State()+": "+s.Problem, ": "), s.NextAt, last.At, cmp.Or(last.Job, last.Why), job.Title(s.Manifest.Task), cmp.Or(s.Principal, job.OperatorName)})
	}
	return rows, err
}

func (p *pages) credentials(ctx context.Context) (rows [][]any, err error) {
	all, err := p.Engine.Credentials(ctx)
	for _, c := range all {
		rows = append(rows, []any{c.Name, c.Host + c.Path, cmp.Or(c.Header, "SSH"), c.Env, c.Secret, c.CreatedAt, c.CreatedBy})
	}
	return rows, err
}

func (p *pages) queues(ctx context.Context) (rows [][]any, err error) {
	all, err := p.Engine.Dispatchers(ctx)
	for _, d := range all {
		status := d.Status()
		if d.Problem != "" {
			status += ": " + d.Problem
		}
		rows = append(rows, []any{d.Queue, d.Name, status, fmt.Sprintf("%d of %d", d.Sessions, d.Places), d.Waiting, d.Oldest, d.FailedText(), cmp.Or(d.Principal, "operator"), d.HeardAt})
	}
	return rows, err
}

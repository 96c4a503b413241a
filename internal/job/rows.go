package job

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// Query says which rows of a list to return, and in which order.
type Query struct {
	Status    string    `json:"status,omitempty"`    // only rows with this status
	Text      string    `json:"text,omitempty"`      // only rows with this in their name or ID; at most MaxSearch characters
	Node      string    `json:"node,omitempty"`      // only rows on this node
	Principal string    `json:"principal,omitempty"` // only rows of this principal; operator is whoever runs the engine
	Label     []string  `json:"label,omitempty"`     // only rows that have all of these labels, each as key=value
	Since     time.Time `json:"since,omitzero"`      // created at this time or later
	Before    time.Time `json:"before,omitzero"`     // created before this time
	Sort      string    `json:"sort,omitempty"`      // the field to sort by; with a leading - in reverse
	Limit     int       `json:"limit,omitempty"`     // 1 to 200 rows; 0: all
	Cursor    string    `json:"cursor,omitempty"`    // next_cursor of the previous page; empty: the first page
}

// Rows is a page of a list that was read completely.
type Rows struct {
	Items any
	Next  string // the cursor of the next page; empty on the last page
}

// Cells are the values by which a row is found and sorted, by the public names of its fields: texts,
// numbers, times and labels. A zero time means never.
type Cells map[string]any

// State is the cell of one or more statuses.
type State struct {
	Is    []string
	Known []string // all possible values
}

// Row is a row of a list whose method does no paging itself.
type Row interface{ Cells() Cells }

// Listing is what a query may ask of a list.
type Listing struct {
	Params   []string // the fields of a Query
	Statuses []string
	Sorts    []string // the fields to sort by
}

// searchedCells are the cells that Query.Text is searched in.
var searchedCells = []string{"id", "vm_id", "name", "host"}

// ListingOf returns what a query may ask of a list of rows.
func ListingOf[T Row]() Listing {
	var none T
	return listingOf(none.Cells())
}

func listingOf(cells Cells) Listing {
	var l Listing
	for _, name := range slices.Sorted(maps.Keys(cells)) {
		if name == "labels" {
			l.Params = append(l.Params, "label")
			continue
		}
		l.Sorts = append(l.Sorts, name)
		switch value := cells[name].(type) {
		case State:
			l.Statuses, l.Params = value.Known, append(l.Params, "status")
		case string:
			if name == "node" || name == "principal" {
				l.Params = append(l.Params, name)
			}
		case time.Time:
			if name == "created_at" {
				l.Params = append(l.Params, "since", "before")
			}
		}
	}
	l.Params = append(l.Params, "text", "sort", "limit", "cursor")
	return l
}

// ListingOfJobs returns what a query may ask of the list of jobs, which does its own paging.
func ListingOfJobs() Listing {
	return Listing{Params: []string{"status", "principal", "since", "before", "label", "text", "sort"}, Statuses: spec.Words(Statuses), Sorts: []string{"created_at"}}
}

// Check returns a *FieldError for a query that the list cannot answer.
func (l Listing) Check(q Query) error {
	if n := utf8.RuneCountInString(q.Text); n > MaxSearch {
		return field("text", fmt.Sprintf("give at most %d", MaxSearch), "is %d characters", n)
	}
	if q.Status != "" && !slices.Contains(l.Statuses, q.Status) {
		return field("status", "use one of: "+strings.Join(l.Statuses, ", "), "%.80q is unknown", q.Status)
	}
	if by := strings.TrimPrefix(q.Sort, "-"); q.Sort != "" && !slices.Contains(l.Sorts, by) {
		return field("sort", "use one of: "+strings.Join(l.Sorts, ", ")+"; with - in front, in reverse order", "%.80q is not a field to sort by", q.Sort)
	}
	return CheckLabels(q.Label)
}

// Select returns the rows that a query asks for, in its order.
func Select[T Row](all []T, q Query) ([]T, error) {
	if err := ListingOf[T]().Check(q); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(row T) bool { return !q.wants(row.Cells()) })
	if by, down := strings.CutPrefix(q.Sort, "-"); by != "" {
		sort.SliceStable(all, func(i, j int) bool { // compiled once, unlike those of slices, which are compiled for each type of row
			if down {
				i, j = j, i
			}
			return compareCells(all[i].Cells()[by], all[j].Cells()[by]) < 0
		})
	}
	return all, nil
}

// page returns the requested page of what Select returned.
func page[T Row](all []T, q Query) (Rows, error) {
	from, to, next, err := span(len(all), func(i int) Cells { return all[i].Cells() }, q)
	return Rows{all[from:to], next}, err
}

// span returns which of n rows are on the requested page, and the cursor of the next page. A cursor names the
// last row of the previous page, and the number of rows up to it. If that row is gone, the number counts.
func span(n int, at func(int) Cells, q Query) (from, to int, next string, err error) {
	if err := Within("limit", int64(q.Limit), 0, 200); err != nil {
		return 0, 0, "", err
	}
	key := func(i int) string {
		cells := at(i)
		if id, ok := cells["id"]; ok {
			return fmt.Sprint(id)
		}
		return fmt.Sprint(cells["name"])
	}
	if q.Cursor != "" {
		text, err := base64.RawURLEncoding.DecodeString(q.Cursor)
		number, last, cut := strings.Cut(string(text), ":")
		if from, _ = strconv.Atoi(number); err != nil || !cut || from < 1 {
			return 0, 0, "", field("cursor", "give next_cursor of the previous page", "%.80q is not a cursor of this list", q.Cursor)
		}
		for i := range n {
			if key(i) == last {
				from = i + 1
				break
			}
		}
	}
	from = min(from, n)
	if q.Limit == 0 || n-from <= q.Limit {
		return from, n, "", nil
	}
	to = from + q.Limit
	return from, to, base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d:%s", to, key(to-1))), nil
}

func (q Query) wants(c Cells) bool {
	text := strings.ToLower(q.Text)
	status, _ := c["status"].(State)
	created, _ := c["created_at"].(time.Time)
	labels, _ := c["labels"].(map[string]string)
	return (q.Status == "" || slices.Contains(status.Is, q.Status)) &&
		(q.Node == "" || c["node"] == q.Node) && (q.Principal == "" || c["principal"] == q.Principal) &&
		hasLabels(labels, q.Label) && !created.Before(q.Since) && (q.Before.IsZero() || created.Before(q.Before)) &&
		slices.ContainsFunc(searchedCells, func(name string) bool {
			value, has := c[name]
			return has && strings.Contains(strings.ToLower(fmt.Sprint(value)), text)
		})
}

func compareCells(a, b any) int {
	switch a := a.(type) {
	case int:
		return cmp.Compare(a, b.(int))
	case string:
		return cmp.Compare(a, b.(string))
	case State:
		return slices.Compare(a.Is, b.(State).Is)
	case time.Time:
		b := b.(time.Time)
		if a.IsZero() != b.IsZero() { // never sorts after all times
			a, b = b, a
		}
		return a.Compare(b)
	}
	return 0
}

// Cells returns the VM's cells.
func (v VMInfo) Cells() Cells {
	return Cells{
		"id": v.Job, "vm_id": v.ID, "name": v.Name, "status": State{[]string{string(v.Status)}, spec.Words(vm.Statuses)}, "node": v.Node,
		"principal": cmp.Or(v.Principal, OperatorName), "created_at": v.CreatedAt, "expires_at": v.ExpiresAt, "labels": v.Labels,
	}
}

// Cells returns the pool's cells. The first word of its state is its status.
func (p PoolInfo) Cells() Cells {
	word, _, _ := strings.Cut(p.State, " ")
	return Cells{"name": p.Name, "status": State{[]string{strings.TrimSuffix(word, ":")}, PoolStatuses}, "created_at": p.CreatedAt, "labels": p.Labels}
}

// Cells returns the checkpoint's cells.
func (c CheckpointInfo) Cells() Cells {
	return Cells{
		"id": c.ID, "vm_id": c.VMID, "name": c.Name, "status": State{[]string{string(c.Status)}, spec.Words(CheckpointStatuses)}, "node": c.Node, "template": c.Template,
		"memory_bytes": int(c.Bytes), "uses": int(c.Uses), "created_at": c.CreatedAt, "used_at": c.UsedAt,
	}
}

// Cells returns the token's cells.
func (t Token) Cells() Cells {
	status := "valid"
	if t.Expired(time.Now()) {
		status = "expired"
	}
	return Cells{
		"id": t.ID, "name": t.Name, "status": State{[]string{status}, []string{"valid", "expired"}}, "role": string(t.Role),
		"created_at": t.CreatedAt, "expires_at": t.ExpiresAt,
	}
}

// Cells returns the node's cells. It may be cordoned in addition to its status.
func (n NodeInfo) Cells() Cells {
	is := []string{string(n.Status)}
	if n.Cordoned {
		is = append(is, cordoned)
	}
	return Cells{
		"name": n.Name, "status": State{is, append(spec.Words(NodeStatuses), cordoned)},
		"memory_mb": n.MemoryMB, "committed_mb": n.CommittedMB, "free_mb": n.FreeMB, "vms": n.VMs,
	}
}

const cordoned = "cordoned"

// Cells returns the engine's cells.
func (e EngineInfo) Cells() Cells {
	return Cells{"id": e.ID, "host": e.Host, "version": e.Version, "jobs": e.Jobs, "started_at": e.StartedAt}
}

// Cells returns the credential's cells.
func (c Credential) Cells() Cells {
	return Cells{"name": c.Name, "host": c.Host, "created_at": c.CreatedAt}
}

package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"linus/internal/job"
	"linus/internal/vm"
)

// Bounds of a page.
const (
	defaultLimit = 50
	maxLimit     = 200
)

// searched is how many jobs a search looks at for one page.
const searched = 20000

// List returns a page of jobs, newest first unless asked otherwise. Errors in the filter are
// *job.FieldError. New jobs do not shift the pages of a client that is paging. Jobs that make VMs
// of pools are not listed.
func (s *Store) List(ctx context.Context, f job.Filter) (job.Page, error) {
	limit, cursor, err := checkFilter(f)
	if err != nil {
		return job.Page{}, err
	}
	// Conditions are written out only when they apply, so that each form of the query has its
	// index. Those without an index are checked for a bounded number of jobs.
	within, rest := s.conditionsOf(f, cursor)
	order, upTo, end := "DESC", "jobs.id >= ?", ""
	if oldestFirst(f) {
		order, upTo = "ASC", "jobs.id <= ?"
	}
	if len(rest.args) > 0 {
		if within.text == "" {
			within.add("jobs.id > ?", "")
		}
		last, err := query(ctx, s.read, scanValue[string], `SELECT id FROM jobs WHERE `+within.text+` ORDER BY id `+order+` LIMIT 1 OFFSET `+strconv.Itoa(s.searched), within.args...)
		if err != nil {
			return job.Page{}, fmt.Errorf("list jobs: %w", err)
		}
		if len(last) > 0 {
			end = last[0]
			within.add(upTo, end)
		}
	}
	within.add(rest.text, rest.args...)
	jobs, err := query(ctx, s.read, scanSummary, `SELECT jobs.id, jobs.doc, vms.doc, task_head, done, reason
		FROM jobs LEFT JOIN vms ON vms.id = jobs.vm_id WHERE true`+within.and()+` ORDER BY jobs.id `+order+atMost, append(within.args, limit+1)...)
	if err != nil {
		return job.Page{}, fmt.Errorf("list jobs: %w", err)
	}
	page := job.Page{Jobs: jobs}
	if f.Counts {
		if page.Counts, err = s.counts(ctx, f.Principal); err != nil {
			return job.Page{}, fmt.Errorf("count jobs: %w", err)
		}
	}
	switch {
	case len(jobs) > limit: // the extra one shows that there is a next page
		page.Jobs = jobs[:limit]
		page.Next = encodeCursor(f, page.Jobs[limit-1].ID)
	case end != "":
		page.Next = encodeCursor(f, end)
	}
	return page, nil
}

type statusCount struct {
	status job.Status
	n      int
}

// counts counts jobs by status, in one query that reads no more jobs than it may count.
func (s *Store) counts(ctx context.Context, principal string) (map[job.Status]int, error) {
	var text string
	var args []any
	if principal == "" {
		for i, status := range job.Statuses {
			if i > 0 {
				text += " UNION ALL "
			}
			text += `SELECT CAST(? AS TEXT), count(*) FROM (SELECT 1 FROM jobs WHERE status = ?` + atMost + `) AS those` + strconv.Itoa(i)
			args = append(args, string(status), string(status), job.MostCounted)
		}
	} else {
		c := conditions{}
		c.ofPrincipal(principal)
		text = `SELECT status, count(*) FROM (SELECT status FROM jobs WHERE ` + c.text + ` ORDER BY id DESC` + atMost + `) AS newest GROUP BY status`
		args = append(c.args, s.searched)
	}
	all, err := query(ctx, s.read, func(row scanner) (c statusCount, err error) { return c, row.Scan(&c.status, &c.n) }, text, args...)
	counts := map[job.Status]int{}
	for _, c := range all {
		counts[c.status] = min(c.n, job.MostCounted)
	}
	return counts, err
}

// conditions are part of a WHERE clause, with their parameters.
type conditions struct {
	text string
	args []any
}

func (c *conditions) add(text string, args ...any) {
	if c.text != "" && text != "" {
		c.text += " AND "
	}
	c.text += text
	c.args = append(c.args, args...)
}

// and returns the conditions, to follow others.
func (c *conditions) and() string {
	if c.text == "" {
		return ""
	}
	return " AND " + c.text
}

// conditionsOf returns the conditions that one index serves in the list's order, which is by ID,
// and all others, which filter the jobs that the index selects.
func (s *Store) conditionsOf(f job.Filter, cursor string) (indexed, rest conditions) {
	status := f.Status
	if only := f.Reason.Statuses(); status == "" && f.Reason != "" && len(only) == 1 {
		status = only[0]
	}
	if f.Parent != "" {
		indexed.add("jobs.parent <> '' AND jobs.parent = ?", f.Parent)
	}
	switch owned := f.Principal != "" && f.Principal != job.OperatorName; {
	case owned && (status == "" || status.Terminal()):
		indexed.ofPrincipal(f.Principal)
		if status != "" {
			rest.add("status = ?", string(status))
		}
	default: // unfinished jobs are few, and the operator's have no index
		if status != "" {
			indexed.add("status = ?", string(status))
		}
		switch {
		case f.Principal == job.OperatorName:
			rest.add("jobs.principal = ?", "")
		case owned:
			rest.add("jobs.principal = ?", f.Principal) // without the condition of the principals' index
		}
	}
	after, before := "", ""
	if !f.Since.IsZero() {
		after = idAt(f.Since)
	}
	if !f.Before.IsZero() {
		before = idAt(f.Before)
	}
	switch {
	case oldestFirst(f):
		after = max(after, cursor)
	case before == "" || cursor != "" && cursor < before:
		before = cursor
	}
	if after != "" {
		indexed.add("jobs.id > ?", after)
	}
	if before != "" {
		indexed.add("jobs.id < ?", before)
	}
	if f.Reason != "" {
		rest.add("reason = ?", string(f.Reason))
	}
	for _, label := range f.Label {
		key, value, _ := strings.Cut(label, "=")
		rest.add(s.dialect.label()+" = ?", key, value)
	}
	if f.Dispatcher != "" {
		rest.add("dispatcher = ?", f.Dispatcher)
	}
	switch kind, _, one := strings.Cut(f.Queue, ":"); {
	case one:
		rest.add("queue = ?", f.Queue)
	case f.Queue != "":
		rest.add("queue >= ? AND queue < ?", kind+":", kind+";") // ';' follows ':'
	}
	if f.Client != "" {
		rest.add("client = ?", f.Client)
	}
	if f.Text != "" {
		like := "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(f.Text) + "%"
		rest.add(`(lower(task_head) LIKE lower(?) ESCAPE '\' OR jobs.id LIKE ? ESCAPE '\')`, like, strings.ToLower(like))
	}
	return indexed, rest
}

func (c *conditions) ofPrincipal(name string) {
	switch name {
	case "":
	case job.OperatorName:
		c.add("jobs.principal = ''")
	default:
		c.add("jobs.principal <> '' AND jobs.principal = ?", name)
	}
}

// idAt returns a text that sorts before the ID of every job submitted at a time or later, and after
// the IDs of earlier ones: a UUID of version 7 begins with the time in milliseconds.
func idAt(t time.Time) string {
	text := fmt.Sprintf("%012x", max(0, min(t.UnixMilli(), 1<<48-1)))
	return text[:8] + "-" + text[8:] + "-0000-0000-000000000000"
}

// oldestFirst reports whether a list begins with the oldest jobs.
func oldestFirst(f job.Filter) bool { return f.Sort == "created_at" }

// checkFilter returns how many jobs to list, and the ID after which to continue ("": from the
// beginning).
func checkFilter(f job.Filter) (limit int, cursor string, err error) {
	if bad := cmp.Or(job.OneOf("status", f.Status, false, job.Statuses...), job.OneOf("reason", f.Reason, false, job.Reasons...)); bad != nil {
		return 0, "", bad
	}
	if err := job.ListingOfJobs().Check(job.Query{Text: f.Text, Sort: f.Sort, Label: f.Label}); err != nil {
		return 0, "", err
	}
	for name, text := range map[string]string{"text": f.Text, "client": f.Client, "queue": f.Queue, "dispatcher": f.Dispatcher} {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return 0, "", &job.FieldError{Field: name, Problem: "has a NUL byte or is not valid UTF-8", Remedy: "give plain text"}
		}
	}
	limit = cmp.Or(f.Limit, defaultLimit)
	if err := job.Within("limit", int64(limit), 1, maxLimit); err != nil {
		return 0, "", err
	}
	if f.Cursor != "" {
		if cursor, err = decodeCursor(f); err != nil {
			return 0, "", err
		}
	}
	return limit, cursor, nil
}

// scanSummary reads a list's fields from the job's document, where they have the same names.
func scanSummary(row scanner) (job.Summary, error) {
	var id, doc, head, reason string
	var machine sql.NullString
	var done bool
	if err := row.Scan(&id, &doc, &machine, &head, &done, &reason); err != nil {
		return job.Summary{}, err
	}
	var of struct {
		job.Summary
		Hold *heldAs `json:"hold"`
	}
	err := json.Unmarshal([]byte(doc), &of)
	var v *vm.VM
	if err == nil {
		v, err = heldVM(id, machine, of.Hold)
	}
	if err != nil {
		return job.Summary{}, fmt.Errorf("decode job %s: %w", id, err)
	}
	sum := of.Summary
	if v != nil {
		sum.VM = &job.SummaryVM{ID: v.ID, Name: v.Name, Node: v.Node, State: v.State}
	}
	sum.Task, sum.Reason = head, job.Reason(reason)
	if done {
		sum.Phase = ""
	}
	return sum, nil
}

// cursorPrefix is the kind and version of a cursor. It precedes the ID of the previous page's last
// job.
func cursorPrefix(f job.Filter) string {
	if oldestFirst(f) {
		return "jobs1up:"
	}
	return "jobs1:"
}

func encodeCursor(f job.Filter, id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix(f) + id))
}

func decodeCursor(f job.Filter) (string, error) {
	text, err := base64.RawURLEncoding.DecodeString(f.Cursor)
	id, ok := strings.CutPrefix(string(text), cursorPrefix(f))
	if err != nil || !ok || !isID(id) {
		return "", &job.FieldError{
			Field: "cursor", Problem: "is not a cursor of this list",
			Remedy: "give next_cursor of the previous page unchanged, with the same sort, or none for the first page",
		}
	}
	return id, nil
}

package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"linus/internal/job"
)

// Bounds of a page.
const (
	defaultLimit = 50
	maxLimit     = 200
)

// List returns a page of jobs, newest first. Errors in the filter are
// *job.FieldError. New jobs do not shift the pages of a client that is paging.
// Jobs that make VMs of pools are not listed.
func (s *Store) List(ctx context.Context, f job.Filter) (job.Page, error) {
	limit, before, err := checkFilter(f)
	if err != nil {
		return job.Page{}, err
	}
	// The conditions are written out only when they apply, so that each form of
	// the query has its index.
	where, args := "member IS NULL", []any{}
	if f.Status != "" {
		where, args = where+" AND status = ?", append(args, string(f.Status))
	}
	if before != "" {
		where, args = where+" AND id < ?", append(args, before)
	}
	jobs, err := query(ctx, s.read, scanSummary, `SELECT doc, task_head, done FROM jobs
		WHERE `+where+` ORDER BY id DESC LIMIT ?`, append(args, limit+1)...)
	if err != nil {
		return job.Page{}, fmt.Errorf("list jobs: %w", err)
	}
	page := job.Page{Jobs: jobs}
	if len(jobs) > limit { // the extra one shows that there is a next page
		page.Jobs = jobs[:limit]
		page.Next = encodeCursor(page.Jobs[limit-1].ID)
	}
	return page, nil
}

// checkFilter returns how many jobs to list, and the ID below which to start
// ("": at the newest).
func checkFilter(f job.Filter) (limit int, before string, err error) {
	if f.Status != "" && !f.Status.Valid() {
		words := make([]string, len(job.Statuses))
		for i, w := range job.Statuses {
			words[i] = string(w)
		}
		return 0, "", &job.FieldError{
			Field: "status", Problem: fmt.Sprintf("%q is unknown", string(f.Status)),
			Remedy: "use one of: " + strings.Join(words, ", "),
		}
	}
	limit = f.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	if limit < 1 || limit > maxLimit {
		return 0, "", &job.FieldError{
			Field: "limit", Problem: fmt.Sprintf("%d is out of range", f.Limit),
			Remedy: fmt.Sprintf("give 1 to %d", maxLimit),
		}
	}
	if f.Cursor != "" {
		if before, err = decodeCursor(f.Cursor); err != nil {
			return 0, "", err
		}
	}
	return limit, before, nil
}

// scanSummary reads a list's fields from the job's document, where they have
// the same names.
func scanSummary(row scanner) (job.Summary, error) {
	var doc, head string
	var done bool
	if err := row.Scan(&doc, &head, &done); err != nil {
		return job.Summary{}, err
	}
	var sum job.Summary
	if err := json.Unmarshal([]byte(doc), &sum); err != nil {
		return job.Summary{}, fmt.Errorf("decode a job: %w", err)
	}
	sum.Task = head
	if done {
		sum.Phase = ""
	}
	return sum, nil
}

// cursorPrefix is the kind and version of a cursor, which contains the ID of
// the previous page's last job.
const cursorPrefix = "jobs1:"

func encodeCursor(id string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorPrefix + id))
}

func decodeCursor(cursor string) (string, error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	id, ok := strings.CutPrefix(string(text), cursorPrefix)
	if err != nil || !ok || !isID(id) {
		return "", &job.FieldError{
			Field: "cursor", Problem: "is not a cursor of this list",
			Remedy: "give next_cursor of the previous page unchanged, or none for the first page",
		}
	}
	return id, nil
}

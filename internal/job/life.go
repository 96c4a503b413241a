package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// Become moves the job to next, or returns an error if that transition is not allowed.
func (j *Job) Become(next Status) error {
	if !j.Status.CanBecome(next) {
		return fmt.Errorf("job %s cannot become %s: it is %s", j.ID, next, j.Status)
	}
	j.Status = next
	return nil
}

// Reach moves the job to next, if that is allowed, and returns the event of the change.
func (j *Job) Reach(next Status) []Event {
	if j.Become(next) != nil {
		return nil
	}
	return []Event{{Kind: EventStatus, Text: string(next)}}
}

// Decide records the outcome and reports whether this call decided it: the first outcome wins, and
// later ones change nothing.
func (j *Job) Decide(o Outcome) bool {
	if j.Outcome != nil || j.Status.Terminal() {
		return false
	}
	j.Outcome = &o
	return true
}

// Finish makes the decided outcome the job's status. The output must be complete: a client that sees
// a terminal status may read it at once.
func (j *Job) Finish(at time.Time) error {
	if j.Outcome == nil {
		return fmt.Errorf("job %s cannot finish: nothing has decided its outcome", j.ID)
	}
	if !j.Outcome.Status.Terminal() {
		return fmt.Errorf("job %s cannot finish as %q: that is not a terminal status", j.ID, string(j.Outcome.Status))
	}
	if err := j.Become(j.Outcome.Status); err != nil {
		return err
	}
	j.CompletedAt = at
	return nil
}

// Summary is one job in a list. Fields it shares with Job have the same JSON names.
type Summary struct {
	ID          string            `json:"job_id" api:"id"`
	Kind        Kind              `json:"kind"`
	Client      string            `json:"client,omitempty"`
	Principal   string            `json:"principal,omitempty"`
	Status      Status            `json:"status"`
	Reason      Reason            `json:"reason,omitempty"`
	Outcome     *Outcome          `json:"outcome,omitempty"` // as the job has it
	Phase       string            `json:"phase,omitempty"`   // the current phase; empty when nothing more will happen
	VM          *SummaryVM        `json:"vm,omitempty"`
	Task        string            `json:"task"` // its first 100 characters
	Labels      map[string]string `json:"labels,omitempty"`
	Session     *Session          `json:"session,omitempty"` // as the job has it
	Parent      string            `json:"parent,omitempty" api:"parent_id"`
	Variant     string            `json:"variant,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
	CompletedAt time.Time         `json:"completed_at,omitzero"`
}

// SummaryVM is a job's VM in a list.
type SummaryVM struct {
	ID    int      `json:"id,omitempty" api:"vm_id"`
	Name  string   `json:"name"`
	Node  string   `json:"node,omitempty"`
	State vm.State `json:"state"`
}

// Filter selects jobs, newest first.
type Filter struct {
	Status     Status    `json:"status"`               // empty: all
	Reason     Reason    `json:"reason"`               // why the job ended; empty: all
	Client     string    `json:"client"`               // who submitted the job, in full; empty: all
	Text       string    `json:"text"`                 // part of the job's ID, or of its task's first 100 characters; at most MaxSearch characters
	Label      []string  `json:"label,omitempty"`      // only jobs that have all of these, each as key=value
	Queue      string    `json:"queue,omitempty"`      // only jobs that serve work of this queue, as KIND or KIND:NAME
	Dispatcher string    `json:"dispatcher,omitempty"` // only jobs that the dispatcher of this name submitted
	Since      time.Time `json:"since,omitzero"`       // submitted at this time or later
	Before     time.Time `json:"before,omitzero"`      // submitted before this time
	Sort       string    `json:"sort,omitempty"`       // created_at: oldest first; -created_at, or empty: newest first
	Limit      int       `json:"limit"`                // 1 to 200; 0: 50
	Cursor     string    `json:"cursor"`               // Next of the previous page; empty: the first page
	Counts     bool      `json:"counts,omitempty"`     // also how many jobs there are of each status

	Parent    string `json:"parent,omitempty"`    // only the children of this job; empty: all
	Principal string `json:"principal,omitempty"` // only this principal's jobs; empty: all that the caller may see
}

var daysForm = lazyregexp.New(`^(?:([0-9]{1,4})w)?(?:([0-9]{1,5})d)?(.*)$`)

// ParseDuration is time.ParseDuration, with weeks (w) and days (d) before the rest, as in 90d, 2w or
// 1d12h. A day has 24 hours.
func ParseDuration(text string) (time.Duration, error) {
	part := daysForm.FindStringSubmatch(text)
	if part == nil || text == "" {
		part = []string{text, "", "", text}
	}
	weeks, _ := strconv.Atoi(part[1])
	days, _ := strconv.Atoi(part[2])
	whole := time.Duration(7*weeks+days) * 24 * time.Hour
	if part[3] == "" && text != "" {
		return whole, nil
	}
	rest, err := time.ParseDuration(part[3])
	if err != nil || rest < 0 && whole > 0 {
		return 0, errors.New("give a duration such as 90m, 1h30m, 90d or 2w")
	}
	return whole + rest, nil
}

// ParseTime parses a point in time for a Filter: in RFC 3339, or as how long ago it was (24h). An
// empty text is the zero time. Errors are *FieldError for the field.
func ParseTime(field, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, &FieldError{
			Field: field, Problem: fmt.Sprintf("%.80q is not a time", text),
			Remedy: "give one such as 2026-01-02T15:04:05Z, or how long ago it was, as in 24h",
		}
	}
	return at, nil
}

// MaxSearch bounds Filter.Text, in characters.
const MaxSearch = 200

// Page is one page of a list. In a search it may have fewer jobs than requested, even none, though
// more follow: a search examines a bounded number of jobs.
type Page struct {
	Jobs   []Summary      `json:"jobs" api:"items"`
	Next   string         `json:"next_cursor,omitempty"` // empty on the last page
	Counts map[Status]int `json:"counts,omitempty"`      // if requested: the number of jobs of each status, of all that the caller may see, or of the principal's newest 20000; 1000 means that many or more
}

// MostCounted bounds a count of jobs: this number means that many or more.
const MostCounted = 1000

// TaskHead returns the first 100 characters of the task for lists; for a run, those of its command.
func TaskHead(task string) string {
	task = typed(task)
	if r := []rune(task); len(r) > 100 {
		return string(r[:100])
	}
	return task
}

// mostTitle bounds the characters of a title. It is less than the length of a TaskHead without what
// Title removes, so that a truncated head shows as truncated.
const mostTitle = 80

// Title returns a task, or its TaskHead, for display: without "exec --", with which a command given as
// arguments begins, without what linus run puts before the command, and with an ellipsis if it is truncated.
func Title(task string) string {
	task = strings.TrimSpace(strings.TrimPrefix(typed(task), "exec -- "))
	if r := []rune(task); len(r) > mostTitle {
		return strings.TrimSpace(string(r[:mostTitle-1])) + "…"
	}
	return task
}

package job

import (
	"fmt"
	"time"
)

// Become moves the job to next, or returns an error if that transition is not
// allowed.
func (j *Job) Become(next Status) error {
	if !j.Status.CanBecome(next) {
		return fmt.Errorf("job %s cannot become %s: it is %s", j.ID, next, j.Status)
	}
	j.Status = next
	return nil
}

// Decide records the outcome and reports whether this call decided it: the
// first outcome wins, and later ones change nothing.
func (j *Job) Decide(o Outcome) bool {
	if j.Outcome != nil || j.Status.Terminal() {
		return false
	}
	j.Outcome = &o
	return true
}

// Finish makes the decided outcome the job's status. The output must be
// complete: a client that sees a terminal status may read it at once.
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

// Summary is one job in a list. Fields it shares with Job have the same JSON
// names.
type Summary struct {
	ID          string     `json:"job_id"`
	Kind        Kind       `json:"kind"`
	Client      string     `json:"client,omitempty"`
	Status      Status     `json:"status"`
	Phase       string     `json:"phase,omitempty"` // the current one; empty when nothing more will happen
	VM          *SummaryVM `json:"vm,omitempty"`
	Task        string     `json:"task"` // its first 100 characters
	CreatedAt   time.Time  `json:"created_at"`
	CompletedAt time.Time  `json:"completed_at,omitzero"`
}

// SummaryVM is a job's VM in a list.
type SummaryVM struct {
	ID    int     `json:"id,omitempty"`
	Name  string  `json:"name"`
	Node  string  `json:"node,omitempty"`
	State VMState `json:"state"`
}

// Filter selects jobs, newest first.
type Filter struct {
	Status Status `json:"status"` // empty: all
	Limit  int    `json:"limit"`  // 1 to 200; 0: 50
	Cursor string `json:"cursor"` // Next of the previous page; empty: the first page
}

// Page is one page of a list.
type Page struct {
	Jobs []Summary `json:"jobs"`
	Next string    `json:"next_cursor,omitempty"` // empty on the last page
}

// TaskHead is the task's first 100 characters, for lists.
func TaskHead(task string) string {
	if r := []rune(task); len(r) > 100 {
		return string(r[:100])
	}
	return task
}

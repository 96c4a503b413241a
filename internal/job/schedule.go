package job

import (
	"context"
	"fmt"
	"strings"
	"time"

	"linus/internal/lazyregexp"
)

// Overlap says what becomes of a run whose time comes while the one before has not ended.
type Overlap string

// The kinds.
const (
	OverlapSkip    Overlap = "skip"    // it is left out
	OverlapQueue   Overlap = "queue"   // it begins when that has ended; of several that wait the last one
	OverlapReplace Overlap = "replace" // that is cancelled
)

// Overlaps are all of them.
var Overlaps = []Overlap{OverlapSkip, OverlapQueue, OverlapReplace}

// Missed says what becomes of runs in whose time no engine worked.
type Missed string

// The kinds.
const (
	MissedOnce Missed = "run-once" // one run stands for all
	MissedSkip Missed = "skip"     // they are left out
)

// MissedKinds are all of them.
var MissedKinds = []Missed{MissedOnce, MissedSkip}

// ScheduleSpec asks for a schedule.
type ScheduleSpec struct {
	Name     string   `json:"name" api:",required"`
	Cron     string   `json:"cron" api:",required"` // minute, hour, day of the month, month, day of the week; or @daily and the like
	Timezone string   `json:"timezone,omitempty"`   // as in Europe/Berlin; empty: UTC
	Overlap  Overlap  `json:"overlap,omitempty"`    // empty: skip
	Missed   Missed   `json:"missed,omitempty"`     // empty: run-once
	Manifest Manifest `json:"manifest" api:",required"`
}

// Schedule is a job that is submitted again and again, as the principal that has made it.
type Schedule struct {
	ScheduleSpec

	Principal string    `json:"principal,omitempty"` // empty: the operator's
	TokenID   string    `json:"token_id,omitempty"`  // of the token that it was made with
	CreatedAt time.Time `json:"created_at"`
	Paused    bool      `json:"paused,omitempty"`
	NextAt    time.Time `json:"next_at,omitzero"` // its next run; zero: there is none
	Waiting   time.Time `json:"waiting,omitzero"` // the run that waits for the end of the one before
	Problem   string    `json:"problem,omitempty"`
	Runs      []Run     `json:"runs,omitempty"` // the last ones, newest first
}

// Run is a run of a schedule.
type Run struct {
	At  time.Time `json:"at"` // its time
	Job string    `json:"job_id,omitempty"`
	Why string    `json:"why,omitempty"` // there is no job

	ByHand bool `json:"by_hand,omitempty"` // somebody has asked for it, beside those that the calendar has
}

// MostRuns bounds how many runs of a schedule are kept.
const MostRuns = 50

// Note adds a run. The last one that has made a job stays: those after it may be left out for that.
func (s *Schedule) Note(r Run) {
	s.Runs = append([]Run{r}, s.Runs...)
	if len(s.Runs) <= MostRuns {
		return
	}
	last := s.Runs[MostRuns]
	s.Runs = s.Runs[:MostRuns]
	if last.Job != "" && s.LastJob() == "" {
		s.Runs[MostRuns-1] = last
	}
}

// LastJob is the last job that it has made; empty: none.
func (s Schedule) LastJob() string {
	for _, r := range s.Runs {
		if r.Job != "" {
			return r.Job
		}
	}
	return ""
}

// State says in a word whether it runs.
func (s Schedule) State() string {
	switch {
	case s.Paused:
		return "paused"
	case s.Problem != "":
		return "stopped"
	}
	return "active"
}

// Cells are those of a schedule.
func (s Schedule) Cells() Cells {
	return Cells{"name": s.Name, "status": State{[]string{s.State()}, []string{"active", "paused", "stopped"}}, "created_at": s.CreatedAt}
}

// ScheduleEdit is what is to change of a schedule.
type ScheduleEdit struct {
	Schedule string `json:"schedule"`
	Paused   bool   `json:"paused"` // it makes no jobs until it is resumed
}

// MaxSchedule bounds a schedule's manifest as JSON, in bytes, and MaxSchedules how many a
// principal may have.
const (
	MaxSchedule  = 4 << 20
	MaxSchedules = 200
)

var scheduleName = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// Check returns a *FieldError for what can be seen to be wrong without a calendar, and fills in
// what is left out.
func (s *ScheduleSpec) Check() error {
	orDefault(&s.Overlap, OverlapSkip)
	orDefault(&s.Missed, MissedOnce)
	orDefault(&s.Timezone, "UTC")
	if !fits(scheduleName, s.Name, 63) {
		return field("name", "use letters, digits, dots, dashes and _, at most 63", "%.80q is not a schedule's name", s.Name)
	}
	if bad := OneOf("overlap", s.Overlap, true, Overlaps...); bad != nil {
		return bad
	}
	if bad := OneOf("missed", s.Missed, true, MissedKinds...); bad != nil {
		return bad
	}
	if s.Manifest.Stdin == StdinOpen || s.Manifest.TTY {
		return field("manifest.stdin", "leave manifest.stdin and manifest.tty out", "has no meaning for a schedule: nobody is there to type")
	}
	if s.Manifest.VMName != "" {
		return field("manifest.vmName", "remove it", "has no meaning for a schedule: each run would make a VM of that name")
	}
	return s.Manifest.Validate()
}

// ScheduleKey is the idempotency key of a run, which makes it one job.
func (s Schedule) ScheduleKey(at time.Time) string {
	return fmt.Sprintf("\x1eschedule %s of %d at %d", s.Name, s.CreatedAt.UnixMilli(), at.Unix()) // no client has such a key
}

// Schedules are the operations on schedules. A caller that is no admin sees its own.
type Schedules interface {
	// CreateSchedule adds a schedule, which makes jobs as the caller. One of that name is an error.
	CreateSchedule(ctx context.Context, s ScheduleSpec) (Schedule, error)
	// Schedules returns all, by name.
	Schedules(ctx context.Context) ([]Schedule, error)
	// Schedule returns one, with its last runs.
	Schedule(ctx context.Context, name string) (Schedule, error)
	// PauseSchedule has a schedule make no jobs, or again from the next time on.
	PauseSchedule(ctx context.Context, edit ScheduleEdit) (Schedule, error)
	// RunSchedule submits its job now, besides those of its times.
	RunSchedule(ctx context.Context, name string) (Job, error)
	// RemoveSchedule removes a schedule. Its jobs stay, and go on.
	RemoveSchedule(ctx context.Context, name string) (Schedule, error)
}

// CronMacros are names for times, as crontabs have them.
var CronMacros = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// EveryHour reports whether a cron expression is one of every hour, or of every few: its times are
// so far apart whatever clocks do.
func EveryHour(cron string) bool {
	fields := strings.Fields(cron)
	return len(fields) > 1 && strings.HasPrefix(fields[1], "*")
}

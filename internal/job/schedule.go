package job

import (
	"context"
	"fmt"
	"strings"
	"time"

	"linus/internal/lazyregexp"
)

// Overlap says what happens to a run that is due before the previous run has ended.
type Overlap string

// The kinds.
const (
	OverlapSkip    Overlap = "skip"    // it is skipped
	OverlapQueue   Overlap = "queue"   // it starts when the previous run has ended; of several waiting runs only the last one
	OverlapReplace Overlap = "replace" // the previous run is cancelled
)

// Overlaps are all kinds of Overlap.
var Overlaps = []Overlap{OverlapSkip, OverlapQueue, OverlapReplace}

// Missed says what happens to runs that were due while no engine was running.
type Missed string

// The kinds.
const (
	MissedOnce Missed = "run-once" // one run for all
	MissedSkip Missed = "skip"     // they are skipped
)

// MissedKinds are all kinds of Missed.
var MissedKinds = []Missed{MissedOnce, MissedSkip}

// ScheduleSpec is a request for a schedule.
type ScheduleSpec struct {
	Name     string   `json:"name" api:",required"`
	Cron     string   `json:"cron" api:",required"` // minute, hour, day of the month, month, day of the week; or @daily and the like
	Timezone string   `json:"timezone,omitempty"`   // as in Europe/Berlin; empty: UTC
	Overlap  Overlap  `json:"overlap,omitempty"`    // empty: skip
	Missed   Missed   `json:"missed,omitempty"`     // empty: run-once
	Manifest Manifest `json:"manifest" api:",required"`
}

// Schedule is a job that is submitted repeatedly, as the principal that created the schedule.
type Schedule struct {
	ScheduleSpec

	Principal string    `json:"principal,omitempty"` // its owner; empty: the operator
	TokenID   string    `json:"token_id,omitempty"`  // of the token that it was created with
	CreatedAt time.Time `json:"created_at"`
	Paused    bool      `json:"paused,omitempty"`
	NextAt    time.Time `json:"next_at,omitzero"` // its next run; zero: there is none
	Waiting   time.Time `json:"waiting,omitzero"` // the run that waits for the previous run to end
	Problem   string    `json:"problem,omitempty"`
	Runs      []Run     `json:"runs,omitempty"` // the last ones, newest first
}

// Run is a run of a schedule.
type Run struct {
	At  time.Time `json:"at"` // when it was due
	Job string    `json:"job_id,omitempty"`
	Why string    `json:"why,omitempty"` // why there is no job

	ByHand bool `json:"by_hand,omitempty"` // somebody asked for it, in addition to the runs of the calendar
}

// MostRuns bounds the runs kept of a schedule.
const MostRuns = 50

// Note adds a run. The last run with a job is kept: later runs may have been skipped because of it.
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

// LastJob returns the last job of the schedule; empty if there is none.
func (s Schedule) LastJob() string {
	for _, r := range s.Runs {
		if r.Job != "" {
			return r.Job
		}
	}
	return ""
}

// State says in a word whether the schedule is active.
func (s Schedule) State() string {
	switch {
	case s.Paused:
		return "paused"
	case s.Problem != "":
		return "stopped"
	}
	return "active"
}

// Cells returns the schedule's cells.
func (s Schedule) Cells() Cells {
	return Cells{"name": s.Name, "status": State{[]string{s.State()}, []string{"active", "paused", "stopped"}}, "created_at": s.CreatedAt}
}

// ScheduleEdit is a change of a schedule.
type ScheduleEdit struct {
	Schedule string `json:"schedule"`
	Paused   bool   `json:"paused"` // it submits no jobs until it is resumed
}

// MaxSchedule bounds a schedule's manifest as JSON, in bytes. MaxSchedules bounds the schedules of a
// principal.
const (
	MaxSchedule  = 4 << 20
	MaxSchedules = 200
)

var scheduleName = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// Check returns a *FieldError for faults that show without a calendar, and fills in defaults.
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

// ScheduleKey returns the idempotency key of a run, which makes sure that a run is one job.
func (s Schedule) ScheduleKey(at time.Time) string {
	return fmt.Sprintf("\x1eschedule %s of %d at %d", s.Name, s.CreatedAt.UnixMilli(), at.Unix()) // clients cannot send such a key
}

// Schedules are the operations on schedules. A caller that is not an admin sees its own.
type Schedules interface {
	// CreateSchedule adds a schedule, which submits jobs as the caller. It is an error if the name is taken.
	CreateSchedule(ctx context.Context, s ScheduleSpec) (Schedule, error)
	// Schedules returns all schedules, by name.
	Schedules(ctx context.Context) ([]Schedule, error)
	// Schedule returns one schedule, with its last runs.
	Schedule(ctx context.Context, name string) (Schedule, error)
	// PauseSchedule pauses a schedule, or resumes it from its next time on.
	PauseSchedule(ctx context.Context, edit ScheduleEdit) (Schedule, error)
	// RunSchedule submits the schedule's job now, in addition to its times.
	RunSchedule(ctx context.Context, name string) (Job, error)
	// RemoveSchedule removes a schedule. Its jobs stay and continue.
	RemoveSchedule(ctx context.Context, name string) (Schedule, error)
}

// CronMacros are the names that crontabs have for common times.
var CronMacros = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// EveryHour reports whether a cron expression means every hour, or every few hours. Such times are
// that far apart even when clocks change.
func EveryHour(cron string) bool {
	fields := strings.Fields(cron)
	return len(fields) > 1 && strings.HasPrefix(fields[1], "*")
}

package schedule

import (
	"strings"
	"time"
	_ "time/tzdata" // for machines that have none

	"github.com/robfig/cron/v3"

	"linus/internal/job"
)

// calendar says when a schedule's runs are due.
type calendar struct {
	times cron.Schedule
	zone  *time.Location
	wall  bool // its times are wall-clock times, which change twice a year
}

// newCalendar parses a cron expression. Errors are *job.FieldError.
func newCalendar(text, zone string) (calendar, error) {
	c := calendar{wall: true}
	wrong := func(field, problem, remedy string) (calendar, error) {
		return c, &job.FieldError{Field: field, Problem: problem, Remedy: remedy}
	}
	expression := strings.TrimSpace(text)
	if macro, is := job.CronMacros[expression]; is {
		expression = macro
	}
	if len(expression) > 200 || len(strings.Fields(expression)) != 5 || strings.Contains(expression, "=") {
		return wrong("cron", "is not a time as crontabs have it", "give five fields (minute, hour, day of the month, month, day of the week), as in '0 3 * * *', or @hourly, @daily, @weekly or @monthly")
	}
	var err error
	if c.times, err = cron.ParseStandard(expression); err != nil {
		return wrong("cron", err.Error(), "give five fields (minute, hour, day of the month, month, day of the week), as in '0 3 * * *'")
	}
	if c.zone, err = time.LoadLocation(zone); err != nil || zone == "Local" {
		return wrong("timezone", "is not a time zone", "give one such as UTC or Europe/Berlin")
	}
	c.wall = !job.EveryHour(expression)
	if c.next(time.Now()).IsZero() {
		return wrong("cron", "is at no time within five years", "give days that there are")
	}
	return c, nil
}

// next returns the first time after t; zero if there is none. For runs at a time of day, a time that
// clocks skip is replaced by the moment of the change, and of a time that they show twice the first
// counts. Hourly runs are every hour regardless.
func (c calendar) next(t time.Time) time.Time {
	if !c.wall {
		return c.times.Next(t.In(c.zone)).UTC()
	}
	for shown := clock(t.In(c.zone)).Add(-25 * time.Hour); ; {
		if shown = c.times.Next(shown); shown.IsZero() {
			return shown
		}
		if at := c.instant(shown); at.After(t) {
			return at.UTC()
		}
	}
}

// clock returns the time at which a clock in UTC shows what a clock in t's zone shows at t.
func clock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns when clocks of the zone first show a time, or when they are set past it.
func (c calendar) instant(shown time.Time) time.Time {
	at := time.Date(shown.Year(), shown.Month(), shown.Day(), shown.Hour(), shown.Minute(), shown.Second(), 0, c.zone)
	start, end := at.ZoneBounds()
	for _, set := range []time.Time{start, end} {
		if set.IsZero() {
			continue
		}
		before, after := set.Add(-time.Nanosecond), set
		_, was := before.Zone()
		earlier := shown.Add(-time.Duration(was) * time.Second)
		switch {
		case clock(before).Before(shown) && shown.Before(clock(after)): // skipped
			return set
		case earlier.Before(set) && earlier.Before(at) && clock(earlier.In(c.zone)).Equal(shown): // shown twice
			return earlier
		}
	}
	return at
}

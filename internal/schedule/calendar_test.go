package schedule

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Clocks of Berlin went from 2 to 3 on 2026-03-29, and from 3 back to 2 on 2026-10-25.
func TestCalendar_WhenClocksAreSet(t *testing.T) {
	for _, tt := range []struct {
		name, cron, zone, from string
		want                   []string
	}{
		{"an ordinary night", "0 3 * * *", "Europe/Berlin", "2026-01-01T00:00:00Z", []string{"2026-01-01T02:00:00Z", "2026-01-02T02:00:00Z"}},
		{"a time that is left out", "30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"a time that is there twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", []string{"2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"every hour, when one is left out", "15 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:15:00Z", "2026-03-29T01:15:00Z", "2026-03-29T02:15:00Z"}},
		{"every hour, when one is there twice", "15 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", []string{"2026-10-25T00:15:00Z", "2026-10-25T01:15:00Z", "2026-10-25T02:15:00Z"}},
		{"a zone set by half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-04-03T20:00:00Z", []string{"2026-04-04T15:45:00Z", "2026-04-05T15:45:00Z"}},
		{"a half that is there twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"the first of a month", "@monthly", "America/New_York", "2026-02-01T05:00:00Z", []string{"2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"}},
		{"days of the week", "0 9 * * 1-5", "UTC", "2026-01-02T09:00:00Z", []string{"2026-01-05T09:00:00Z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := newCalendar(tt.cron, tt.zone)
			if err != nil {
				t.Fatal(err)
			}
			at, err := time.Parse(time.RFC3339, tt.from)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for range tt.want {
				at = c.next(at)
				got = append(got, at.Format(time.RFC3339))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCalendar_Refuses(t *testing.T) {
	for _, tt := range [][2]string{{"0 3 * *", "UTC"}, {"@every 1s", "UTC"}, {"CRON_TZ=UTC 0 3 * * *", "UTC"}, {"61 * * * *", "UTC"}, {"0 3 * * *", "Mars/Base"}, {"0 3 * * *", "Local"}, {"0 3 * * *", "../etc"}, {"0 0 31 2 *", "UTC"}} {
		if _, err := newCalendar(tt[0], tt[1]); err == nil {
			t.Errorf("%q in %s is taken", tt[0], tt[1])
		}
	}
}

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// A run of a schedule is one job, whichever of two engines makes it: also when the one that leads is
// killed after it has made the job, and before it has noted that.
func TestSchedule_OfTwoEngines(t *testing.T) {
	loops.AtNightOnly(t, "TestSchedule_RunsNoneTwice has two make the same runs, TestEngines_OneIsKilledInTheMiddleOfAJob an engine that leads killed")
	t.Parallel()
	database := pgtest.Database(t)
	leads := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+database)
	leads.cli(t, "schedule", "add", "yearly", "--cron", "@yearly", "--", "echo", "scheduled") // which starts an engine
	other := leads.another(t)
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context()) //nolint:errcheck // the test is over
	due := func(in time.Duration) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `UPDATE schedules SET doc = jsonb_set(doc::jsonb, '{next_at}', to_jsonb($1::text))::text`, time.Now().UTC().Add(in).Format(time.RFC3339Nano)); err != nil {
			t.Fatal(err)
		}
	}
	jobs := func() int { return strings.Count(other.cli(t, "job", "list"), "echo scheduled") }
	runs := func() (ids []string) {
		t.Helper()
		var s struct {
			Runs []struct {
				Job string `json:"job_id"`
			}
		}
		if err := json.Unmarshal([]byte(other.cli(t, "schedule", "show", "yearly", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		for _, r := range s.Runs {
			ids = append(ids, r.Job)
		}
		return ids
	}
	due(0)
	other.until(t, func() bool { return len(runs()) > 0 })
	first := runs()[0]
	if code, out := other.exits(t, "job", "wait", first); code != 0 {
		t.Errorf("the first job: %d, %s", code, out)
	}
	if n := jobs(); n != 1 {
		t.Errorf("%d jobs of one run", n)
	}
	const made = "job submitted by a schedule"
	if other.logs(made) {
		leads, other = other, leads
	}
	due(5 * time.Second)
	held, err := db.Begin(t.Context())
	if err == nil {
		_, err = held.Exec(t.Context(), `SELECT FROM schedules FOR UPDATE`) // the job is made, and cannot be noted
	}
	if err != nil {
		t.Fatal(err)
	}
	other.until(t, func() bool { return jobs() == 2 })
	if n := len(runs()); n != 1 {
		t.Errorf("%d runs are noted, and the second could not be", n)
	}
	if !leads.killEngine() {
		t.Error("no engine to kill")
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.until(t, func() bool { return len(runs()) == 2 })
	second := runs()[0]
	if code, out := other.exits(t, "job", "wait", second); code != 0 || second == first {
		t.Errorf("the second job, %s after %s: %d, %s", second, first, code, out)
	}
	if n := jobs(); n != 2 {
		t.Errorf("%d jobs of two runs", n)
	}
	if !other.logs(made) {
		t.Error("the other engine has not done the run again")
	}
	other.waitGone(t)
}

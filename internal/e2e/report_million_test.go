package e2e

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to make a large database

	"linus/internal/bench"
	"linus/internal/control"
)

// millionJobs measures an engine whose state directory has 1,000,000 finished jobs: n
// times its start, what calls that read cost, and its memory then. The directory takes
// about 10 GB while this runs.
func millionJobs(t *testing.T, n int) (samples []bench.Sample) {
	m := newMeter(t, processLab, "LINUS_DATABASE_URL=")
	id, _ := m.commandJob(t, memory(processLab))
	m.engine.Close()
	m.h.endedJobs(t, id, 1_000_000)
	for range n {
		samples = append(samples, bench.Sample{"new_ms": ms(m.h.toInitialize(t).took)})
		w := newWire(t, m.h.env)
		samples = append(samples, w.reads(t, m.h.engine(), id, 20)...)
		samples = append(samples, bench.Sample{"rss_mb": rss(m.h.engine())})
		m.h.stop(t)
	}
	return samples
}

// awaitDone returns when all is done about a job.
func awaitDone(t testing.TB, engine *control.Client, id string) {
	t.Helper()
	for seen := int64(0); ; {
		events, j, err := engine.Watch(t.Context(), id, seen)
		if err != nil {
			t.Fatal(err)
		}
		if j.Done() {
			return
		}
		if len(events) > 0 {
			seen = events[len(events)-1].Seq
		}
	}
}

// endedJobs stops the engine and adds copies of an ended job, rows and directories, as if
// one had been submitted every two seconds until now.
func (h *host) endedJobs(t testing.TB, id string, count int) {
	t.Helper()
	h.stop(t)
	db, err := sql.Open("sqlite", filepath.Join(h.state, "linus.db")+"?_pragma=journal_mode(OFF)&_pragma=synchronous(OFF)&_pragma=cache_size(-200000)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1) // its temporary tables are a connection's
	run := func(text string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	run(`CREATE TEMP TABLE copies AS WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < ?),
		times(n, ms) AS (SELECT n, ? + 2000 * n FROM number)
		SELECT printf('%08x-%04x-7000-8000-%012x', ms >> 16, ms & 65535, n) AS id, strftime('%Y-%m-%dT%H:%M:%fZ', ms / 1000.0, 'unixepoch') AS at FROM times`,
		count, time.Now().UnixMilli()-2000*int64(count))
	run(`CREATE TEMP TABLE events AS SELECT kind, phase, text FROM job_events WHERE job_id = ?`, id)
	var columns string
	if err := db.QueryRowContext(t.Context(), `SELECT group_concat(name) FROM pragma_table_info('jobs')`).Scan(&columns); err != nil {
		t.Fatal(err)
	}
	values := "," + columns + ","
	for column, value := range map[string]string{
		"id": "copies.id", "vm_id": "copies.id", "created_at": "at", "started_at": "at", "completed_at": "at",
		"doc": "replace(replace(doc, jobs.id, copies.id), created_at, at)",
	} {
		values = strings.Replace(values, ","+column+",", ","+value+",", 1)
	}
	run(`INSERT INTO jobs (`+columns+`) SELECT `+strings.Trim(values, ",")+` FROM copies, jobs WHERE jobs.id = ?`, id)
	run(`INSERT INTO vms (id, state, doc) SELECT copies.id, state, replace(doc, vms.id, copies.id) FROM copies, vms WHERE vms.id = ?`, id)
	run(`INSERT INTO job_manifests (job_id, manifest) SELECT copies.id, manifest FROM copies, job_manifests WHERE job_id = ?`, id)
	run(`INSERT INTO job_events (job_id, at, kind, phase, text) SELECT id, at, kind, phase, text FROM copies CROSS JOIN events`)
	rows, err := db.QueryContext(t.Context(), `SELECT id FROM copies`)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil && rows.Next() {
		if err = rows.Scan(&id); err == nil {
			err = os.Mkdir(filepath.Join(h.state, "jobs", id), 0o700)
		}
	}
	if err = errors.Join(err, rows.Err(), rows.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
}

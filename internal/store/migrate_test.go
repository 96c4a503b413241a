package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/vm"
)

// fixture is a database of schema 9 and the files of its jobs: rows of every table and in
// every state, in SQL that both databases take, and the schema as the engines that knew it
// as several steps made it.
const fixture = "testdata/schema9"

// database9 opens a new database of schema 9.
func database9(t testing.TB, o Options) *sql.DB {
	t.Helper()
	if o.URL != "" {
		db, err := sql.Open("pgx", o.URL)
		if err != nil {
			t.Fatal(err)
		}
		migrate9(t, goose.DialectPostgres, db)
		return db
	}
	db := newSQLite(t, o)
	execute(t, db, readFixture(t, "schema.sqlite.sql"))
	return db
}

// newSQLite opens the database of a state directory that the test makes.
func newSQLite(t testing.TB, o Options) *sql.DB {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(o.Dir, jobsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase("sqlite", filepath.Join(o.Dir, databaseName), 1, "")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// migrate9 makes the schema as far as 9.
func migrate9(t testing.TB, d goose.Dialect, db *sql.DB) {
	t.Helper()
	files, err := fs.Sub(migrations, "migrations/"+map[goose.Dialect]string{goose.DialectPostgres: "postgres", goose.DialectSQLite3: "sqlite"}[d])
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(d, db, files)
	if err == nil {
		_, err = provider.UpTo(t.Context(), 9)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func execute(t testing.TB, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatal(err)
	}
}

func readFixture(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(fixture, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// emptyDatabase is a database without a schema: those of pgtest may have one.
func emptyDatabase(t testing.TB) Options {
	t.Helper()
	o := Options{Dir: t.TempDir()}
	if !pgtest.Chosen() {
		return o
	}
	o.URL = pgtest.Database(t)
	db, err := sql.Open("pgx", o.URL)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, db, `CREATE SCHEMA apart`)
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), `DROP SCHEMA apart CASCADE`)
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	})
	at, err := url.Parse(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := at.Query()
	query.Set("search_path", "apart")
	at.RawQuery = query.Encode()
	o.URL = at.String()
	return o
}

// state9 is a database of schema 9 with the fixture's rows and files.
func state9(t testing.TB, o Options) Options {
	t.Helper()
	db := database9(t, o)
	execute(t, db, readFixture(t, "rows.sql"))
	files := os.DirFS(filepath.Join(fixture, "jobs"))
	if o.URL == "" {
		if err := os.CopyFS(filepath.Join(o.Dir, jobsDir), files); err != nil {
			t.Fatal(err)
		}
	} else {
		err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			id, name, _ := strings.Cut(path, "/")
			if artifact, is := strings.CutPrefix(name, artifactsDir+"/"); is {
				name = artifactName(artifact)
			}
			data, err := fs.ReadFile(files, path)
			execute(t, db, `INSERT INTO job_data (job_id, name, at, data) VALUES ($1, $2, 0, $3)`, id, name, data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return o
}

// id9 is the ID of a job of the fixture.
func id9(n int) string { return fmt.Sprintf("019ca8%02d-0000-7000-8000-0000000000%02d", n, n) }

// describe returns the schema of a database as text: every table's columns and
// constraints, and every index.
func describe(t testing.TB, db *sql.DB) string {
	t.Helper()
	text := `
		SELECT 'table ' || name || iif(strict, ' strict', '') FROM pragma_table_list WHERE type = 'table' AND schema = 'main' AND name NOT LIKE 'sqlite_%'
		UNION ALL SELECT t.name || '.' || printf('%02d', c.cid) || ' ' || c.name || ' ' || c.type || iif(c."notnull", ' not null', '') || ' default ' || coalesce(c.dflt_value, '-') || ' key ' || c.pk
			FROM pragma_table_list t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND t.schema = 'main' AND t.name NOT LIKE 'sqlite_%'
		UNION ALL SELECT t.name || ' references ' || f."table" || ': ' || f."from" || ' ' || f."to" || ' on delete ' || f.on_delete
			FROM pragma_table_list t JOIN pragma_foreign_key_list(t.name) f WHERE t.type = 'table' AND t.schema = 'main'
		UNION ALL SELECT t.name || ' unique ' || i.name || ' ' || i.origin || ' ' || (SELECT group_concat(name, ', ') FROM pragma_index_info(i.name))
			FROM pragma_table_list t JOIN pragma_index_list(t.name) i WHERE t.type = 'table' AND t.schema = 'main' AND i."unique"
		UNION ALL SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL
		UNION ALL SELECT 'counts ' || name FROM sqlite_schema WHERE sql LIKE '%AUTOINCREMENT%'
		ORDER BY 1`
	if pgtest.Chosen() {
		text = `
		SELECT 'table ' || relname || coalesce(' ' || reloptions::text, '') FROM pg_class WHERE relnamespace = 'apart'::regnamespace AND relkind = 'r'
		UNION ALL SELECT attrelid::regclass || '.' || to_char(attnum, 'FM00') || ' ' || attname || ' ' || format_type(atttypid, atttypmod)
			|| CASE WHEN attnotnull THEN ' not null' ELSE '' END || ' default ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '-') || ' identity ' || attidentity::text
			|| CASE WHEN attcollation <> 0 THEN ' collate ' || attcollation::regcollation ELSE '' END
			FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef d ON d.adrelid = attrelid AND d.adnum = attnum
			WHERE c.relnamespace = 'apart'::regnamespace AND relkind = 'r' AND attnum > 0
		UNION ALL SELECT conrelid::regclass || ' constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
			WHERE connamespace = 'apart'::regnamespace AND contype <> 'n'
		UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'apart'
		ORDER BY 1`
	}
	rows, err := db.QueryContext(t.Context(), text)
	var lines []string
	err = rowsOf(rows, err, func(row scanner) error {
		line, err := scanValue[string](row)
		lines = append(lines, line)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestSchema_IsTheOneThatSeveralStepsMade(t *testing.T) {
	o := emptyDatabase(t)
	db, made := database9(t, o), ""
	if pgtest.Chosen() {
		made = readFixture(t, "schema.postgres.txt")
	} else {
		made = describe(t, db)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = newSQLite(t, Options{Dir: t.TempDir()})
		migrate9(t, goose.DialectSQLite3, db)
	}
	defer db.Close() //nolint:errcheck // only read
	diff(t, strings.Split(made, "\n"), strings.Split(describe(t, db), "\n"))
	first, steps := 1, 0
	if pgtest.Chosen() {
		first = 3
	}
	if err := db.QueryRowContext(t.Context(), `SELECT count(DISTINCT version_id) FROM goose_db_version WHERE version_id > 0`).Scan(&steps); err != nil || steps != 10-first {
		t.Errorf("%d steps are applied, %v; an engine that knows them makes those that are missing", steps, err)
	}
}

func TestOpen_RefusesWhatIsOlderThanTheFirstRelease(t *testing.T) {
	o := emptyDatabase(t)
	db := database9(t, o)
	execute(t, db, `DELETE FROM goose_db_version WHERE version_id = 9`)
	before := describe(t, db)
	s, err := Open(t.Context(), o)
	if err == nil {
		t.Fatal("opened", s.Close())
	}
	where, other := filepath.Join(o.Dir, databaseName), "LINUS_STATE_DIR"
	if pgtest.Chosen() {
		where, other = "PostgreSQL database", "LINUS_DATABASE_URL"
	}
	for _, want := range []string{where, "before the first release", "schema 8, this one needs 9", "remove it, or set " + other} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	diff(t, before, describe(t, db))
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// A state of schema 9 opens with all that is in it: jobs and VMs in each state they can be
// in, pools and their members, tokens, messages, output and artifacts.
func TestOpen_StateOfSchema9(t *testing.T) {
	o := state9(t, emptyDatabase(t))
	for range 2 { // also when it is opened again
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		holds9(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // only read
	// What is done goes, but not what has a VM. No job has made pools' VMs.
	if n, err := s.Forget(t.Context(), time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)); n != 4 || err != nil {
		t.Errorf("forgot %d jobs, %v", n, err)
	}
	for n, want := range map[int]error{22: job.ErrNotFound, 10: job.ErrNotFound, 20: nil, 33: job.ErrNotFound, 37: job.ErrNotFound} {
		if _, err := s.Job(t.Context(), id9(n)); !errors.Is(err, want) {
			t.Errorf("job %d: %v", n, err)
		}
	}
	if _, err := s.VM(t.Context(), id9(10)); err != nil {
		t.Errorf("the VM that was asked for: %v", err)
	}
}

// Engines that know schema 9 would not find their VMs in the schema of today.
func TestOpen_NotWhileOlderEnginesRun(t *testing.T) {
	if !pgtest.Chosen() {
		t.Skip("engines share PostgreSQL only")
	}
	o := state9(t, emptyDatabase(t))
	db, err := sql.Open("pgx", o.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // of the test
	execute(t, db, `INSERT INTO engines (id, doc, lease_until) VALUES ('old', '{}', extract(epoch FROM clock_timestamp()) + 60)`)
	s, err := Open(t.Context(), o)
	if err == nil {
		t.Fatal("opened", s.Close())
	}
	if !strings.Contains(err.Error(), "engines of an older version are running") || !strings.Contains(err.Error(), "linus serve --stop") {
		t.Error(err)
	}
	execute(t, db, `UPDATE engines SET lease_until = 0`) // they are dead
	if s, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	holds9(t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// life9 is the state of the fixture's jobs: the job, its VM and what has it.
const life9 = `
01 task pending - -
02 task running - created
03 task provisioning - intended
04 task provisioning cancelled intended
11 task pending - -
12 task running - created of 10
13 task success exit_status released of 10
14 task failed exit_status created unwanted
15 task success exit_status created
20 task failed exit_status left_alone
21 task timeout timeout forgotten
22 task success exit_status destroyed
23 task failed lost destroyed
24 task pending - -
34 task running - created of 33
`

// holds9 checks that a store has what the fixture has.
func holds9(t *testing.T, s *Store) {
	t.Helper()
	check(t, s)
	number := func(id string) string { return id[len(id)-2:] }
	var life []string
	for n := range 100 {
		j, err := s.Job(t.Context(), id9(n))
		if errors.Is(err, job.ErrNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		words := []string{number(j.ID), string(j.Kind), string(j.Status), "-", "-"}
		if j.Outcome != nil {
			words[3] = string(j.Outcome.Reason)
		}
		if v := j.VM; v != nil {
			words[4] = string(v.State)
			if v.Job != j.ID {
				words = append(words, "of", number(v.Job))
			}
			if j.Shares() && j.SharedVM != v.Job {
				t.Errorf("job %d is to run in VM %q, and is in that of job %s", n, j.SharedVM, v.Job)
			}
			if v.Unwanted {
				words = append(words, "unwanted")
			}
			if v.State == vm.Created && (v.ID != 100+int(v.Job[len(v.Job)-1]-'0')+10*int(v.Job[len(v.Job)-2]-'0') || v.HostKey == "" || v.IP == "" || v.Owner != "7c9e6679-7425-40de-944b-e07fc1f90ae7") {
				t.Errorf("job %d: VM %+v", n, v)
			}
		}
		life = append(life, strings.Join(words, " "))
	}
	diff(t, strings.Split(strings.TrimSpace(life9), "\n"), life)

	ids := func(jobs []job.Job, err error) string {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		var all []string
		for _, j := range jobs {
			all = append(all, number(j.ID))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	waiting, err := s.Waiting(t.Context())
	if err != nil {
		t.Error(err)
	}
	slices.Sort(waiting)
	diff(t, []string{id9(1), id9(24)}, waiting)
	vms, err := s.VMs(t.Context())
	if err != nil {
		t.Error(err)
	}
	var there []string
	for _, v := range vms {
		there = append(there, number(v.Job))
	}
	diff(t, strings.Fields("02 03 04 10 14 15 20 30 31 32 33 35 36 40 41 42 43"), there)
	var asked []string
	for _, v := range vms { // as what the job that made it has asked for
		if v.Member != nil {
			if v.Lifecycle != vm.Pooled || v.Resources.CPU == 0 || v.CreatedAt.IsZero() || !v.Kept || v.Own == nil || v.Own.ReadyAt.IsZero() != (v.Member.State == vm.MemberMaking || v.Own.Failed != "") {
				t.Errorf("VM of a pool: %+v, %+v", v, v.Own)
			}
			continue
		}
		if v.AskedFor() {
			if v.Lifecycle != vm.Persistent || v.Resources.CPU != 2 || v.CreatedAt.IsZero() || !v.Kept || v.Owner != "7c9e6679-7425-40de-944b-e07fc1f90ae7" {
				t.Errorf("VM that was asked for: %+v", v)
			}
			j := job.StandInJob(v)
			words := []string{number(v.Job), v.Name, string(v.State), string(j.Status), cmp.Or(j.Principal, "-"), j.Client, strconv.Itoa(v.Own.TTL)}
			if j.Outcome != nil {
				words = append(words, j.Outcome.At.Format("15:04"), string(j.Outcome.Reason), j.Outcome.Error, j.EndedBy)
			}
			asked = append(asked, strings.TrimSpace(strings.Join(words, " ")))
			continue
		}
		j, err := s.Job(t.Context(), v.Job)
		made := vm.Made{
			Lifecycle: j.Manifest.Lifecycle, Template: j.Manifest.VMTemplate, OS: j.Manifest.OS, Resources: j.Manifest.Resources, Network: j.Manifest.Network,
			Principal: j.Principal, CreatedAt: j.CreatedAt,
		}
		if diff := gocmp.Diff(made, v.Made); diff != "" || err != nil || v.CreatedAt.IsZero() || v.Lifecycle == "" || v.Resources.CPU == 0 {
			t.Errorf("VM of job %s: %v\n%s", number(v.Job), err, diff)
		}
	}
	diff(t, []string{
		"10 dev created success alice cli 86400 12:11 exit_status",
		"40 web reserved pending alice cli 0",
		"41 db intended provisioning - cli 0",
		"42 big intended failed - cli 0 12:43 provision_failed create VM: too big",
		"43 off intended failed - cli 0 12:43 cancelled Cancelled by user cli",
	}, asked)
	if v, err := s.AskedVM(t.Context(), "key of 40"); err != nil || v.Name != "web" || v.Own.Submission != "77" || v.Own.Token != "t1" {
		t.Errorf("by its idempotency key: %+v, %v", v, err)
	}
	if told, err := s.VMEvents(t.Context(), id9(10)); err != nil || len(told) != 1 || told[0].Text != "success" {
		t.Errorf("what happened to a VM: %+v, %v", told, err)
	}
	for what, got := range map[string][2]string{
		"in progress":   {"02 03 04 11 12 14 34", ids(s.InProgress(t.Context()))},
		"of the client": {"01", ids(s.OfClient(t.Context(), "", "mcp:claude-code"))},
	} {
		if got[0] != got[1] {
			t.Errorf("jobs %s: %s, want %s", what, got[1], got[0])
		}
	}

	var members []string
	all, err := s.Members(t.Context())
	for _, m := range all {
		words := []string{number(m.Job), string(m.State), string(m.Member.State)}
		if m.Unwanted {
			words = append(words, "unwanted")
		}
		if m.Member.Claimer != "" {
			words = append(words, "by", number(m.Member.Claimer))
		}
		members = append(members, strings.Join(words, " "))
		if want := map[string]string{"38": "create VM: no space"}[number(m.Job)]; m.Own.Failed != want || m.Name == "" || m.Owner == "" {
			t.Errorf("pool's VM %+v, %+v", m, m.Member)
		}
	}
	if err != nil {
		t.Error(err)
	}
	diff(t, []string{
		"30 intended making", "31 created warm", "32 created hibernated", "33 created claimed by 34", "35 created doomed unwanted",
		"38 destroyed making unwanted", "39 reserved making",
	}, members)

	ran, err := query(t.Context(), s.read, func(row scanner) (string, error) { // when VMs have run that stay
		var id, began, ended, doc string
		if err := row.Scan(&id, &began, &ended, &doc); err != nil {
			return "", err
		}
		var r job.VMRun
		err := json.Unmarshal([]byte(doc), &r)
		return strings.Join([]string{number(id), began[11:16], cmp.Or(ended, "runs"), cmp.Or(r.Of.Principal, "-"), r.Of.Template, strconv.Itoa(r.Resources.CPU), r.Resources.Memory}, " "), err
	}, `SELECT vm_id, began, ended, doc FROM vm_runs ORDER BY vm_id`)
	if err != nil {
		t.Error(err)
	}
	diff(t, []string{
		"10 12:10 runs alice agent-template 2 2G", "15 12:16 runs - agent-template 2 2G", "41 12:41 runs - agent-template 2 2G", "42 12:42 runs - agent-template 2 2G", "43 12:43 runs - agent-template 2 2G",
	}, ran)

	m, err := s.Manifest(t.Context(), id9(1))
	if err != nil || m.Task != "make test" || m.Resources.Memory != "2G" {
		t.Errorf("manifest: %+v, %v", m, err)
	}
	diff(t, []job.File{{Path: "/a", Content: "aGVsbG8=", Mode: "0600"}, {Path: "/b", Content: "AA=="}}, m.Files)
	if first, err := s.Submitted(t.Context(), "a key"); err != nil || first.ID != id9(1) {
		t.Errorf("the idempotency key is of job %s, %v", first.ID, err)
	}
	for n, want := range map[int]string{2: "hello\n", 22: "done\n"} {
		out, err := s.Output(t.Context(), id9(n), job.Stdout, 0, 100)
		if err != nil || string(out) != want {
			t.Errorf("output of job %d: %q, %v", n, out, err)
		}
	}
	artifact, err := s.OpenArtifact(t.Context(), id9(22), "dist/a.txt")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(artifact)
	if err := errors.Join(err, artifact.Close()); err != nil || string(data) != "artifact\n" {
		t.Errorf("artifact: %q, %v", data, err)
	}
	events, err := s.Events(t.Context(), id9(2), 0)
	if err != nil || len(events) != 4 || events[3].Text != "running" {
		t.Errorf("events: %v, %v", events, err)
	}
	if hash, err := s.TokenHash(t.Context(), id9(2)); err != nil || !strings.HasSuffix(hash, "0002") {
		t.Errorf("callback token: %q, %v", hash, err)
	}

	pools, err := s.Pools(t.Context())
	if err != nil || len(pools) != 1 || pools[0].Name != "ci" || pools[0].Hits != 7 || pools[0].Failure == nil {
		t.Errorf("pools: %+v, %v", pools, err)
	}
	tok, err := s.TokenByHash(t.Context(), strings.Repeat("8f", 32))
	if err != nil || tok.Name != "alice" || tok.Limits.VMs != 8 {
		t.Errorf("token: %+v, %v", tok, err)
	}
	tokens, err := s.Tokens(t.Context())
	toolsets := map[string]string{} // those that may have been a dispatcher's may be one
	for _, tok := range tokens {
		toolsets[tok.Name] = strings.Join(tok.Toolsets, " ")
	}
	if want := map[string]string{"alice": "jobs exec vm files admin dispatch", "bob": "jobs files dispatch", "carol": "jobs exec", "dave": "", "erin": ""}; err != nil || !maps.Equal(toolsets, want) {
		t.Errorf("tokens: %v, %v", toolsets, err)
	}
	messages, err := s.Webhooks(t.Context(), 10)
	if err != nil || len(messages) != 1 || messages[0].JobID != id9(22) {
		t.Errorf("webhooks: %+v, %v", messages, err)
	}
	nodes, err := s.Cordons(t.Context())
	if err != nil || !slices.Equal(nodes, []string{"pve3"}) {
		t.Errorf("cordoned: %v, %v", nodes, err)
	}
	if id, err := s.InstallationID(t.Context()); err != nil || id != "7c9e6679-7425-40de-944b-e07fc1f90ae7" {
		t.Errorf("installation: %s, %v", id, err)
	}
}

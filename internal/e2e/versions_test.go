package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

const nextVersion = "99.0.0"

// nextMigration is what a next version may do to the database: add to it.
const nextMigration = `-- +goose Up
ALTER TABLE jobs ADD COLUMN next_column TEXT;
CREATE TABLE next_things (job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, thing TEXT NOT NULL);
CREATE INDEX next_index ON jobs (next_column);
`

// nextLinus builds the next version of linus, whose schema is one migration ahead, and
// returns the directory it is in.
func nextLinus(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	migration := filepath.Join(dir, "next.sql")
	place, err := filepath.Abs("../store/migrations/postgres/00099_next.sql")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: migration}})
	if err == nil {
		err = os.WriteFile(migration, []byte(nextMigration), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags", "-X main.version="+nextVersion, "-o", dir+"/", "linus/cmd/linus")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

// An engine of the next version joins one of this version, and changes the schema under
// it. Both run jobs, each works on what was submitted at the other, and each takes over
// from the other; then this version starts no more.
func TestEngines_OfTwoVersions(t *testing.T) {
	loops.AtNightOnly(t, "TestEngines_OneIsKilledInTheMiddleOfAJob has one engine take over from another; TestOpen_StateOfSchema9 opens what another version has written")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Start(t).Database(t), "MAX_JOBS=1")
	l, c := newLedger(t), h.connect(t)
	works := make([]work, 8)
	for n := range works {
		works[n] = work{n: n, lines: 100, sleep: "1"}
	}
	works[0].sleep, works[6].sleep, works[7].sleep = "6", "8", "8"
	running := c.submit(script(l.task(works[0])))
	c.until(running, func(j map[string]any) bool { return j["status"] == "running" })

	next := h.machine(t, "next")
	next.next = filepath.Join(nextLinus(t), "linus")
	t.Cleanup(func() { next.stop(t) })
	seen := next.connect(t)
	if list := next.cli(t, "engine", "list"); strings.Count(list, "\n") != 3 || strings.Count(list, nextVersion) != 1 {
		t.Errorf("the engines:\n%s", list)
	}
	var ids []string // one slot each: some run here, some there
	for n := 1; n <= 5; n++ {
		at := []*mcpClient{c, seen}[n%2]
		ids = append(ids, at.submit(script(l.task(works[n]))))
	}
	seen.endsWhole(l, running, works[0])
	for i, id := range ids {
		[]*mcpClient{seen, c}[i%2].endsWhole(l, id, works[i+1])
	}
	for _, engine := range []*host{h, next} {
		if !engine.logs("msg=\"job done\"") {
			t.Errorf("the engine in %s has ended no job", engine.state)
		}
	}
	waits := script("read -r word")
	waits["stdin"] = "open"
	cancelled := c.submit(waits)
	c.until(cancelled, func(j map[string]any) bool { return j["status"] == "running" })
	seen.call("cancel_job", map[string]any{"job_id": cancelled})
	c.endsAs(cancelled, "failed", "cancelled")

	// Each has room for one of two jobs.
	taken := map[string]work{}
	for _, w := range works[6:] {
		taken[seen.submit(script(l.task(w)))] = w
	}
	for id := range taken {
		seen.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	}
	c.Close()
	if !h.killEngine() {
		t.Fatal("no engine of this version runs")
	}
	for id, w := range taken { // what this version has begun, the next one ends
		seen.endsWhole(l, id, w)
	}
	serve := exec.Command(h.linus(), "serve")
	serve.Env = h.env
	if out, err := serve.CombinedOutput(); err == nil || !strings.Contains(string(out), "was written by a newer linus") {
		t.Errorf("this version starts on the next one's database: %v\n%s", err, out)
	}
	next.waitGone(t)
}

package store

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/vm"
)

// filled is a state directory of schema 9 with newer jobs, output, artifacts and
// a pool in it.
func filled(t *testing.T) (dir string, open, sealed job.Job) {
	t.Helper()
	dir = state9(t, Options{Dir: t.TempDir()}).Dir
	s, err := Open(t.Context(), Options{Dir: dir, MaxOutput: 100})
	if err != nil {
		t.Fatal(err)
	}
	open, sealed = newJob("open \x00"), newJob("sealed")
	open.Manifest.Files = []job.File{{Path: "/a", Content: "aGk="}}
	insert(t, s, open)
	sealed.Principal = "alice"
	insert(t, s, sealed)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Update(t.Context(), open.ID, newToken("hash")))
	must(s.AppendOutput(t.Context(), open.ID, job.Stdout, 0, text(130)))
	must(s.AppendOutput(t.Context(), open.ID, job.Stderr, 0, text(7)))
	must(s.AppendOutput(t.Context(), sealed.ID, job.Stdout, 0, text(120)))
	must(sealOutput(t.Context(), s, sealed.ID, job.Stdout, 500, text(500)[400:]))
	must(nil, s.PutArtifact(t.Context(), sealed.ID, "empty", 0, nil))
	must(nil, s.PutArtifact(t.Context(), sealed.ID, "dir/large", 0, bytes.Repeat(text(230), 40000)))
	must(nil, s.PutArtifact(t.Context(), sealed.ID, strings.Repeat("long/", 200)+"name", 0, []byte("x")))
	must(s.InsertPool(t.Context(), job.Pool{Name: "small", AskedAt: at}))
	must(nil, s.InsertToken(t.Context(), job.Token{ID: "t1", TokenSpec: job.TokenSpec{Name: "alice", Role: job.RoleRun}}, "a hash"))
	must(nil, s.SetCordon(t.Context(), "pve2", true))
	must(nil, s.PutHostTest(t.Context(), job.HostTest{ID: "test", Node: "pve1"}))
	must(nil, s.KeepBranch(t.Context(), "branch", job.PushedBranch{Job: sealed.ID, Commit: "c", Next: "n"}))
	must(nil, s.InsertSaved(t.Context(), vm.SavedTemplate{ID: "saved", Name: "golden", Principal: "alice", DiskMB: 1}, job.Limits{}))
	must(nil, s.NoteBuild(t.Context(), "1", "note", "0"))
	for _, name := range []string{"drained", "served"} {
		must(s.ReportDispatcher(t.Context(), job.Dispatcher{Name: name, Queue: "q"}))
	}
	must(s.DrainDispatcher(t.Context(), nil, "drained", true))
	for range 3 {
		update(t, s, sealed.ID, count)
	}
	must(s.UpdateVM(t.Context(), member(t, s, "small", vm.MemberMaking).Job, func(*vm.VM) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventProgress, Text: "cloned"}}, nil
	}))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, open, sealed
}

// contents is all that a store says of its jobs.
func contents(t *testing.T, s *Store, artifacts map[string][]string) map[string]any {
	t.Helper()
	all := map[string]any{}
	note := func(name string, v any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		all[name] = v
	}
	id, err := s.InstallationID(t.Context())
	note("installation", id, err)
	pools, err := s.Pools(t.Context())
	note("pools", pools, err)
	token, err := s.TokenByHash(t.Context(), "a hash")
	note("token", token, err)
	cordons, err := s.Cordons(t.Context())
	note("cordons", cordons, err)
	tests, err := s.HostTests(t.Context())
	note("tests of the host", tests, err)
	branch, err := s.Branch(t.Context(), "branch")
	note("branch", branch, err)
	saved, err := s.SavedTemplates(t.Context())
	note("saved templates", saved, err)
	build, err := s.Build(t.Context(), "1")
	note("build", build, err)
	dispatchers, err := s.Dispatchers(t.Context())
	note("drained", slices.DeleteFunc(dispatchers, func(d job.Dispatcher) bool { return !d.Draining }), err)
	members, err := s.Members(t.Context())
	note("pools' VMs", members, err)
	for _, m := range members {
		told, err := s.VMEvents(t.Context(), m.Job)
		note(m.Job+" VM's events", told, err)
	}
	alices, err := s.List(t.Context(), job.Filter{Principal: "alice"})
	note("list of one principal", len(alices.Jobs), err)
	page, err := s.List(t.Context(), job.Filter{Limit: 200})
	for i := range page.Jobs {
		page.Jobs[i].Task = plain(page.Jobs[i].Task)
	}
	note("list", page, err)
	waiting, err := s.Waiting(t.Context())
	note("waiting", waiting, err)
	for _, j := range page.Jobs {
		of := func(what string) string { return j.ID + " " + what }
		found, err := s.Job(t.Context(), j.ID)
		note(of("job"), found, err)
		m, err := s.Manifest(t.Context(), j.ID)
		note(of("manifest"), m, err)
		events, err := s.Events(t.Context(), j.ID, 0)
		note(of("events"), events, err)
		hash, err := s.TokenHash(t.Context(), j.ID)
		note(of("token"), hash, err)
		for _, stream := range []string{job.Stdout, job.Stderr} {
			out, err := s.Output(t.Context(), j.ID, stream, 0, math.MaxInt64)
			note(of(stream), string(out), err)
		}
		for _, path := range artifacts[j.ID] {
			f, err := s.OpenArtifact(t.Context(), j.ID, path)
			if err != nil {
				t.Errorf("artifact %s: %v", path, err)
				continue
			}
			data, err := io.ReadAll(f)
			note(of(path), string(data), errors.Join(err, f.Close()))
		}
	}
	return all
}

func TestCopy_TakesAllToPostgres(t *testing.T) {
	url := pgtest.Database(t)
	dir, open, sealed := filled(t)
	artifacts := map[string][]string{sealed.ID: {"empty", "dir/large", strings.Repeat("long/", 200) + "name"}}
	source, err := Open(t.Context(), Options{Dir: dir, MaxOutput: 100})
	if err != nil {
		t.Fatal(err)
	}
	want := contents(t, source, artifacts)
	if err := source.Close(); err != nil {
		t.Fatal(err)
	}

	// Interrupted: the count of what was seen is not one.
	seen := filepath.Join(dir, jobsDir, open.ID, job.Stdout+seenSuffix)
	count, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	write(t, seen, "many")
	if _, err := Copy(t.Context(), Options{Dir: dir}, Options{URL: url}); err == nil || !strings.Contains(err.Error(), open.ID) {
		t.Fatalf("a copy of damaged files: %v", err)
	}
	if s, err := Open(t.Context(), Options{URL: url}); err == nil || !strings.Contains(err.Error(), "linus store migrate") {
		t.Errorf("half a copy can be opened: %v, %v", s, err)
	}
	other := t.TempDir()
	if err := openDirectory(t, other).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Copy(t.Context(), Options{Dir: other}, Options{URL: url}); err == nil || !strings.Contains(err.Error(), "another state directory") {
		t.Errorf("a second copy into half a one: %v", err)
	}
	write(t, seen, string(count))

	done, err := Copy(t.Context(), Options{Dir: dir}, Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if done.Jobs != 17 || done.Pools != 2 || done.Events < 3 || done.Bytes < 9200000 {
		t.Errorf("copied %+v", done)
	}
	target := openURL(t, url)
	diff(t, want, contents(t, target, artifacts))
	// Engines and their locks are not, and files are read from the directory.
	tables, err := query(t.Context(), target.read, scanValue[string], `SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema()`)
	if err != nil || len(tables) < 15 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	for _, name := range tables {
		of := func(t table) bool { return t.name == name }
		if !slices.ContainsFunc(slices.Concat(ofJobs, others), of) && !slices.Contains([]string{"engines", "locks", "job_data", "uploads", "upload_data", "goose_db_version"}, name) {
			t.Errorf("%s is not copied", name)
		}
	}
	if seen := appendOutput(t, target, open.ID, 130, text(140)[130:]); seen != 140 {
		t.Errorf("%d bytes of the open stream are seen", seen)
	}
	before, _ := target.Events(t.Context(), sealed.ID, 0)
	update(t, target, sealed.ID, func(*job.Job) ([]job.Event, error) { return []job.Event{{Kind: job.EventProgress}}, nil })
	if after, err := target.Events(t.Context(), sealed.ID, before[len(before)-1].Seq); err != nil || len(after) != 1 {
		t.Errorf("a new event is not behind the copied ones: %+v, %v", after, err)
	}

	if _, err := Copy(t.Context(), Options{Dir: dir}, Options{URL: url}); err == nil || !strings.Contains(err.Error(), "empty database") {
		t.Errorf("a copy into a database with jobs: %v", err)
	}
	if _, err := Copy(t.Context(), Options{Dir: filepath.Join(dir, "none")}, Options{URL: url}); err == nil {
		t.Error("a directory that is none was copied")
	}
}

// openDirectory opens a state directory, on SQLite.
func openDirectory(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

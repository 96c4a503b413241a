package executor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
)

// artifacts returns what a job's artifacts are, by path, and its warnings.
func (r *rig) artifacts(id string) (files map[string]string, warnings string) {
	r.t.Helper()
	j, err := r.Job(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	files = map[string]string{}
	for _, a := range j.Artifacts {
		f, about, err := r.OpenArtifact(context.Background(), id, a.Path)
		if err != nil {
			r.t.Fatal(err)
		}
		data, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil || about != a || int64(len(data)) != a.Size {
			r.t.Errorf("%s: %d bytes, %+v, %v", a.Path, len(data), about, err)
		}
		files[a.Path] = string(data)
	}
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, event := range events {
		if event.Kind == job.EventWarning {
			warnings += event.Text + "\n"
		}
	}
	return files, warnings
}

func wanting(patterns ...string) func(*job.Manifest) {
	return func(m *job.Manifest) { m.Artifacts = patterns }
}

func TestArtifacts_AreKeptOnSuccessAndFailure(t *testing.T) {
	big := string(counted(2<<20 + 11))
	for exit, name := range []string{"success", "failure"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.behave(providertest.Behaviour{Task: task(providertest.Task{
				ExitCode: exit, Artifacts: map[string][]byte{"dist/a b\n.txt": []byte("text"), "empty": nil, "big": []byte(big)},
			})}, true)
			id := r.submit(wanting("**"))
			r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
			files, warnings := r.artifacts(id)
			if len(files) != 3 || files["dist/a b_.txt"] != "text" || files["big"] != big || warnings != "" {
				t.Errorf("%d files, warnings %q", len(files), warnings)
			}
			r.wait(id)
			_, _, err := r.OpenArtifact(t.Context(), id, "other")
			refusal(t, err, `no artifact "other"`)
			if n, err := r.Cleanup(t.Context(), 0); n != 1 || err != nil {
				t.Errorf("%d jobs cleaned up, %v", n, err)
			}
			if _, err := r.store.OpenArtifact(t.Context(), id, "big"); !errors.Is(err, job.ErrNotFound) {
				t.Errorf("after the clean-up: %v", err)
			}
		})
	}
}

func TestArtifacts_AreNotLookedForWhereNobodyWaits(t *testing.T) {
	r := newRig(t, 3)
	do, _ := hold(t, providertest.Task{Artifacts: map[string][]byte{"a": []byte("x")}})
	r.behave(providertest.Behaviour{Task: do}, false)
	none, cancelled, killed := r.submit(), r.submit(wanting("a")), r.submit(wanting("a"))
	for _, id := range []string{none, cancelled, killed} {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	if err := r.Cancel(t.Context(), cancelled); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{none, killed} {
		if _, err := r.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]int{none: 0, cancelled: 0, killed: 1} {
		if j := r.wait(id); len(j.Artifacts) != want {
			t.Errorf("%s: artifacts %v", j.Outcome.Reason, j.Artifacts)
		}
	}
}

// vmFiles is a guest whose files are other than it says.
type vmFiles struct {
	executor.Runner

	found []job.FoundArtifact
	read  func(source string, offset, limit int64) ([]byte, error)
	reads atomic.Int32
}

func (v *vmFiles) Artifacts(context.Context, job.Job, job.ArtifactLimits) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	var skipped job.SkippedArtifacts
	skipped.Skip("dist/link", "a symlink leads outside")
	return v.found, skipped, nil
}

func (v *vmFiles) ReadArtifact(_ context.Context, _ job.Job, source string, offset, limit int64) ([]byte, error) {
	v.reads.Add(1)
	return v.read(source, offset, limit)
}

// file is one that a VM says it has, with what.
func file(path string, data []byte) job.FoundArtifact {
	return job.FoundArtifact{
		Artifact: job.Artifact{Path: path, Size: int64(len(data)), Mode: "0644", SHA256: sum(data)}, Source: "/srv/" + path,
	}
}

func (r *rig) inVM(v *vmFiles, limits job.ArtifactLimits) {
	r.t.Helper()
	r.stop()
	v.Runner, r.opts.Runner, r.opts.Artifacts = r.fake, v, limits
	r.restart()
	r.behave(providertest.Behaviour{}, true)
}

func TestArtifacts_OfAVMThatIsNotToBeBelieved(t *testing.T) {
	r := newRig(t, 1)
	lie := file("lie", []byte("what it says"))
	v := &vmFiles{
		found: []job.FoundArtifact{
			file("good", []byte("good")), file("good", []byte("twice")), lie, file("short", []byte("longer than it is")),
			file("good/under-a-file", []byte("x")), file("../escape", []byte("x")), file("/abs", []byte("x")),
			file("huge", bytes.Repeat([]byte("x"), 101)), file("second", []byte("second")), file("third", []byte("third")),
		},
		read: func(source string, offset, limit int64) ([]byte, error) {
			name := source[strings.LastIndexByte(source, '/')+1:]
			data := map[string]string{"good": "good", "lie": "what it is..", "short": "short", "second": "second", "third": "third"}[name]
			return []byte(data)[min(offset, int64(len(data))):min(offset+limit, int64(len(data)))], nil
		},
	}
	r.inVM(v, job.ArtifactLimits{Files: 2, Each: 100, All: 1000})
	id := r.submit(wanting("**"))
	if j := r.wait(id); j.Status != job.Success {
		t.Fatalf("the job is %s: %+v", j.Status, j.Outcome)
	}
	files, warnings := r.artifacts(id)
	if len(files) != 2 || files["good"] != "good" || files["second"] != "second" {
		t.Errorf("files %v", files)
	}
	for _, says := range []string{"dist/link: a symlink leads outside", "lie: it was changed", "short: it was changed", "good/under-a-file: ", "../escape: ", "/abs: ", "huge: beyond", "third: beyond"} {
		if !strings.Contains(warnings, "no artifact: "+says) {
			t.Errorf("no warning says %q:\n%s", says, warnings)
		}
	}
	if _, err := r.store.OpenArtifact(t.Context(), id, "lie"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was kept of a lie: %v", err)
	}
}

// The runner of a task that is root in its VM is the task's own: what it lists is matched again.
func TestArtifacts_AreOnlyWhatTheManifestAsksFor(t *testing.T) {
	r := newRig(t, 1)
	v := &vmFiles{read: func(string, int64, int64) ([]byte, error) { return []byte("x"), nil }}
	for _, name := range []string{".git/hooks/post-commit", ".envrc", "fix.patch", "fix.patch.sh", "sub/fix.patch", "repository.bundle"} {
		v.found = append(v.found, file(name, []byte("x")))
	}
	r.inVM(v, job.ArtifactLimits{})
	id := r.submit(wanting("fix.patch"))
	r.wait(id)
	files, warnings := r.artifacts(id)
	if len(files) != 1 || files["fix.patch"] != "x" || !strings.Contains(warnings, "no artifact: .git/hooks/post-commit: the manifest does not ask for it") || strings.Count(warnings, "does not ask") != 5 {
		t.Errorf("kept %v, warnings:\n%s", files, warnings)
	}
}

// A name that cannot be shown is shown as another, and must not be taken for that one.
func TestArtifacts_NamesWithControlCharactersTakeNoOthersPlace(t *testing.T) {
	r := newRig(t, 1)
	v := &vmFiles{read: func(source string, _, _ int64) ([]byte, error) { return []byte(source[len("/srv/"):]), nil }}
	for _, name := range []string{"c\ad", "c\x1bd", "c_d", "c_d_2", "c\td"} {
		v.found = append(v.found, file(name, []byte(name)))
	}
	r.inVM(v, job.ArtifactLimits{})
	id := r.submit(wanting("**"))
	r.wait(id)
	files, warnings := r.artifacts(id)
	if len(files) != 5 || files["c_d"] != "c_d" || files["c_d_2"] != "c_d_2" || strings.Contains(warnings, "no artifact: c") {
		t.Errorf("kept %q, warnings:\n%s", files, warnings)
	}
}

// Why a file was not kept is told without the engine's own paths.
func TestArtifacts_AFileAndADirectoryOfOneName(t *testing.T) {
	r := newRig(t, 1)
	v := &vmFiles{
		found: []job.FoundArtifact{file("d/x", []byte("x")), file("d", []byte("x")), file("d/x/y", []byte("x"))},
		read:  func(string, int64, int64) ([]byte, error) { return []byte("x"), nil },
	}
	r.inVM(v, job.ArtifactLimits{})
	id := r.submit(wanting("**"))
	r.wait(id)
	files, warnings := r.artifacts(id)
	if len(files) != 1 || files["d/x"] != "x" || !strings.Contains(warnings, "no artifact: d: another artifact has this name") || strings.Contains(warnings, r.dir) {
		t.Errorf("kept %q, warnings:\n%s", files, warnings)
	}
}

// Each file is within its limit, and the VM has not kept the one for all of them.
func TestArtifacts_TogetherStayWithinTheTotalLimit(t *testing.T) {
	r := newRig(t, 1)
	files := map[string]string{"six": "666666", "five": "55555", "four": "4444", "one": "1"}
	v := &vmFiles{read: func(source string, _, _ int64) ([]byte, error) {
		return []byte(files[strings.TrimPrefix(source, "/srv/")]), nil
	}}
	for _, name := range []string{"six", "five", "four", "one"} {
		v.found = append(v.found, file(name, []byte(files[name])))
	}
	r.inVM(v, job.ArtifactLimits{Files: 10, Each: 6, All: 10})
	id := r.submit(wanting("**"))
	r.wait(id)
	kept, warnings := r.artifacts(id)
	if len(kept) != 2 || kept["six"] != files["six"] || kept["four"] != files["four"] {
		t.Errorf("kept %v of 10 bytes", kept)
	}
	for _, name := range []string{"five", "one"} {
		if !strings.Contains(warnings, "no artifact: "+name+": beyond the limits") {
			t.Errorf("nothing says that %s was left out:\n%s", name, warnings)
		}
	}
}

func TestArtifacts_DamagedOnceAreReadAgain(t *testing.T) {
	r := newRig(t, 1)
	data := counted(100)
	v := &vmFiles{found: []job.FoundArtifact{file("a", data)}}
	v.read = func(string, int64, int64) ([]byte, error) {
		if v.reads.Load() == 1 {
			return bytes.ToUpper(append([]byte("x"), data[1:]...)), nil
		}
		return data, nil
	}
	r.inVM(v, job.ArtifactLimits{})
	id := r.submit(wanting("a"))
	r.wait(id)
	if files, warnings := r.artifacts(id); files["a"] != string(data) {
		t.Errorf("files %v, warnings %q", files, warnings)
	}
}

func TestArtifacts_GoOnAfterARestart(t *testing.T) {
	r := newRig(t, 1)
	first, second := counted(3<<20), counted(100)
	gate := make(chan struct{})
	stuck := make(chan struct{})
	v := &vmFiles{found: []job.FoundArtifact{file("first", first), file("second", second)}}
	v.read = func(source string, offset, limit int64) ([]byte, error) {
		if strings.HasSuffix(source, "second") {
			return second, nil
		}
		if v.reads.Load() == 3 { // the engine stops before the last third
			close(stuck)
			<-gate
			return nil, errUnreachable
		}
		return first[offset:min(offset+limit, int64(len(first)))], nil
	}
	r.inVM(v, job.ArtifactLimits{})
	id := r.submit(wanting("**"))
	<-stuck
	if j, err := r.Job(t.Context(), id); err != nil || j.Status.Terminal() {
		t.Errorf("terminal before its artifacts are kept: %+v, %v", j, err)
	}
	go close(gate)
	r.stop()
	r.restart()
	r.wait(id)
	if files, warnings := r.artifacts(id); files["first"] != string(first) || files["second"] != string(second) || strings.Contains(warnings, "first") {
		t.Errorf("%d and %d bytes, warnings %q", len(files["first"]), len(files["second"]), warnings)
	}
	if n := v.reads.Load(); n != 5 {
		t.Errorf("%d reads, want 5: two thirds and a failure, the last third, the second file", n)
	}
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// What linus run adds to a job is no artifact of it for anybody that asks the engine, and got by
// its name. Who asks for one that was left out is told why.
func TestArtifacts_OfARunAreNotOffered(t *testing.T) {
	r := newRig(t, 1)
	own := job.RunKept + "app-1/AB27.changes.tgz"
	r.inVM(&vmFiles{
		found: []job.FoundArtifact{file(own, []byte("x")), file("dist/x", []byte("x")), file("huge", []byte("xx")), file(job.RunKept+"huge", []byte("xx"))},
		read:  func(string, int64, int64) ([]byte, error) { return []byte("x"), nil },
	}, job.ArtifactLimits{Files: 10, Each: 1, All: 100})
	id := r.submit(wanting("**", job.RunKept+"**"))
	r.wait(id)
	e := executor.Guarded(r.Executor)
	ctx := job.WithPrincipal(t.Context(), job.Operator())
	j, err := e.Job(ctx, id)
	_, watched, werr := e.Watch(ctx, id, job.OnlyEnd)
	result, rerr := e.Result(ctx, id)
	if err := errors.Join(err, werr, rerr); err != nil {
		t.Fatal(err)
	}
	for _, j := range []job.Job{j, watched} {
		if len(j.Artifacts) != 1 || j.Artifacts[0].Path != "dist/x" || len(j.ArtifactsSkipped) != 2 || j.ArtifactsSkippedCount != 2 || j.ArtifactsSkipped[1].Path != "huge" {
			t.Errorf("%+v, left out: %+v", j.Artifacts, j.SkippedArtifacts)
		}
	}
	if page, err := e.List(ctx, job.Filter{}); err != nil || page.Jobs[0].Task != j.Task || j.Task == "" || watched.Task != j.Task {
		t.Errorf("the task is %q, in a list %+v, %v", j.Task, page, err)
	}
	if len(result.ArtifactsSkipped) != 2 || result.ArtifactsSkippedCount != 2 {
		t.Errorf("the result: %+v", result.SkippedArtifacts)
	}
	file, _, err := e.OpenArtifact(ctx, id, own)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	_, _, err = e.OpenArtifact(ctx, id, "huge")
	refusal(t, err, `no artifact "huge": beyond`)
	if strings.Contains(err.Error(), job.RunKept) {
		t.Errorf("it names a run's: %v", err)
	}
}

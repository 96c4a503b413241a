package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

const filesHash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// newBuildLab is a lab whose VMs do the steps of builds: RUN fail fails, RUN wait waits, others say hello.
func newBuildLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	l.Files = t.TempDir()
	l.Uploads = &shelves{dir: l.Files}
	l.holds["root"] = true
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		line, rest, _ := strings.Cut(read(r.Body), "\n")
		var step envd.Step
		_ = json.Unmarshal([]byte(line), &step)
		say := func(said envd.Said) { _ = json.NewEncoder(w).Encode(said) }
		switch {
		case slices.Contains(step.Args, "fail"):
			say(envd.Said{Error: "it \x1b[31mfailed"})
			return
		case slices.Contains(step.Args, "wait"):
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		case slices.Contains(step.Args, "rubbish"):
			_, _ = io.WriteString(w, "rubbish\n")
			return
		}
		if step.Type != "" {
			say(envd.Said{Text: "hello from " + step.Type + " " + rest})
		}
		say(envd.Said{Template: &envd.Template{Workdir: "/after " + step.Type}})
	}
	return l
}

func read(from io.Reader) string { data, _ := io.ReadAll(from); return string(data) }

// request asks for a build, and returns where it is.
func (l *lab) request(t *testing.T, key, name string) string {
	t.Helper()
	code, _, text := l.ask(t, key, http.MethodPost, "/v3/templates", `{"name":"`+name+`","cpuCount":2}`)
	var made struct{ TemplateID, BuildID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusAccepted {
		t.Fatal(code, text, err)
	}
	return "/templates/" + made.TemplateID + "/builds/" + made.BuildID
}

// ended waits for the end of a build, and returns how it was and what it said.
func (l *lab) ended(t *testing.T, at string) (status, why, step, logs string) {
	t.Helper()
	for range 500 {
		code, _, text := l.ask(t, "e2b_ee", http.MethodGet, at+"/status", "")
		var is struct {
			Status string
			Logs   []string
			Reason struct{ Message, Step string }
		}
		if err := json.Unmarshal([]byte(text), &is); err != nil || code != http.StatusOK {
			t.Fatal(code, text, err)
		}
		if is.Status == "ready" || is.Status == "error" {
			l.builds.running.Wait() // what is noted of it for other engines, too
			return is.Status, is.Reason.Message, is.Reason.Step, strings.Join(is.Logs, "\n")
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the build does not end")
	return
}

func (l *lab) destroyed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !slices.ContainsFunc(l.vms, func(v vm.VM) bool { return !v.Unwanted })
}

func TestBuild_IsAVMItsStepsAndASave(t *testing.T) {
	l := newBuildLab(t)
	at := l.request(t, "e2b_ee", "built")
	code, _, text := l.ask(t, "e2b_ee", http.MethodGet, "/templates/built/files/"+filesHash, "")
	var link struct {
		Present bool
		URL     string
	}
	if err := json.Unmarshal([]byte(text), &link); err != nil || code != http.StatusCreated || link.Present {
		t.Fatal(code, text, err)
	}
	recipe := `{"fromTemplate":"other","steps":[{"type":"RUN","args":["true"]},{"type":"COPY","args":["a","b"],"filesHash":"` + filesHash + `"}],"startCmd":"serve","readyCmd":"true"}`
	if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, recipe); code != http.StatusBadRequest || !strings.Contains(text, "the files of step 2 are not there") {
		t.Errorf("without its files: %d %s", code, text)
	}
	if code, _, text := l.send(t, http.MethodPut, strings.TrimPrefix(link.URL, l.url), "the archive"); code != http.StatusOK {
		t.Fatal(code, text)
	}
	if _, _, text := l.ask(t, "e2b_ee", http.MethodGet, "/templates/built/files/"+filesHash, ""); !strings.Contains(text, `"present":true`) {
		t.Errorf("afterwards: %s", text)
	}
	l.saves = func(name string) { l.removed = append(l.removed, "saved "+name) }
	if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, recipe); code != http.StatusAccepted {
		t.Fatal(code, text)
	}
	status, why, _, logs := l.ended(t, at)
	if status != "ready" || !strings.Contains(logs, "hello from RUN") || !strings.Contains(logs, "hello from COPY the archive") || !strings.Contains(logs, "starting serve") {
		t.Errorf("%s %s\n%s", status, why, logs)
	}
	if v := l.vms[0]; !strings.HasPrefix(v.Name, "build-") || !v.Own.Sandbox.Build || v.ExpiresAt.After(time.Now().Add(buildLease*time.Second)) {
		t.Errorf("its VM was %+v", v)
	}
	if !slices.Equal(l.inits, []string{"{}", `{"template":{"workdir":"/after COPY","start":"serve","ready":"true"}}`}) || !slices.Equal(l.removed, []string{"saved built"}) || !l.destroyed() {
		t.Errorf("told %q, did %q", l.inits, l.removed)
	}
	if code, _, _ := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, recipe); code != http.StatusConflict {
		t.Errorf("twice: %d", code)
	}
	// One that was built before is replaced.
	l.removed = nil
	at = l.request(t, "e2b_ee", "saved")
	l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{"fromImage":"e2bdev/base:latest"}`)
	if status, why, _, _ := l.ended(t, at); status != "ready" || !slices.Equal(l.removed, []string{"saved saved-next", "saved", "saved-next is saved"}) {
		t.Errorf("%s %s: %q", status, why, l.removed)
	}
}

// A template that is built with more than the defaults is what its sandboxes have; less is the defaults.
func TestBuild_HasItsSize(t *testing.T) {
	l := newBuildLab(t)
	l.Defaults.CPU, l.Defaults.Memory = 2, "2G"
	for _, c := range []struct {
		size  string
		wants vm.Resources
	}{{`"cpuCount":8,"memoryMB":16384`, vm.Resources{CPU: 8, Memory: "16384M"}}, {`"cpuCount":1,"memoryMB":512`, vm.Resources{}}} {
		code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"built",`+c.size+`}`)
		var made struct{ BuildID string }
		if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusAccepted {
			t.Fatal(code, text, err)
		}
		at := "/templates/built/builds/" + made.BuildID
		if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{}`); code != http.StatusAccepted {
			t.Fatal(code, text)
		}
		if status, why, _, _ := l.ended(t, at); status != "ready" {
			t.Fatal(status, why)
		}
		l.create(t, "e2b_ee", `{"templateID":"built:v1"}`)
		if diff := cmp.Diff([]vm.Resources{c.wants, c.wants}, l.sizes[len(l.sizes)-2:]); diff != "" {
			t.Errorf("%s: the sizes of its VM and of a sandbox (-want +got):\n%s", c.size, diff)
		}
		if _, _, text := l.ask(t, "e2b_ee", http.MethodGet, "/templates", ""); !strings.Contains(text, fmt.Sprintf(`"templateID":"built","buildID":"built","cpuCount":%d`, max(c.wants.CPU, 2))) {
			t.Errorf("%s: it is listed as %s", c.size, text)
		}
	}
	for _, size := range []string{`"cpuCount":33`, `"memoryMB":600000`, `"cpuCount":-1`} {
		if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"built",`+size+`}`); code != http.StatusBadRequest || !strings.Contains(text, "out of range") {
			t.Errorf("%s: %d %s", size, code, text)
		}
	}
}

// Wherever a build ends that takes a template's place, one of the two is there, and what it has begun
// is gone on with.
func TestBuild_KeepsTheOldOneUntilTheNewOneIsThere(t *testing.T) {
	names := func(l *lab) (names []string) {
		for _, v := range l.shelf[1:] {
			names = append(names, v.Name+" of "+v.Provenance.VM[:3])
		}
		return names
	}
	again := func(t *testing.T, l *lab) {
		t.Helper()
		at := l.request(t, "e2b_ee", "saved")
		l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{}`)
		if status, why, _, _ := l.ended(t, at); status != "ready" || !slices.Equal(names(l), []string{"saved of bui"}) {
			t.Errorf("the next build: %s %s, %q", status, why, names(l))
		}
	}
	for name, c := range map[string]struct {
		breaks         func(*lab)
		left, finished []string
	}{
		"the save": {func(l *lab) {
			l.broken = func(_ context.Context, v *job.Verb) error {
				if v.Name == "SaveVM" {
					return fmt.Errorf("broken")
				}
				return nil
			}
		}, []string{"saved of one"}, []string{"saved of one"}},
		"the removal": {func(l *lab) { l.RemoveTemplate = func(context.Context, string) error { return fmt.Errorf("broken") } },
			[]string{"saved of one", "saved-next of bui"}, []string{"saved of one", "saved-next of bui"}},
		"the renaming": {func(l *lab) {
			l.RenameTemplate = func(context.Context, string, string) error { return fmt.Errorf("broken") }
		},
			[]string{"saved-next of bui"}, []string{"saved of bui"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newBuildLab(t)
			whole := l.Options
			c.breaks(l)
			at := l.request(t, "e2b_ee", "saved")
			l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{}`)
			if status, why, _, _ := l.ended(t, at); status != "error" || !strings.Contains(why, "broken") || !slices.Equal(names(l), c.left) || !l.destroyed() {
				t.Errorf("%s %s: %q, want %q", status, why, names(l), c.left)
			}
			l.Options, l.broken = whole, nil
			l.finishBuilds(t.Context()) // as when the next engine starts
			if !slices.Equal(names(l), c.finished) {
				t.Errorf("the next engine: %q, want %q", names(l), c.finished)
			}
			again(t, l)
		})
	}
	t.Run("the next build goes on by itself", func(t *testing.T) {
		l := newBuildLab(t)
		l.shelf[1] = vm.VM{Name: "saved-next", Provenance: &vm.Provenance{VM: "build-x"}}
		l.rows = []vm.SavedTemplate{{Name: "saved-next", Client: client, Build: "build-x"}}
		again(t, l)
	})
	t.Run("one that a person has saved stays, whatever its VM was called, and no build begins that could not end", func(t *testing.T) {
		l := newBuildLab(t)
		l.shelf[1] = vm.VM{Name: "saved-next", Provenance: &vm.Provenance{VM: "build-x"}}
		if l.finishBuilds(t.Context()); !slices.Equal(names(l), []string{"saved-next of bui"}) {
			t.Errorf("%q", names(l))
		}
		l.shelf = append(l.shelf, vm.VM{Name: "saved", Provenance: &vm.Provenance{VM: "one"}})
		l.templates.forget()
		if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"saved"}`); code != http.StatusConflict || !strings.Contains(text, "saved-next was not made by a build") {
			t.Errorf("%d %s", code, text)
		}
	})
}

// What another engine builds it also puts in its place: nobody else takes that for what an interrupted
// build has left, and removes what has just got the name.
func TestBuild_OfANameIsOneEnginesAtATime(t *testing.T) {
	l := newBuildLab(t)
	l.shelf[1] = vm.VM{Name: "saved-next", Provenance: &vm.Provenance{VM: "build-x"}}
	l.rows = []vm.SavedTemplate{{Name: "saved-next", Client: client, Build: "build-x"}}
	l.locks["saved"] = "another engine"
	at := l.request(t, "e2b_ee", "saved")
	l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{}`)
	if status, why, _, _ := l.ended(t, at); status != "error" || !strings.Contains(why, "another engine has it") || len(l.vms) > 0 {
		t.Errorf("%s %s; %d VMs", status, why, len(l.vms))
	}
	if l.finishBuilds(t.Context()); len(l.removed) > 0 {
		t.Errorf("done meanwhile: %q", l.removed)
	}
	clear(l.locks)
	if l.finishBuilds(t.Context()); !slices.Equal(l.removed, []string{"saved-next is saved"}) {
		t.Errorf("then: %q", l.removed)
	}
	at = l.request(t, "e2b_ee", "saved")
	l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{}`)
	if status, why, _, _ := l.ended(t, at); status != "ready" || len(l.locks) > 0 {
		t.Errorf("%s %s; %v", status, why, l.locks)
	}
}

func TestBuild_ThatFailsLeavesNoVM(t *testing.T) {
	l := newBuildLab(t)
	for _, c := range []struct {
		name, recipe, why, step string
		broken                  string
	}{
		{"a step", `{"steps":[{"type":"RUN","args":["true"]},{"type":"RUN","args":["fail"]},{"type":"RUN","args":["true"]}]}`, "it failed", "2", ""},
		{"rubbish", `{"steps":[{"type":"RUN","args":["rubbish"]}]}`, `the program in the VM answered "rubbish"`, "1", ""},
		{"no VM", `{}`, "broken", "base", "CreateVM"},
		{"no save", `{}`, "broken", "finalize", "SaveVM"},
	} {
		l.broken = func(_ context.Context, v *job.Verb) error {
			if v.Name == c.broken {
				return fmt.Errorf("broken")
			}
			return nil
		}
		at := l.request(t, "e2b_ee", "built")
		if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, c.recipe); code != http.StatusAccepted {
			t.Fatal(code, text)
		}
		if status, why, step, _ := l.ended(t, at); status != "error" || !strings.Contains(why, c.why) || step != c.step {
			t.Errorf("%s: %s %q at %s", c.name, status, why, step)
		}
		if !l.destroyed() {
			t.Errorf("%s: its VM is left", c.name)
		}
	}
	l.broken = nil
	at := l.request(t, "e2b_ee", "built")
	l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, `{"steps":[{"type":"RUN","args":["wait"]}]}`)
	if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+l.request(t, "e2b_ee", "built"), `{}`); code != http.StatusConflict || !strings.Contains(text, "being built already") {
		t.Errorf("beside another: %d %s", code, text)
	}
	l.builds.close()
	if status, why, _, _ := l.ended(t, at); status != "error" || !strings.Contains(why, "the engine stops") || !l.destroyed() {
		t.Errorf("as the engine stops: %s %q", status, why)
	}
}

// Whichever engine is asked says how a build is, and starts one that was asked for at another.
func TestBuild_IsKnownToAllEngines(t *testing.T) {
	l := newBuildLab(t)
	other := &lab{server: newServer(l.Options)}
	front := httptest.NewServer(other.server)
	defer front.Close()
	other.url = front.URL
	at := other.request(t, "e2b_ee", "built")
	id := at[strings.LastIndex(at, "/")+1:]
	says := func(of *lab, code int, want string) {
		t.Helper()
		if got, _, text := of.ask(t, "e2b_ee", http.MethodGet, at+"/status", ""); got != code || !strings.Contains(text, want) {
			t.Errorf("%d %s, want %d with %s", got, text, code, want)
		}
	}
	says(l, 200, `"waiting"`)
	recipe := `{"steps":[{"type":"RUN","args":["wait"]}]}`
	if code, _, text := l.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, recipe); code != http.StatusAccepted {
		t.Fatal(code, text)
	}
	says(other, 200, `"building"`)
	if code, _, text := other.ask(t, "e2b_ee", http.MethodPost, "/v2"+at, recipe); code != http.StatusConflict {
		t.Errorf("a second start: %d %s", code, text)
	}
	// What it says is known, too, while it goes on: from the same line on, by the same number of lines.
	tells := func(of *lab, from int) string {
		_, _, text := of.ask(t, "e2b_ee", http.MethodGet, fmt.Sprintf("%s/status?logsOffset=%d", at, from), "")
		return text
	}
	for begun := time.Now(); !strings.Contains(tells(l, 0), "making a VM") && time.Since(begun) < time.Minute; {
		time.Sleep(time.Millisecond)
	}
	b := l.builds.find(id)
	for n := range 5 * maxTold / 2 {
		l.builds.say(b, "1", "info", fmt.Sprintf("line %d", n))
	}
	for _, from := range []int{0, 1, maxTold, 2*maxTold - 1, 5 * maxTold / 2, 9 * maxTold, 1<<30 - 1} {
		want, got := "", "nothing"
		for begun := time.Now(); got != want && time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
			want, got = tells(l, from), tells(other, from)
		}
		if got != want || !strings.Contains(got, `"building"`) || from == 0 && !strings.Contains(got, "making a VM") {
			t.Errorf("from line %d on another engine says\n%s\nand its own\n%s", from, got, want)
		}
	}
	// A piece that is noted whole only as the next one is read lacks no line: those are told together the next time.
	text, err := l.Build(t.Context(), pieceOf(id, 0))
	lines := []logLine{}
	if err := errors.Join(err, json.Unmarshal([]byte(text), &lines)); err != nil || len(lines) != maxTold {
		t.Fatalf("%d lines are noted, %v", len(lines), err)
	}
	short, err := json.Marshal(lines[:maxTold-1])
	if err := errors.Join(err, l.NoteBuild(t.Context(), pieceOf(id, 0), string(short), "")); err != nil {
		t.Fatal(err)
	}
	if got := tells(other, 1); strings.Count(got, `"timestamp"`) != maxTold-2 {
		t.Errorf("the last of a piece is not there yet: %s", got)
	}
	noted := func(change func(*buildNote)) {
		t.Helper()
		text, err := l.Build(t.Context(), id)
		var note buildNote
		if err == nil {
			err = json.Unmarshal([]byte(text), &note)
		}
		change(&note)
		changed, encoding := json.Marshal(note)
		if err := errors.Join(err, encoding, l.NoteBuild(t.Context(), id, string(changed), "")); err != nil {
			t.Fatal(err)
		}
	}
	noted(func(b *buildNote) { b.At = b.At.Add(-2 * buildLease * time.Second) })
	says(other, 200, "the engine that built it has ended")
	noted(func(b *buildNote) { b.Owner = "somebody" })
	says(other, 404, "no such build")
	l.builds.close()
	if status, why, _, logs := other.ended(t, at); status != "error" || !strings.Contains(why, "the engine stops") || !strings.Contains(logs, "making a VM") {
		t.Errorf("%s %q\n%s", status, why, logs)
	}
}

// What another engine has just built is there, though the templates were asked for before.
func TestTemplates_BuiltByAnotherEngineExist(t *testing.T) {
	l := newLab(t)
	exists := func() int {
		code, _, _ := l.ask(t, "e2b_ee", http.MethodGet, "/templates/aliases/built", "")
		return code
	}
	if code := exists(); code != http.StatusNotFound {
		t.Fatal(code)
	}
	l.shelf = append(l.shelf, vm.VM{Name: "built"})
	code := exists()
	for begun := time.Now(); code != http.StatusOK && time.Since(begun) < templatesTime/2; code = exists() {
		time.Sleep(l.bounds.links)
	}
	if code != http.StatusOK {
		t.Error(code)
	}
}

func TestBuild_IsRefused(t *testing.T) {
	l := newBuildLab(t)
	at := l.request(t, "e2b_ee", "built")
	for _, c := range []struct {
		name, key, method, path, body, says string
		code                                int
	}{
		{"by another's role", "e2b_aa", http.MethodPost, "/v3/templates", `{"name":"x"}`, "role admin", 403},
		{"a name", "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"../x"}`, "is not a template's name", 400},
		{"a name of one that takes another's place", "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"x-next"}`, "another end", 400},
		{"a name that leaves no room for that", "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"` + strings.Repeat("x", 59) + `"}`, "at most 58", 400},
		{"one that was not saved", "e2b_ee", http.MethodPost, "/v3/templates", `{"name":"agent-template"}`, "choose another name", 409},
		{"the first version", "e2b_ee", http.MethodPost, "/templates", `{"dockerfile":"FROM x"}`, "e2b template create", 400},
		{"an image", "e2b_ee", http.MethodPost, "/v2" + at, `{"fromImage":"python:3"}`, "linus template build", 400},
		{"many steps", "e2b_ee", http.MethodPost, "/v2" + at, `{"steps":[` + strings.Repeat("{},", maxSteps) + `{}]}`, "at most", 400},
		{"a path as files", "e2b_ee", http.MethodPost, "/v2" + at, `{"steps":[{"type":"COPY","filesHash":"../../x"}]}`, "are not there", 400},
		{"a path as a hash", "e2b_ee", http.MethodGet, "/templates/built/files/..", "", "is not a SHA-256", 400},
		{"another name", "e2b_ee", http.MethodGet, strings.Replace(at, "built", "other", 1) + "/status", "", "no such build", 404},
		{"what is unknown", "e2b_ee", http.MethodGet, at + "/x", "", "linus help e2b", 404},
		{"a line", "e2b_ee", http.MethodGet, at + "/status?logsOffset=-1", "", "logsOffset", 400},
	} {
		code, _, text := l.ask(t, c.key, c.method, c.path, c.body)
		if code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d with %q", c.name, code, text, c.code, c.says)
		}
	}
	if len(l.vms) > 0 {
		t.Error("there are VMs")
	}
}

func TestUpload_NeedsItsLink(t *testing.T) {
	l := newBuildLab(t)
	_, _, text := l.ask(t, "e2b_ee", http.MethodGet, "/templates/built/files/"+filesHash, "")
	var link struct{ URL string }
	if err := json.Unmarshal([]byte(text), &link); err != nil {
		t.Fatal(err)
	}
	path := strings.TrimPrefix(link.URL, l.url)
	for name, other := range map[string]string{
		"another hash": strings.Replace(path, "0123", "3210", 1), "another time": strings.Replace(path, "until=1", "until=2", 1),
		"nothing": uploads + "x", "another's": strings.Replace(path, shelfOf(""), shelfOf("ann"), 1),
	} {
		if code, _, text := l.send(t, http.MethodPut, other, "x"); code != http.StatusForbidden && other != path {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, _, _ := l.send(t, http.MethodPut, path, ""); code != http.StatusRequestEntityTooLarge {
		t.Errorf("without a length: %d", code)
	}
	l.Spare = func() error { return &job.OwnFault{Err: errors.New("the disk is for jobs")} }
	if code, _, text := l.send(t, http.MethodPut, path, "x"); code != http.StatusServiceUnavailable || !strings.Contains(text, "the disk is for jobs") {
		t.Errorf("where the rest of the disk is for jobs: %d %s", code, text)
	}
	l.Spare = nil
	// There is no room, until what is old has gone.
	dir := filepath.Join(l.Files, shelfOf(keys["e2b_ee"].Owner()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(full, maxUploads); err != nil {
		t.Skip(err)
	}
	if code, _, text := l.send(t, http.MethodPut, path, "x"); code != http.StatusInsufficientStorage {
		t.Errorf("without room: %d %s", code, text)
	}
	old := time.Now().Add(-2 * uploadTime)
	if err := os.Chtimes(full, old, old); err != nil {
		t.Fatal(err)
	}
	if code, _, text := l.send(t, http.MethodPut, path, "x"); code != http.StatusOK {
		t.Errorf("afterwards: %d %s", code, text)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Error(left, err)
	}
}

package executor_test

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/secret"
	"linus/internal/vm"
)

const planted = "S3cret-of-the-Test"

// source knows secrets by name, and can forget them.
type source struct {
	mu     sync.Mutex
	values map[string]string
}

func (s *source) resolve(names []string) ([]secret.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var o secret.Options
	for name, value := range s.values {
		o.Environment = append(o.Environment, secret.NewValue(name, value))
	}
	return secret.New(o).Resolve(names)
}

func (s *source) set(values map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = values
}

// withSecrets is a rig whose engine knows secrets; nothing of planted may be in
// its store at the end of the test.
func withSecrets(t *testing.T, maxJobs int, values map[string]string) (*rig, *source) {
	t.Helper()
	r := newRig(t, maxJobs)
	s := &source{values: values}
	r.stop()
	r.opts.Secrets = s.resolve
	r.restart()
	t.Cleanup(func() { notIn(t, r.dir, planted) })
	return r, s
}

// notIn fails when a file below dir has the text in it.
func notIn(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func naming(names ...string) func(*job.Manifest) {
	return func(m *job.Manifest) { m.Secrets = names }
}

var stars = strings.Repeat("*", len(planted))

func TestSecrets_AreDeliveredAndNotKept(t *testing.T) {
	r, _ := withSecrets(t, 1, map[string]string{"KEY": planted})
	var got map[string]string
	long := bytes.Repeat([]byte("0123456 "+planted+" 789\n"), maxOutput/8)
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		got = p.Secrets
		return providertest.Task{Stdout: long, Stderr: []byte("fatal: " + planted), ExitCode: 1}
	}}, true)
	id := r.submit(naming("KEY"))
	r.wait(id)
	if got["KEY"] != planted {
		t.Errorf("the task got %v", got)
	}
	result, err := r.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.ReplaceAll(long, []byte(planted), []byte(stars))
	half := maxOutput / 2
	if !bytes.HasPrefix(result.Stdout, want[:half]) || !bytes.HasSuffix(result.Stdout, want[len(want)-half:]) {
		t.Errorf("head and tail differ: %q ... %q", result.Stdout[:60], result.Stdout[len(result.Stdout)-60:])
	}
	if string(result.Stderr) != "fatal: "+stars {
		t.Errorf("stderr %q", result.Stderr)
	}
}

func TestSecrets_UnknownOnesAreRefused(t *testing.T) {
	r, _ := withSecrets(t, 1, map[string]string{"KEY": planted, "SHORT": "abc"})
	for name, says := range map[string]string{"OTHER": `"OTHER" is not known`, "SHORT": "shorter than 4 bytes"} {
		_, err := r.Submit(t.Context(), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, Secrets: []string{name}}})
		refusal(t, err, says)
	}
}

// An agent's key is a credential of its job wherever the VM can do without it, and a secret
// elsewhere, for those who may name it.
func TestSecrets_AgentsGetTheirKeys(t *testing.T) {
	const key, claude = "ANTHROPIC_API_KEY", "claude@api.anthropic.com"
	gateway := map[string]string{"ANTHROPIC_BASE_URL": "http://10.0.0.5:4000"}
	run := func(secrets ...string) job.Principal {
		return job.Principal{Name: "ada", Role: job.RoleRun, Secrets: secrets}
	}
	admin := job.Principal{Name: "root", Role: job.RoleAdmin}
	for name, tt := range map[string]struct {
		has        string // the secret that the engine has
		change     func(*job.Manifest)
		of         job.Principal
		credential string // that the job gets
		secret     string
	}{
		"by itself":         {key, nil, job.Operator(), claude, ""},
		"as codex does":     {"OPENAI_API_KEY", func(m *job.Manifest) { m.AgentType = "codex" }, job.Operator(), "codex@api.openai.com", ""},
		"and gemini":        {"GEMINI_API_KEY", func(m *job.Manifest) { m.AgentType = "gemini" }, admin, "gemini@generativelanguage.googleapis.com", ""},
		"with egress allow": {key, func(m *job.Manifest) { m.Network.Egress = vm.EgressAllow }, job.Operator(), claude, ""},
		"once more":         {key, func(m *job.Manifest) { m.Credentials = []string{claude} }, run("ANTHROPIC_*"), claude, ""},
		"for its own host": {key, func(m *job.Manifest) {
			m.Credentials, m.Env = []string{claude}, map[string]string{"ANTHROPIC_BASE_URL": "https://gw.example/x"}
		}, job.Operator(), "claude@gw.example/x", ""},
		"not where its env has one":       {key, func(m *job.Manifest) { m.Env = map[string]string{key: "other"} }, job.Operator(), "", ""},
		"not where nobody has one":        {"KEY", nil, job.Operator(), "", ""},
		"and nobody else does":            {key, func(m *job.Manifest) { m.AgentType = job.AgentScript }, job.Operator(), "", ""},
		"nor whose token names no secret": {key, nil, run(), "", ""},
		"nor whose token names others":    {key, nil, job.Principal{Name: "ada", Role: job.RoleAdmin, Secrets: []string{"CI_*"}}, "", ""},
		"whose token names it":            {key, nil, run("ANTHROPIC_*"), claude, ""},
		"an admin's, who may name all":    {key, nil, admin, claude, ""},
		"named, it is in the VM":          {key, naming(key), job.Operator(), "", key},
		"and where no proxy is asked":     {key, func(m *job.Manifest) { m.Env = gateway }, job.Operator(), "", key},
		"for a token, too":                {key, func(m *job.Manifest) { m.Env = gateway }, run("ANTHROPIC_*"), "", key},
		"and where nothing is reached":    {key, func(m *job.Manifest) { m.Network.Egress = vm.EgressNone }, job.Operator(), "", key},
		"in such a VM, too":               {key, func(m *job.Manifest) { m.VM, m.VMTemplate = "closed", "" }, job.Operator(), "", key},
		"and not in another one":          {key, func(m *job.Manifest) { m.VM, m.VMTemplate = "open", "" }, job.Operator(), claude, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := withSecrets(t, 1, map[string]string{tt.has: planted})
			if tt.change == nil {
				tt.change = func(*job.Manifest) {}
			}
			r.makeVM("closed", func(m *job.Manifest) { m.Network.Egress = vm.EgressNone })
			r.makeVM("open")
			var got job.Payload
			r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
				if got = p; len(p.Manifest.Credentials) > 0 { // then the engine has it, and hides it
					return providertest.Task{Stdout: []byte("a copy of " + planted)}
				}
				return providertest.Task{}
			}}, true)
			id := r.submitAs(job.WithPrincipal(t.Context(), tt.of), func(m *job.Manifest) { m.AgentType = job.AgentClaude }, tt.change)
			r.wait(id)
			if names := strings.Join(got.Manifest.Credentials, " "); names != tt.credential {
				t.Errorf("credentials %q, want %q", names, tt.credential)
			}
			if names := strings.Join(slices.Sorted(maps.Keys(got.Secrets)), " "); names != tt.secret {
				t.Errorf("secrets %q, want %q", names, tt.secret)
			}
			if tt.credential == "" {
				return
			}
			c, _ := job.KeyCredential(tt.credential)
			if got.Manifest.Env[c.Env] != "linus-credential-"+tt.credential || got.Manifest.Env["HTTPS_PROXY"] == "" || !got.Trusts {
				t.Errorf("env %v", got.Manifest.Env)
			}
			if result, err := r.Result(t.Context(), id); err != nil || string(result.Stdout) != "a copy of "+stars {
				t.Errorf("what the VM has from elsewhere is told: %q, %v", result.Stdout, err)
			}
		})
	}
}

// However a runner cuts what it sends, and wherever it is gone on from over SSH,
// nothing of the secret is held, and everything else is, in its place.
func TestSecrets_SplitOverWrites(t *testing.T) {
	loops.NotInCheck(t)
	stream := []byte("ab" + planted + planted + "S3cret-no\n" + planted[:7])
	want := []byte("ab" + stars + stars + "S3cret-no\n" + planted[:7])
	r, _ := withSecrets(t, len(stream), map[string]string{"KEY": planted})
	var mu sync.Mutex
	tokens := map[string]string{}
	do, release := hold(t, providertest.Task{Stdout: stream})
	r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(j job.Job, p job.Payload) {
		mu.Lock()
		defer mu.Unlock()
		tokens[j.ID] = p.Token
	}})
	ids := map[int]string{}
	for step := 1; step < len(stream); step += 3 {
		ids[step] = r.submit(naming("KEY"))
	}
	for step, id := range ids {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
		mu.Lock()
		token := tokens[id]
		mu.Unlock()
		var at int64
		for sent := step; sent < len(stream); sent += step { // as far as it is written, what was not taken again
			next, err := r.AppendOutput(t.Context(), id, token, job.Stdout, at, stream[at:sent])
			if err != nil || next < at || next > int64(sent) {
				t.Fatal(next, err)
			}
			at = next
		}
		held, err := r.store.Output(t.Context(), id, job.Stdout, 0, 1000)
		if err != nil || !bytes.HasPrefix(want, held) || int64(len(held)) != at {
			t.Errorf("by %d: %q is held, %v", step, held, err)
		}
		for offset := range stream { // what could be a secret's beginning waits
			c, err := r.Output(t.Context(), id, job.Stdout, int64(offset), int64(step))
			if err != nil || !bytes.HasPrefix(want[offset:], c.Data) || len(c.Data) < min(step, len(stream)-7-offset) {
				t.Fatalf("%d from %d: %q, %v", step, offset, c.Data, err)
			}
		}
	}
	release()
	for step, id := range ids {
		r.wait(id)
		if result, err := r.Result(t.Context(), id); err != nil || !bytes.Equal(result.Stdout, want) {
			t.Errorf("by %d: %q, %v", step, result.Stdout, err)
		}
	}
}

func TestSecrets_AreInNoText(t *testing.T) {
	r, _ := withSecrets(t, 1, map[string]string{"KEY": planted})
	end := make(chan struct{})
	r.fake.Set(providertest.Behaviour{
		Task: task(providertest.Task{ExitCode: 1, Text: "cannot log in with " + planted, Artifacts: map[string][]byte{"a": nil}, Until: end}),
		OnStart: func(j job.Job, p job.Payload) {
			for _, report := range []job.Report{
				{Kind: job.ReportStatus, Progress: "logs in with " + planted},
				{Kind: job.ReportComplete, ExitCode: 1, Error: "is not logged in with " + planted},
			} {
				if err := r.Report(t.Context(), j.ID, p.Token, report); err != nil {
					t.Error(err)
				}
			}
		},
	})
	id := r.submit(naming("KEY"))
	if j := r.until(id, func(j job.Job) bool { return strings.Contains(j.Progress, "logs in with ") }); !strings.HasSuffix(j.Progress, "with "+stars) {
		t.Errorf("progress %q", j.Progress)
	}
	close(end)
	if j := r.wait(id); j.Outcome.Error != "cannot log in with "+stars {
		t.Errorf("error %q", j.Outcome.Error)
	}
	r.fake.Set(providertest.Behaviour{Warning: "a host that says " + planted, Starts: []error{&job.HostError{Op: "start", Class: job.HostVM, Text: "bad value: " + planted}}})
	if j := r.wait(r.submit(naming("KEY"))); !strings.Contains(j.Outcome.Error, "bad value: "+stars) {
		t.Errorf("error %q", j.Outcome.Error)
	}
	if strings.Contains(r.log.String(), planted) {
		t.Errorf("the secret is in the log:\n%s", r.log)
	}
}

// The name of a file is what its maker likes; the store has it as a path.
func TestSecrets_AreInNoArtifactsName(t *testing.T) {
	r, _ := withSecrets(t, 1, map[string]string{"KEY": planted})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Artifacts: map[string][]byte{
		"out/" + planted + ".log":          []byte("one"),
		"out/" + stars + ".log":            []byte("two"),
		"%53%33cret-of-the-Test/data.json": []byte("three"),
	}})}, true)
	id := r.submit(naming("KEY"), wanting("**"))
	r.wait(id)
	files, warnings := r.artifacts(id)
	want := map[string]string{
		strings.Repeat("*", len("%53%33cret-of-the-Test")) + "/data.json": "three",
		"out/" + stars + ".log": "two", "out/" + stars + ".log_2": "one", // the one that is called so keeps its name
	}
	if diff := cmp.Diff(want, files); diff != "" || warnings != "" {
		t.Errorf("artifacts:\n%s\nwarnings %q", diff, warnings)
	}
}

func TestSecrets_AfterARestart(t *testing.T) {
	r, s := withSecrets(t, 1, map[string]string{"KEY": planted})
	do, release := hold(t, providertest.Task{Stdout: []byte("is " + planted + "\n")})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit(naming("KEY"))
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.stop()
	s.set(nil)
	r.restart()
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err == nil || len(c.Data) > 0 {
		t.Errorf("while nobody knows the secret: %q, %v", c.Data, err)
	}
	s.set(map[string]string{"KEY": planted})
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || string(c.Data) != "is "+stars+"\n" {
		t.Errorf("when it is known again: %q, %v", c.Data, err)
	}
	r.stop()
	s.set(nil)
	r.restart()
	release()
	if j := r.wait(id); !j.Stdout.Incomplete || j.Stdout.Held != 0 || j.Status != job.Success {
		t.Errorf("ended while nobody knows it: %+v, %s", j.Stdout, j.Status)
	}
}

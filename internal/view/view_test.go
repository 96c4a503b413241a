package view_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/view"
	"linus/internal/vm"
)

// What is shown has the public names, units and no internals; what is read back is what was
// shown.
func TestMarshal_ShowsThePublicForm(t *testing.T) {
	j := job.Job{
		ID: "j1", Contradicted: true, BootID: "b", Manifest: job.Manifest{AgentType: job.AgentScript, Timeout: 60, VMTemplate: "t"},
		Outcome: &job.Outcome{Status: job.Success, Duration: 1500 * time.Millisecond}, VM: &vm.VM{ID: 101, Job: "u", Name: "dev"},
	}
	text, err := view.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"id":"j1"`, `"agent_type":"script"`, `"timeout_seconds":60`, `"template":"t"`, `"duration_seconds":1.5`, `"vm_id":101`, `"id":"u"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	for _, not := range []string{"contradicted", "boot_id", "agentType", "null"} {
		if strings.Contains(string(text), not) {
			t.Errorf("%s has %s", text, not)
		}
	}
	var back job.Job
	if err := view.Unmarshal(text, &back); err != nil || back.ID != "j1" || back.Manifest.Timeout != 60 || back.Outcome.Duration != j.Outcome.Duration || back.VM.ID != 101 || back.Contradicted {
		t.Errorf("%+v, %v", back, err)
	}
}

// Text is text; bytes that are none come beside it, as they are.
func TestMarshal_TextAndBytes(t *testing.T) {
	for _, data := range []string{"", "one\n", "\xff\x00"} {
		text, err := view.Marshal(job.Result{Stdout: []byte(data)})
		var back job.Result
		if err == nil {
			err = view.Unmarshal(text, &back)
		}
		if err != nil || string(back.Stdout) != data || strings.Contains(string(text), "stdout_base64") != (data == "\xff\x00") {
			t.Errorf("%q: %s, back %q, %v", data, text, back.Stdout, err)
		}
	}
	list, err := json.Marshal(view.Of([]job.Token(nil)))
	if err != nil || string(list) != "[]" {
		t.Errorf("no tokens: %s, %v", list, err)
	}
}

// What has no public form of its own is written as encoding/json writes it, and read as it reads.
func TestMarshal_IsAsEncodingJSONWritesIt(t *testing.T) {
	type within struct {
		Text string    `json:"text"`
		At   time.Time `json:"at,omitzero"`
	}
	type all struct {
		Texts  map[string]string `json:"texts,omitempty"`
		List   []within          `json:"list"`
		Number int               `json:"number"`
		Part   float64           `json:"part"`
		To     *within           `json:"to"`
		Bytes  []byte            `json:"bytes"`
		Raw    json.RawMessage   `json:"raw,omitempty"`
		Yes    bool              `json:"yes,omitempty"`
	}
	for _, v := range []all{
		{List: []within{}},
		{
			Texts: map[string]string{"b": "<&>", "a\n": "\u2028\xff\"\\"}, List: []within{{"é", time.Unix(1, 5).UTC()}, {}}, Number: -1, Part: 1e-9,
			To: &within{Text: "x"}, Bytes: []byte("\xff"), Raw: json.RawMessage(`{"a":"<"}`), Yes: true,
		},
	} {
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, err := view.Marshal(v)
		of, failed := json.Marshal(view.Of(v))
		if string(got) != string(want) || string(of) != string(want) || err != nil || failed != nil {
			t.Errorf("%s\n%s\n%s: %v, %v", want, got, of, err, failed)
		}
		var one, other all
		if err := view.Unmarshal(want, &one); err != nil || json.Unmarshal(want, &other) != nil || !reflect.DeepEqual(one, other) {
			t.Errorf("%+v, want %+v: %v", one, other, err)
		}
	}
	if _, err := view.Marshal(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
		t.Error("a year that JSON has not")
	}
}

// What is of another type is an error that names it; names that are not known are passed over.
func TestUnmarshal_Wrong(t *testing.T) {
	for text, want := range map[string]string{
		`{"manifest":{"timeout_seconds":"5"}}`: "manifest.timeout", `{"outcome":{"duration_seconds":true}}`: "outcome.duration_seconds", `{"created_at":"now"}`: "now",
		`{"id":{}}`: "id", `{"manifest":[]}`: "manifest", `[]`: "array", `{`: "end of JSON", `{"id":"a"}}`: "after top-level",
	} {
		var j job.Job
		if err := view.Unmarshal([]byte(text), &j); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	var j job.Job
	if err := view.Unmarshal([]byte(` { "new" : [ { "id" : "no" } ] , "ID" : "no", "vm" : null, "id" : "j1" } `), &j); err != nil || j.ID != "j1" || j.VM != nil {
		t.Errorf("%+v, %v", j, err)
	}
}

// A manifest may be written as here or as in a file, but not with the same field in both ways.
func TestDecodeStrict_KnowsBothSpellings(t *testing.T) {
	var s job.Submission
	if _, err := view.DecodeStrict([]byte(`{"manifest":{"task":"x","agent_type":"script","timeout_seconds":5}}`), &s); err != nil || s.Manifest.Timeout != 5 {
		t.Errorf("%+v, %v", s, err)
	}
	s = job.Submission{}
	stored := []byte(`{"manifest":{"task":"x","agentType":"script","timeout":7,"files":[{"path":"/a","content":"eA=="}]}}`)
	if _, err := view.DecodeStrict(stored, &s); err != nil || s.Manifest.AgentType != job.AgentScript || s.Manifest.Timeout != 7 || s.Manifest.Files[0].Content != "eA==" {
		t.Errorf("%+v, %v", s, err)
	}
	for text, want := range map[string]string{
		`{"manifest":{"agentType":"script","agent_type":"script"}}`: "manifest.agentType: is agent_type by another name; give one of the two",
		`{"manifest":{"agenttype":"script"}}`:                       `manifest.agenttype: is not a known key; did you mean "agent_type"?`,
		`{"manifest":{"agentType":5}}`:                              "manifest.agentType: is a number, want a string",
	} {
		if _, err := view.DecodeStrict([]byte(text), &s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestPath_NamesAFieldAsItIsShown(t *testing.T) {
	for stored, want := range map[string]string{
		"manifest.agent.claudeModel": "manifest.agent.claude_model", "manifest.files[3].content": "manifest.files[3].content_base64",
		"manifest.task": "manifest.task", "nothing.of.it": "nothing.of.it",
	} {
		if got := view.Path(reflect.TypeFor[job.Submission](), stored); got != want {
			t.Errorf("%s is %s, want %s", stored, got, want)
		}
	}
}

// What the socket costs a job: each submit, look and list is written and read in this form.
func BenchmarkJob(b *testing.B) {
	code := 0
	j := job.Job{
		ID: "01a2143c-e7f7-7dc6-ae38-5c3d3088a812", Kind: job.KindTask, Client: "cli", Status: job.Success, CreatedAt: time.Now(), StartedAt: time.Now(),
		Manifest: job.Manifest{Task: "make test", AgentType: job.AgentScript, VMTemplate: "agent-template", Timeout: 3600, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}},
		VM:       &vm.VM{ID: 100, Name: "linus-job-5c3d3088a812", Node: "pve", IP: "10.0.0.1", State: vm.Created},
		Outcome:  &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &code, At: time.Now(), Duration: time.Second},
	}
	data, err := view.Marshal(j)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			_, _ = view.Marshal(j)
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			var j job.Job
			_ = view.Unmarshal(data, &j)
		}
	})
	b.Run("write as stored", func(b *testing.B) {
		for b.Loop() {
			_, _ = json.Marshal(j)
		}
	})
}

// What a submission costs the client that writes it, and the engine that reads it.
func BenchmarkSubmission(b *testing.B) {
	s := job.Submission{Manifest: job.Manifest{Task: "make test", AgentType: job.AgentScript, Timeout: 60, Labels: map[string]string{"team": "web"}}}
	data, err := view.Marshal(s)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = view.Marshal(s)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var s job.Submission
			_, _ = view.DecodeStrict(data, &s)
		}
	})
}

package job_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/verbtest"
)

func TestWords_TakeThePlaceOfTheirCodes(t *testing.T) {
	w := job.Words{job.ListVMs: "list_vms", job.BuildTemplate: "build", job.TemplateName: "--name"}
	text := string(job.ListVMs) + " and " + string(job.BuildTemplate) + " with " + string(job.TemplateName) + ", not {this}"
	if got, want := w.In(text), "list_vms and build with --name, not {this}"; got != want {
		t.Errorf("In(%q) = %q, want %q", text, got, want)
	}
	for i, a := range job.Actions {
		for _, b := range job.Actions[i+1:] {
			if strings.Contains(string(a), string(b)) || strings.Contains(string(b), string(a)) {
				t.Errorf("%s is in %s, or the other way round", a, b)
			}
		}
	}
}

// What is rewritten of each type that verbs return: what is told to people. Other strings are
// names, data, and what users and guests have written.
func TestPhrased_RewritesTextsForPeopleOnly(t *testing.T) {
	vm := []string{"Reason", "Remedy"}
	inJob := []string{"Outcome.Error", "VM.Reason", "VM.Remedy"}
	pool := []string{"Failure.Error", "Members.Why", "State"}
	texts := map[string][]string{
		"Job": inJob, "WatchedJob": {"Events.Text", "Job.Outcome.Error", "Job.VM.Reason", "Job.VM.Remedy"}, "Result": {"Error"},
		"VMInfo": vm, "[]VMInfo": vm, "Forked": {"Failed.Error", "VMs.Reason", "VMs.Remedy"}, "PoolInfo": pool, "[]PoolInfo": pool, "CheckpointInfo": {"Text"}, "[]CheckpointInfo": {"Text"}, "[]EngineInfo": {"Problem"}, "HostReport": {"Checks.Remedy", "Checks.Text"},

		"None": nil, "int": nil, "[]string": nil, "Killed": nil, "Manifest": nil, "Page": nil, "Chunk": nil, "Download": nil, "Tunnel": nil, "ReadCloser": nil,
		"FilePage": nil, "FileChunk": nil, "FileWritten": nil, "FileEdited": nil, "NetworkReport": nil, "NodeInfo": nil, "[]NodeInfo": nil, "[]Snapshot": nil, "SavedTemplate": nil, "ExposedPort": nil, "[]ExposedPort": nil, "[]Token": nil, "VolumeInfo": nil, "[]VolumeInfo": nil, "NewToken": nil, "Credential": nil, "[]Credential": nil, "[]Usage": nil, "Dispatcher": nil, "[]Dispatcher": nil,
	}
	texts["HostTest"] = []string{"Steps.Remedy", "Steps.Text"}
	texts["Schedule"] = []string{"Problem", "Runs.Why"}
	texts["[]Schedule"] = texts["Schedule"]
	texts["[]HostTest"] = texts["HostTest"]
	const code = string(job.ListVMs)
	for _, v := range job.Verbs() {
		name := v.Out.Name()
		if v.Out.Kind() == reflect.Slice {
			name = "[]" + v.Out.Elem().Name()
		}
		want, known := texts[name]
		if !known {
			t.Errorf("%s returns %s: say here which of its strings are texts for people, and rewrite them in Words.Phrase", v.Name, name)
		}
		held := verbtest.Full(v.Out, code)
		e := job.Phrased(job.Through(func(context.Context, *job.Verb, any) (any, error) { return held, nil }), job.Words{job.ListVMs: "list_vms"})
		out, err := v.Do(t.Context(), e, verbtest.Full(v.In, ""))
		if err != nil {
			t.Fatal(v.Name, err)
		}
		var got []string
		verbtest.Strings(out, func(path, text string) {
			if strings.HasPrefix(text, "list_vms") {
				got = append(got, path)
			}
		})
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("of what %s returns, %v are rewritten, want %v", v.Name, got, want)
		}
		verbtest.Strings(held, func(path, text string) {
			if strings.HasPrefix(text, "list_vms") {
				t.Errorf("%s has changed what the engine holds: %s", v.Name, path)
			}
		})
	}
}

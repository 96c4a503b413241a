package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestDecodeManifest_UnknownKeysAreNamedWithTheNearest(t *testing.T) {
	tests := []struct {
		name    string
		changes object
		field   string
		says    string
	}{
		{"at the top", object{"timeot": 5}, "manifest.timeot", `did you mean "timeout"?`},
		{"in another style", object{"agent-type": "x"}, "manifest.agent-type", `did you mean "agentType"?`},
		{"by both of its names", object{"timeout": 5, "timeout_seconds": 5}, "manifest.timeout_seconds", "is timeout by another name"},
		{"in the wrong case", object{"TASK": "x"}, "manifest.TASK", `did you mean "task"?`},
		{"in capitals of one word", object{"vmtemplate": "x"}, "manifest.vmtemplate", `did you mean "vmTemplate"?`},
		{"in agent", object{"agent": object{"comand": "x"}}, "manifest.agent.comand", `did you mean "command"?`},
		{"in agent, a model", object{"agent": object{"modell": "x"}}, "manifest.agent.modell", `did you mean "model"?`},
		{"in a file", object{"files": []object{file("/a"), {"path": "/b", "contents": ""}}}, "manifest.files[1].contents", `did you mean "content"?`},
		{"in resources", object{"resources": object{"mem": "1G"}}, "manifest.resources.mem", `did you mean "memory"?`},
		{"an empty key", object{"": 1}, "manifest.", "is not a known key"},
		{"a very long key", object{strings.Repeat("x", 10000): 1}, "manifest." + strings.Repeat("x", 10000), "is not a known key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, manifestJSON(t, tt.changes), tt.field, tt.says) })
	}
}

// The names of the API are known in a file, too.
func TestDecodeManifest_KnowsTheNamesOfTheAPI(t *testing.T) {
	m, err := DecodeManifest([]byte(`{"task": "x", "agent_type": "script", "timeout_seconds": 9, "template": "t", "files": [{"path": "/a", "content_base64": "eA=="}]}`))
	if err != nil || m.AgentType != AgentScript || m.Timeout != 9 || m.VMTemplate != "t" || m.Files[0].Content != "eA==" {
		t.Errorf("%+v, %v", m, err)
	}
	expect(t, []byte(`{"task": "x", "agent_type": "script", "timeout_seconds": 0}`), "manifest.timeout_seconds", "0 is out of range")
}

func TestDecodeManifest_UnknownKeysAreAllNamed(t *testing.T) {
	var got []string
	for _, f := range complaints(t, manifestJSON(t, object{"b": 1, "a": 1, "agent": object{"d": 1, "c": 1}})) {
		got = append(got, f.Field)
	}
	if want := "manifest.a manifest.agent.c manifest.agent.d manifest.b"; strings.Join(got, " ") != want {
		t.Errorf("got %q", got)
	}
}

func TestDecodeManifest_WrongTypesAreNamed(t *testing.T) {
	values := map[string]any{
		"null": nil, "a string": "x", "a number": 1, "a boolean": true, "an array": []int{}, "an object": object{},
	}
	for _, tt := range []struct {
		field string
		want  string             // the type there
		in    func(v any) object // a manifest's changes with v in that field
	}{
		{"task", "a string", func(v any) object { return object{"task": v} }},
		{"agentType", "a string", func(v any) object { return object{"agentType": v} }},
		{"agent", "an object", func(v any) object { return object{"agent": v} }},
		{"agent.command", "a string", func(v any) object { return object{"agent": object{"command": v}} }},
		{"agent.claudeModel", "a string", func(v any) object { return object{"agent": object{"claudeModel": v}} }},
		{"files", "an array", func(v any) object { return object{"files": v} }},
		{"files[0]", "an object", func(v any) object { return object{"files": []any{v}} }},
		{"files[0].path", "a string", func(v any) object { return object{"files": []any{object{"path": v}}} }},
		{"files[0].content", "a string", func(v any) object { return object{"files": []any{object{"path": "/a", "content": v}}} }},
		{"files[0].mode", "a string", func(v any) object { return object{"files": []any{object{"path": "/a", "mode": v}}} }},
		{"env", "an object", func(v any) object { return object{"env": v} }},
		{"env.A", "a string", func(v any) object { return object{"env": object{"A": v}} }},
		{"secrets", "an array", func(v any) object { return object{"secrets": v} }},
		{"secrets[0]", "a string", func(v any) object { return object{"secrets": []any{v}} }},
		{"resources", "an object", func(v any) object { return object{"resources": v} }},
		{"resources.cpu", "a whole number", func(v any) object { return object{"resources": object{"cpu": v}} }},
		{"resources.memory", "a string", func(v any) object { return object{"resources": object{"memory": v}} }},
		{"resources.disk", "a string", func(v any) object { return object{"resources": object{"disk": v}} }},
		{"timeout", "a whole number", func(v any) object { return object{"timeout": v} }},
		{"lifecycle", "a string", func(v any) object { return object{"lifecycle": v} }},
		{"vmTemplate", "a string", func(v any) object { return object{"vmTemplate": v} }},
		{"statusMode", "a string", func(v any) object { return object{"statusMode": v} }},
	} {
		for kind, v := range values {
			if kind == tt.want || kind == "a number" && tt.want == "a whole number" {
				continue
			}
			t.Run(tt.field+" is "+kind, func(t *testing.T) {
				if v == nil { // manifestJSON takes nil for "without"
					v = json.RawMessage("null")
				}
				expect(t, manifestJSON(t, tt.in(v)), "manifest."+tt.field, "is "+kind+", want "+tt.want)
			})
		}
	}
}

func TestDecodeManifest_Texts(t *testing.T) {
	manifest := func(more string) string { return `{"task":"x","agentType":"script"` + more + `}` }
	const quoted = `{"agentType":"script","task":"`
	tests := []struct {
		name  string
		text  string
		field string
		says  string
	}{
		{"nothing", "", "manifest", "not valid JSON"},
		{"not JSON", "task: echo", "manifest", "not valid JSON"},
		{"cut short", `{"task":"x"`, "manifest", "not valid JSON"},
		{"two objects", manifest("") + manifest(""), "manifest", "not valid JSON"},
		{"an object and a brace", manifest("") + "}", "manifest", "not valid JSON"},
		{"an object and a bracket", manifest("") + " ]", "manifest", "not valid JSON"},
		{"an object and blanks", "\n " + manifest("") + " \n", "", ""},
		{"null", "null", "manifest", "is null, want an object"},
		{"a list", "[" + manifest("") + "]", "manifest", "is an array, want an object"},
		{"very deep", strings.Repeat("[", 1000000), "manifest", "not valid JSON"},
		{"deep", strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "manifest", "is an array"},

		{"timeout 0", manifest(`,"timeout":0`), "manifest.timeout", "0 is out of range"},
		{"timeout -0", manifest(`,"timeout":-0`), "manifest.timeout", "0 is out of range"},
		{"cpu 0", manifest(`,"resources":{"cpu":0}`), "manifest.resources.cpu", "0 is out of range"},
		{"timeout with a fraction", manifest(`,"timeout":1.5`), "manifest.timeout", "1.5 is not a whole number"},
		{"timeout with an exponent", manifest(`,"timeout":1e30`), "manifest.timeout", "1e30 is not a whole number"},
		{"timeout beyond numbers", manifest(`,"timeout":99999999999999999999`), "manifest.timeout", "is not a whole number"},

		{"timeout with a point", manifest(`,"timeout":60.0,"resources":{"cpu":2e0}`), "", ""},
		{"timeout 0 with a point", manifest(`,"timeout":0.0`), "manifest.timeout", "0 is out of range"},

		{"a key twice", manifest(`,"timeout":1,"timeout":2`), "manifest.timeout", "is given twice"},
		{"an object twice", manifest(`,"resources":{"cpu":1},"resources":{}`), "manifest.resources", "is given twice"},
		{"a key twice in an object", manifest(`,"env":{"A":"1","B":"","A":"2"}`), "manifest.env.A", "is given twice"},
		{"a key twice in a list", manifest(`,"files":[{"path":"/a","content":"","path":"/b"}]`), "manifest.files[0].path", "is given twice"},
		{"a key twice in another spelling", manifest(`,"timeout":1,"time\u006fut":2`), "manifest.timeout", "is given twice"},
		{"the same key in two objects", manifest(`,"files":[{"path":"/a"},{"path":"/b"}]`), "", ""},

		{"not UTF-8", quoted + "a\xffb" + `"}`, "manifest", "not Unicode"},
		{"UTF-8 of a surrogate", quoted + "\xed\xa0\x80" + `"}`, "manifest", "not Unicode"},
		{"half a pair", quoted + `\ud83d"}`, "manifest", "not Unicode"},
		{"half a pair and text", quoted + `\ud83dabcdef"}`, "manifest", "not Unicode"},
		{"the other half", quoted + `a\uDE00"}`, "manifest", "not Unicode"},
		{"a pair the wrong way round", quoted + `\ude00\ud83d"}`, "manifest", "not Unicode"},
		{"a pair and a half", quoted + `\ud83d\ude00\ud83d"}`, "manifest", "not Unicode"},
		{"half a pair and another escape", quoted + `\ud83d\n\ude00"}`, "manifest", "not Unicode"},
		{"a pair", quoted + `\ud83d\ude00"}`, "", ""},
		{"two pairs", quoted + `\uD83D\uDE00\ud83d\ude00"}`, "", ""},
		{"a backslash before something like a half", quoted + `\\ud83d"}`, "", ""},
		{"two backslashes before a half", quoted + `\\\\\ud83d"}`, "manifest", "not Unicode"},
		{"the replacement character itself", quoted + `\ufffd�"}`, "", ""},
		{"a byte order mark", "\ufeff" + manifest(""), "manifest", "not valid JSON"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, []byte(tt.text), tt.field, tt.says) })
	}
}

func TestDecodeStrict_WithoutAName(t *testing.T) {
	var in struct {
		JobID string `json:"job_id"`
		Count int8   `json:"count,omitempty"`
		Tail  *bool  `json:"tail,omitempty"`
	}
	for text, want := range map[string]string{
		`{"jobid":"x"}`: `jobid: is not a known key; did you mean "job_id"?`,
		`{"job_id":1}`:  `job_id: is a number, want a string`,
		`{"tail":"x"}`:  `tail: is a string, want true or false`,
		`{"count":300}`: `count: is number 300, want int8`,
	} {
		if _, err := DecodeStrict("", []byte(text), &in); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := DecodeStrict("", []byte(`{"job_id":"x","tail":true,"count":3}`), &in); err != nil || in.JobID != "x" || !*in.Tail || in.Count != 3 {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"task", "timeout", "vmTemplate"}
	for key, want := range map[string]string{"Tasks": "task 1", "time_out": "timeout 1", "VMTEMPLATE": "vmTemplate 0", "task": "task 0"} {
		best, distance := Nearest(key, known)
		if got := fmt.Sprint(best, " ", distance); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	if best, _ := Nearest("x", nil); best != "" {
		t.Errorf("nearest of none is %q", best)
	}
}

func TestEditDistance_IsLevenshteins(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"saturday", "sunday", 3}, {"ab", "ba", 2}} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	words := []string{""}
	for i := 0; len(words[i]) < 4; i++ { // all words of a and b up to four letters
		words = append(words, words[i]+"a", words[i]+"b")
	}
	for _, a := range words {
		for _, b := range words {
			if got, want := editDistance(a, b), byDefinition(a, b); got != want {
				t.Fatalf("%q to %q: %d, want %d", a, b, got, want)
			}
		}
	}
}

// byDefinition is the distance as it is defined, slowly.
func byDefinition(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	if a[0] == b[0] {
		return byDefinition(a[1:], b[1:])
	}
	return 1 + min(byDefinition(a[1:], b), byDefinition(a, b[1:]), byDefinition(a[1:], b[1:]))
}

package agent

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const session = `{"type":"system","subtype":"init","cwd":"/home/debian/app","tools":["Bash","Read"],"model":"m"}
{"type":"assistant","message":{"role":"assistant","content":[{"type":"text","text":"\n I'll look at the tests.\nThen more."}]}}
{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"1","name":"Read","input":{"file_path":"/home/debian/app/main.go"}}]}}
{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"package main"}]}}
{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Bash","input":{"command":"go test ./...\necho done","timeout":5}}]}}
not JSON at all
{"type":"rate_limit_event","what":["ever"]}
{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Edit","input":{"file_path":"/etc/hosts"}},{"type":"tool_use","name":"mcp__x__y","input":{}},{"type":"tool_use","name":"Bash","input":{"command":7}}]}}
{"type":"assistant","parent_tool_use_id":"9","message":{"content":"an agent's agent says"}}
{"type":"result","subtype":"success","is_error":false,"result":"All tests pass.\nDone.","total_cost_usd":0.1}
`

var steps = []string{
	"I'll look at the tests.", "reads main.go", "runs go test ./...",
	"edits /etc/hosts", "uses mcp__x__y", "runs", "an agent's agent says",
}

// claude is the row that the session is of.
var claude, _ = Named("claude")

func TestReader_ReturnsTheStepsHoweverTheStreamIsCut(t *testing.T) {
	for _, size := range []int{1, 2, 7, 100, len(session)} {
		r := claude.Reader()
		var got []string
		for piece := range slices.Chunk([]byte(session), size) {
			got = append(got, r.Read(piece)...)
		}
		if !slices.Equal(got, steps) {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
}

func TestReader_Lines(t *testing.T) {
	say := func(text string) string {
		content, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return `{"type":"assistant","message":{"content":` + string(content) + "}}\n"
	}
	tests := []struct {
		name string
		text string
		want []string
	}{
		{"of 1 MiB", say("hello\n" + strings.Repeat("x", 1<<20)), []string{"hello"}},
		{"that go on without end are passed over, the next is not", strings.Repeat("x", maxLine+1) + say("lost") + say("found"), []string{"found"}},
		{"that are long to look at are cut", say(strings.Repeat("ä", 300)), []string{strings.Repeat("ä", 159) + "…"}},
		{"have nothing a terminal would obey", say("\x1b[31mred\x07\ttab"), []string{"red tab"}},
		{"of blanks say nothing", say(" \n\t\n"), nil},
		{"with other types than ours", `{"type":1}` + "\n" + `[]` + "\n" + `{"type":"assistant","message":"x"}` + "\n" + `{"type":"assistant","message":{"content":[7,{"type":"text","text":"ok"}]}}` + "\n", []string{"ok"}},
		{"without an end are not told yet", strings.TrimSuffix(say("soon"), "\n"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := claude.Reader()
			if got := r.Read([]byte(tt.text)); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// A VM may write a line without an end: of one that is longer than maxLine nothing is kept, not
// even when it is whole, and not while it comes.
func TestReader_KeepsNoLineBeyondTheLongest(t *testing.T) {
	said := func(size int) string {
		const begin, end = `{"type":"assistant","message":{"content":[{"type":"text","text":"hello\n`, `"}]}}`
		return begin + strings.Repeat("x", size-len(begin)-len(end)) + end + "\n"
	}
	for size, want := range map[int][]string{maxLine: {"hello"}, maxLine + 1: nil} {
		for _, piece := range []int{1 << 16, maxLine + 2} {
			r := claude.Reader()
			var got []string
			for part := range slices.Chunk([]byte(said(size)), piece) {
				got = append(got, r.Read(part)...)
				if len(r.line) > maxLine {
					t.Errorf("of %d bytes in pieces of %d it keeps %d", size, piece, len(r.line))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("a line of %d bytes in pieces of %d: %q, want %q", size, piece, got, want)
			}
		}
	}
	r := claude.Reader()
	for range 2 {
		r.Read([]byte(strings.Repeat("x", maxLine/2+1)))
	}
	if len(r.line) > 0 {
		t.Errorf("of a line without an end it keeps %d bytes", len(r.line))
	}
}

func TestResult(t *testing.T) {
	ended := strings.Split(session, `{"type":"result"`)[0]
	tests := []struct {
		name, stream, want string
		ok                 bool
	}{
		{"of a whole session", session, "All tests pass.\nDone.", true},
		{"with head and tail only", session[:40] + "\n[linus: 9 bytes dropped]\n" + session[300:], "All tests pass.\nDone.", true},
		{"ended early is what was said last", ended, "\n I'll look at the tests.\nThen more.", true},
		{"empty", `{"type":"result","result":""}`, "", true},
		{"of an error without words", `{"type":"result","subtype":"error_max_turns","is_error":true}`, "", false},
		{"of a CLI that did not start", "claude: command not found\n", "", false},
		{"of nothing", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := claude.Answer([]byte(tt.stream)); got != tt.want || ok != tt.ok {
				t.Errorf("%q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(session), 10)
	f.Add([]byte(`{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Read","input":null}]}}`+"\n"), 3)
	f.Add([]byte(codexSession), 7)
	f.Add([]byte(geminiSession), 7)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		for _, a := range All() {
			a.Answer(stream)
			whole, cut := a.Reader(), a.Reader()
			want := whole.Read(bytes.Clone(stream))
			var got []string
			for piece := range slices.Chunk(stream, max(1, size)) {
				got = append(got, cut.Read(piece)...)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s in pieces of %d: %q; whole: %q", a.Name, size, got, want)
			}
			for _, step := range got {
				if strings.ContainsAny(step, "\n\r\x00\x1b") || step == "" {
					t.Errorf("%s: step %q", a.Name, step)
				}
			}
		}
	})
}

package mcptool

import (
	"context"
	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"strings"
	"testing"

	"linus/internal/job"
)

func TestRead_NeverCutsACharacterOrAnEscapeSequence(t *testing.T) {
	const all = "aüb\x1b[31m日本\x1b]0;title\a\xff end"
	for limit := 1; limit <= len(all)+1; limit++ {
		for _, plain := range []bool{false, true} {
			e := &engine{out: all, job: job.Job{Status: job.Success}}
			var text strings.Builder
			invalid := 0
			for at := int64(0); ; {
				p, err := read(context.Background(), e, knownID, job.Stdout, at, limit, plain)
				if err != nil {
					t.Fatal(err)
				}
				if p.next == at && !p.whole {
					t.Fatalf("limit %d: nothing comes from %d on", limit, at)
				}
				if at, invalid = p.next, invalid+strings.Count(p.text, "\uFFFD"); p.invalid != strings.Contains(p.text, "\uFFFD") {
					t.Errorf("limit %d: %q is marked invalid: %v", limit, p.text, p.invalid)
				}
				text.WriteString(p.text)
				if p.whole {
					break
				}
			}
			want := "aüb\x1b[31m日本\x1b]0;title\a\uFFFD end"
			if plain {
				want = "aüb日本\uFFFD end"
			}
			if limit >= 10 && (text.String() != want || invalid != 1) { // less cannot hold the longest sequence
				t.Errorf("limit %d, plain %v: %q", limit, plain, text.String())
			}
		}
	}
}

// However a client pages, it sees what the command line prints.
func TestRead_ShowsALineWrittenOverAsATerminalDoes(t *testing.T) {
	e := &engine{job: job.Job{Status: job.Running}}
	var text strings.Builder
	at := int64(0)
	for _, written := range []string{"100% done", "\rX", "\n\u009b31mred\u202e", "\n"} {
		e.out += written
		p, err := read(t.Context(), e, knownID, job.Stdout, at, 100, true)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(p.text)
		at = p.next
	}
	if want := "100% done\nX00% done\nred\n"; text.String() != want {
		t.Errorf("in pages %q, want %q", text.String(), want)
	}
	if p, err := read(t.Context(), e, knownID, job.Stdout, 0, 100, true); err != nil || p.text != "X00% done\nred\n" {
		t.Errorf("at once %q, %v", p.text, err)
	}
}

func TestRead_WaitsForTheRestOfACharacter(t *testing.T) {
	e := &engine{out: "pay 5 \xe2\x82", job: job.Job{Status: job.Running}}
	p, err := read(t.Context(), e, knownID, job.Stdout, 0, 100, false)
	if err != nil || p.text != "pay 5 " || p.next != 6 || p.invalid {
		t.Errorf("first %+v, %v", p, err)
	}
	e.out += "\xac"
	if p, err = read(t.Context(), e, knownID, job.Stdout, p.next, 100, false); err != nil || p.text != "€" {
		t.Errorf("then %+v, %v", p, err)
	}
}

func TestLastLines(t *testing.T) {
	tests := []struct {
		name, text string
		n          int
		amid       bool
		want       string
		cut        bool
	}{
		{"fewer than asked for", "a\nb\n", 5, false, "a\nb\n", false},
		{"as many", "a\nb\n", 2, false, "a\nb\n", false},
		{"more", "a\nb\nc\n", 2, false, "b\nc\n", true},
		{"a prompt is a line", "a\nb\n> ", 2, false, "b\n> ", true},
		{"nothing", "", 3, false, "", false},
		{"empty lines count", "a\n\n\n", 2, false, "\n\n", true},
		{"began amid a line", "lf\nb\n", 5, true, "b\n", false},
		{"one endless line", "xxxx", 5, true, "xxxx", false},
		{"endless line with its end", "xxxx\n", 5, true, "xxxx\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, cut := lastLines(tt.text, tt.n, tt.amid); got != tt.want || cut != tt.cut {
				t.Errorf("lastLines = %q, %v; want %q, %v", got, cut, tt.want, tt.cut)
			}
		})
	}
}

// What a program has written is beside the JSON as a terminal shows it, and a file byte for
// byte, or in the JSON where it would not be seen as it is. Nothing is there twice.
func TestResults_ShowTextAsText(t *testing.T) {
	for _, tt := range []struct {
		out    any
		rest   string
		blocks []string
	}{
		{outputPart{Stdout: "a\n\x1b[31m\"b\" <c>\x1b[0m\n", StdoutNext: 9, Stderr: "10 %\r20 %\r100 %\n"}, `{"stdout_next":9,"stderr_next":0,"complete":false}`, []string{"stdout:\na\n\"b\" <c>\n", "stderr:\n100 %\n"}},
		{resultOutput{JobID: "x", Output: "\x1b]0;title\x07done\n"}, `{"job_id":"x","status":"","reason":"","stderr":"","output_bytes":0,"stderr_bytes":0,"truncated":false,"duration_seconds":0}`, []string{"output:\ndone\n"}},
		{readFileOutput{Content: "\tif x {\n", Encoding: "text"}, `{"encoding":"text","size":0,"mode":""}`, []string{"content:\n\tif x {\n"}},
		{readFileOutput{Content: "a\r\n\x1b", Encoding: "text"}, `{"content":"a\r\n\u001b","encoding":"text","size":0,"mode":""}`, nil},
		{listVMsOutput{VMs: []vmOutput{{Name: "dev", SSH: "ssh -o x dev"}}}, `{"vms":[{"name":"dev","status":"","job_id":""}]}`, nil},
	} {
		r, err := structured(tt.out)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range r.Content {
			got = append(got, c.(mcp.TextContent).Text)
		}
		if diff := cmp.Diff(append([]string{tt.rest}, tt.blocks...), got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", tt.out, diff)
		}
		if diff := cmp.Diff(tt.out, r.StructuredContent); diff != "" {
			t.Errorf("%T, structured (-want +got):\n%s", tt.out, diff)
		}
	}
}

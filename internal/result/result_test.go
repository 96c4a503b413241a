package result

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name  string
		in    string
		nonce string
		want  Result
	}{
		{name: "nothing", in: "", want: Result{Whole: true}},
		{
			name: "plain lines among noise",
			in:   "Welcome!\nLINUS_VM_ID:100\n  LINUS_VM_IP:6.6.6.6\nlinus_x:1\nLINUS_:1\nLINUS_X\nLINUS_RESULT:SUCCESS\n",
			want: Result{Lines: []Line{{"LINUS_VM_ID", "100"}, {"LINUS_RESULT", "SUCCESS"}}, Whole: true},
		},
		{
			name: "value is all after the first colon",
			in:   "LINUS_STEP:1/9:create_vm:Create: the VM\r\nLINUS_EMPTY:\n",
			want: Result{Lines: []Line{{"LINUS_STEP", "1/9:create_vm:Create: the VM"}, {"LINUS_EMPTY", ""}}, Whole: true},
		},
		{
			name: "a last line without its end does not count",
			in:   "LINUS_NODE:pve\nLINUS_VM_ID:12",
			want: Result{Lines: []Line{{"LINUS_NODE", "pve"}}, Whole: true},
		},
		{
			name: "invalid UTF-8 is replaced",
			in:   "LINUS_ERROR:a\xffb\n",
			want: Result{Lines: []Line{{"LINUS_ERROR", "a\uFFFDb"}}, Whole: true},
		},
		{
			name: "only the block counts", nonce: "n1",
			in:   "LINUS_VM_ID:1\nLINUS_BEGIN:n0\nLINUS_VM_ID:2\nLINUS_BEGIN:n1\nLINUS_VM_ID:3\nLINUS_END:n0\nLINUS_VM_IP:4\nLINUS_END:n1\nLINUS_VM_ID:5\n",
			want: Result{Lines: []Line{{"LINUS_VM_ID", "3"}, {"LINUS_VM_IP", "4"}}, Whole: true},
		},
		{
			name: "a block is not opened twice", nonce: "n1",
			in:   "LINUS_BEGIN:n1\nLINUS_A:1\nLINUS_END:n1\nLINUS_BEGIN:n1\nLINUS_A:2\nLINUS_END:n1\n",
			want: Result{Lines: []Line{{"LINUS_A", "1"}}, Whole: true},
		},
		{
			name: "a block cut off is not whole", nonce: "n1",
			in:   "LINUS_BEGIN:n1\nLINUS_VM_ID:3\nLINUS_RESULT:SUCCESS\n",
			want: Result{Lines: []Line{{"LINUS_VM_ID", "3"}, {"LINUS_RESULT", "SUCCESS"}}},
		},
		{name: "no block", nonce: "n1", in: "LINUS_RESULT:SUCCESS\n", want: Result{}},
		{name: "an end without a beginning", nonce: "n1", in: "LINUS_END:n1\n", want: Result{}},
		{
			name: "noise of any length outside the block", nonce: "n1",
			in:   "LINUS_A:" + strings.Repeat("x", 3*MaxLine) + "\nLINUS_BEGIN:n1\n" + strings.Repeat("y", 3*MaxLine) + "\nLINUS_END:n1\n",
			want: Result{Whole: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.in), iotest.OneByteReader(strings.NewReader(tt.in))} {
				var seen []Line
				got, err := Parse(r, tt.nonce, func(key, value string) { seen = append(seen, Line{key, value}) })
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("result (-want +got):\n%s", d)
				}
				if d := cmp.Diff(got.Lines, seen); d != "" {
					t.Errorf("onLine saw (-lines +seen):\n%s", d)
				}
			}
		})
	}
}

func TestParse_ReportsProgressAsItComes(t *testing.T) {
	r, w := io.Pipe()
	steps := make(chan string)
	go func() {
		_, _ = io.WriteString(w, "LINUS_STEP:1/2:a:first\n")
		if got := <-steps; got != "1/2:a:first" {
			t.Errorf("got %q", got)
		}
		_ = w.Close() // only now: the line must not have waited for the end
	}()
	if _, err := Parse(r, "", func(_, value string) { steps <- value }); err != nil {
		t.Fatal(err)
	}
}

func TestParse_IsBounded(t *testing.T) {
	tests := []struct {
		name  string
		in    string
		lines int
	}{
		{"a line too long", "LINUS_A:1\nLINUS_B:" + strings.Repeat("x", MaxLine) + "\nLINUS_C:3\n", 2},
		{"too many lines", strings.Repeat("LINUS_A:1\n", MaxLines+1), MaxLines},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := strings.NewReader(tt.in)
			got, err := Parse(in, "", nil)
			if !errors.Is(err, ErrTooLarge) || got.Whole || len(got.Lines) != tt.lines || in.Len() != 0 {
				t.Errorf("err %v, whole %v, %d lines, %d bytes unread", err, got.Whole, len(got.Lines), in.Len())
			}
		})
	}
}

func TestParse_ReturnsTheReadersError(t *testing.T) {
	broken := errors.New("connection lost")
	got, err := Parse(io.MultiReader(strings.NewReader("LINUS_VM_ID:7\nLINUS_VM_ID:1"), iotest.ErrReader(broken)), "", nil)
	if !errors.Is(err, broken) || got.Whole || got.Get("LINUS_VM_ID") != "7" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResult_ReadsKeys(t *testing.T) {
	r, err := Parse(strings.NewReader("LINUS_CHECK:a:warn:x\nLINUS_REMEDY:do x\nLINUS_CHECK:b:ok:y\nLINUS_VM_IP:1\nLINUS_VM_IP:\nLINUS_RESULT:SUCCESS\n"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.All("LINUS_CHECK"); !slices.Equal(got, []string{"a:warn:x", "b:ok:y"}) {
		t.Errorf("All: %v", got)
	}
	if value, ok := r.Lookup("LINUS_VM_IP"); value != "" || !ok {
		t.Errorf("the last value wins, an empty one too: %q %v", value, ok)
	}
	if _, ok := r.Lookup("LINUS_NONE"); ok {
		t.Error("found a key that is not there")
	}
	if !r.Success() || r.Failure() != "" || r.Remedy() != "" {
		t.Errorf("success %v, failure %q, remedy %q", r.Success(), r.Failure(), r.Remedy())
	}
	r.Whole = false
	if r.Success() {
		t.Error("an answer that is not whole is no success")
	}
	failed := Result{Whole: true, Lines: []Line{{KeyRemedy, "of a check"}, {KeyResult, "FAILURE"}, {KeyError, "no storage"}, {KeyRemedy, "make one"}}}
	if failed.Success() || failed.Failure() != "no storage" || failed.Remedy() != "make one" {
		t.Errorf("failed: %v %q %q", failed.Success(), failed.Failure(), failed.Remedy())
	}
}

func FuzzParse(f *testing.F) {
	f.Add("LINUS_BEGIN:n\nLINUS_VM_ID:1\nLINUS_END:n\n", "n")
	f.Add("LINUS_A:b:c\r\nnoise\nLINUS_A", "")
	f.Add("LINUS_END:n\nLINUS_BEGIN:n\n\xff\nLINUS_X:\xff", "n")
	f.Fuzz(func(t *testing.T, in, nonce string) {
		r, err := Parse(strings.NewReader(in), nonce, nil)
		if err != nil && !errors.Is(err, ErrTooLarge) {
			t.Fatalf("an error of no reader: %v", err)
		}
		for _, l := range r.Lines {
			if !keyForm.MatchString(l.Key) || strings.Contains(l.Value, "\n") || !utf8.ValidString(l.Value) {
				t.Errorf("bad line %q", l)
			}
			if nonce == "" || (l.Key != "LINUS_BEGIN" && l.Key != "LINUS_END") {
				continue
			}
			t.Errorf("the block's own marks are in it: %q", l)
		}
		if nonce != "" && r.Whole && !strings.Contains(in, fmt.Sprintf("LINUS_END:%s", nonce)) {
			t.Error("whole without an end")
		}
	})
}

// Nearly all answers are short: reading one takes no buffer for the longest line.
func TestParse_TakesLittleMemory(t *testing.T) { // not parallel: it counts what is allocated
	const text = "LINUS_BEGIN:n\nLINUS_RESULT:SUCCESS\nLINUS_END:n\n"
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		if _, err := Parse(strings.NewReader(text), "n", nil); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / times; n > 16<<10 {
		t.Errorf("it takes %d bytes", n)
	}
}

// A line may be as long as MaxLine, and come in many pieces.
func TestParse_LongLine(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("x", MaxLine-len("LINUS_A:\n"))
	for value, err := range map[string]error{longest: nil, longest + "x": ErrTooLarge} {
		res, got := Parse(iotest.OneByteReader(strings.NewReader("LINUS_A:"+value+"\nLINUS_B:2\n")), "", nil)
		if !errors.Is(got, err) || res.Get("LINUS_B") != "2" || err == nil && res.Get("LINUS_A") != value {
			t.Errorf("%d bytes: %v, %d lines", len(value), got, len(res.Lines))
		}
	}
}

package store

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"linus/internal/job"
)

// together is all that is stored of a job's streams, in their order.
func together(t *testing.T, s *Store, id string) string {
	t.Helper()
	order, err := s.OutputOrder(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range order {
		data, err := s.Output(t.Context(), id, p.Stream, p.From, p.To-p.From)
		if err != nil || int64(len(data)) != p.To-p.From {
			t.Fatalf("%+v: %d bytes, %v", p, len(data), err)
		}
		b.Write(data)
	}
	return b.String()
}

func TestOutputOrder(t *testing.T) { // newStore keeps 100 bytes
	s := newStore(t)
	begin := func() (id string, turn, more func(stream, data string)) {
		j := newJob("task")
		insert(t, s, j)
		at := map[string]int64{}
		add := func(store func(stream string, offset int64, data []byte) (int64, error)) func(stream, data string) {
			return func(stream, data string) {
				t.Helper()
				next, err := store(stream, at[stream], []byte(data))
				if at[stream] += int64(len(data)); err != nil || next != at[stream] {
					t.Fatalf("%d, %v", next, err)
				}
			}
		}
		return j.ID,
			add(func(stream string, offset int64, data []byte) (int64, error) {
				return s.AppendTurn(t.Context(), j.ID, stream, offset, data)
			}),
			add(func(stream string, offset int64, data []byte) (int64, error) {
				return s.AppendOutput(t.Context(), j.ID, stream, offset, data)
			})
	}
	seal := func(id string, out, err int64, outTail string) {
		t.Helper()
		if _, e := s.SealOutput(t.Context(), id, job.StreamEnd{Stream: job.Stdout, Total: out, Tail: []byte(outTail)}, job.StreamEnd{Stream: job.Stderr, Total: err}); e != nil {
			t.Fatal(e)
		}
	}
	shows := func(id, want string) {
		t.Helper()
		if got := together(t, s, id); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}

	id, turn, more := begin()
	shows(id, "")
	seen := ""
	for _, step := range []struct {
		add          func(stream, data string)
		stream, data string
	}{
		{turn, job.Stderr, "e1 "}, {more, job.Stderr, "e2 "}, {turn, job.Stdout, "o1 "}, {turn, job.Stdout, "o2 "}, // by an engine that knows no turn, as after another
		{turn, job.Stderr, "e3 "}, {turn, job.Stdout, "o3 "}, {more, job.Stdout, "o4 "},
	} {
		step.add(step.stream, step.data)
		seen += step.data
		shows(id, seen) // what was there stays
	}
	for _, stream := range []string{job.Stdout, job.Stderr} { // what is known already is no turn
		if _, err := s.AppendTurn(t.Context(), id, stream, 0, []byte("o1")); err != nil {
			t.Fatal(err)
		}
	}
	shows(id, seen)
	seal(id, 15, 9, "o5 ") // the end of stdout comes with the end
	shows(id, seen+"o5 ")

	// Without turns, as of a job of an earlier version; beyond the limit; cut.
	id, _, more = begin()
	more(job.Stderr, "e ")
	more(job.Stdout, "o ")
	shows(id, "o e ")
	id, turn, _ = begin()
	turn(job.Stdout, "o1 ")
	turn(job.Stderr, "e1 ")
	turn(job.Stdout, strings.Repeat("x", 150))
	turn(job.Stderr, "e2 ")
	shows(id, "o1 e1 "+strings.Repeat("x", 97)+"e2 ")
	seal(id, 153, 6, strings.Repeat("y", 50))
	shows(id, "o1 e1 "+strings.Repeat("x", 47)+"e2 "+string(marker(53))+strings.Repeat("y", 50))
	id, turn, _ = begin()
	turn(job.Stdout, "lie ")
	turn(job.Stderr, "e1 ")
	turn(job.Stdout, "lies ")
	if err := s.CutOutput(t.Context(), id, job.Stdout, 2); err != nil {
		t.Fatal(err)
	}
	shows(id, "lie1 ")

	// The turns that are recorded have an end, and nothing is lost.
	id, turn, _ = begin()
	err := s.changeOutput(t.Context(), id, job.Stdout, func(f outputFiles, _ sealedStreams) error {
		return f.append(orderName, 0, make([]byte, mostTurns*turnSize))
	})
	if err != nil {
		t.Fatal(err)
	}
	turn(job.Stderr, "e ")
	turn(job.Stdout, "o ")
	shows(id, "o e ")
	if _, err := s.OutputOrder(t.Context(), "none"); !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
}

// BenchmarkAppendTurn is an output whose streams take turns, beside one of the same pieces that has none.
func BenchmarkAppendTurn(b *testing.B) {
	for _, alternates := range []bool{false, true} {
		b.Run(fmt.Sprintf("turns=%v", alternates), func(b *testing.B) {
			s := openStore(b, Options{Dir: b.TempDir(), MaxOutput: math.MaxInt64})
			j := newJob("task")
			insert(b, s, j)
			piece := []byte(strings.Repeat("a line of output\n", 16))
			for i := 0; b.Loop(); i++ {
				stream, store := []string{job.Stdout, job.Stderr}[i%2], s.AppendOutput
				if alternates {
					store = s.AppendTurn
				}
				if _, err := store(b.Context(), j.ID, stream, int64(i/2*len(piece)), piece); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

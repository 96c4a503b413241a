package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"linus/internal/job"
)

// text returns n bytes that show their position in a stream.
func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + i%23)
	}
	return b
}

func appendOutput(t testing.TB, s *Store, id string, offset int64, data []byte) int64 {
	t.Helper()
	seen, err := s.AppendOutput(t.Context(), id, job.Stdout, offset, data)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// held reads all that is stored of stdout, and checks it against the counts.
func held(t testing.TB, s *Store, id string) ([]byte, job.OutputInfo) {
	t.Helper()
	data, err := s.Output(t.Context(), id, job.Stdout, 0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	j, err := s.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if j.Stdout.Held != int64(len(data)) {
		t.Errorf("%d bytes held, counted as %+v", len(data), j.Stdout)
	}
	return data, j.Stdout
}

func TestAppendOutput(t *testing.T) { // newStore keeps 100 bytes
	type step struct {
		offset, n int64 // bytes [offset, offset+n) of the stream are sent
		seen      int64
	}
	tests := []struct {
		name  string
		steps []step
		held  int64
		total int64
	}{
		{"in order", []step{{0, 10, 10}, {10, 5, 15}}, 15, 15},
		{"nothing asks how much is seen", []step{{0, 0, 0}, {0, 10, 10}, {0, 0, 10}, {10, 0, 10}}, 10, 10},
		{"the same again is skipped", []step{{0, 10, 10}, {0, 10, 10}, {3, 4, 10}}, 10, 10},
		{"overlap is skipped, the rest is new", []step{{0, 10, 10}, {5, 10, 15}}, 15, 15},
		{"a gap is not taken", []step{{0, 10, 10}, {11, 5, 10}, {10, 6, 16}}, 16, 16},
		{"a gap at the start is not taken", []step{{1, 5, 0}}, 0, 0},
		{"up to the limit", []step{{0, 100, 100}}, 100, 100},
		{"across the limit", []step{{0, 90, 90}, {90, 20, 110}}, 100, 110},
		{"all past the limit at once", []step{{0, 250, 250}}, 100, 250},
		{"past the limit nothing is held but counted", []step{{0, 100, 100}, {100, 1, 101}, {101, 99, 200}}, 100, 200},
		{"past the limit the same again is skipped", []step{{0, 150, 150}, {100, 50, 150}, {0, 10, 150}}, 100, 150},
		{"past the limit a gap is not taken", []step{{0, 150, 150}, {151, 10, 150}, {140, 20, 160}}, 100, 160},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			id := insert(t, openStore(t, Options{Dir: dir}), newJob("echo")).ID
			stream := text(300)
			for _, st := range tt.steps {
				s := openStore(t, Options{Dir: dir, MaxOutput: 100}) // every step after a restart
				if got := appendOutput(t, s, id, st.offset, stream[st.offset:st.offset+st.n]); got != st.seen {
					t.Fatalf("%d bytes at %d: seen %d, want %d", st.n, st.offset, got, st.seen)
				}
			}
			data, info := held(t, openStore(t, Options{Dir: dir}), id)
			diff(t, job.OutputInfo{Held: tt.held, Total: tt.total, Dropped: tt.total - tt.held}, info)
			if !bytes.Equal(data, stream[:tt.held]) {
				t.Errorf("held %q", data)
			}
		})
	}
}

func TestAppendOutput_BytesAreExact(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	id := insert(t, s, newJob("echo")).ID
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	appendOutput(t, s, id, 0, all)
	if got, _ := held(t, s, id); !bytes.Equal(got, all) {
		t.Errorf("held %q", got)
	}
}

func TestCutOutput_ForgetsWhatIsBehind(t *testing.T) { // newStore keeps 100 bytes
	stream := text(300)
	for _, tt := range []struct{ sent, cut, seen int64 }{{50, 20, 20}, {50, 0, 0}, {50, 50, 50}, {50, 80, 50}, {250, 100, 100}, {250, 10, 10}, {0, 0, 0}} {
		s := newStore(t)
		id := insert(t, s, newJob("echo")).ID
		appendOutput(t, s, id, 0, stream[:tt.sent])
		if err := s.CutOutput(t.Context(), id, job.Stdout, tt.cut); err != nil {
			t.Fatal(err)
		}
		if seen, err := s.AppendOutput(t.Context(), id, job.Stdout, 0, nil); seen != tt.seen || err != nil {
			t.Errorf("%+v: %d seen, %v", tt, seen, err)
		}
		appendOutput(t, s, id, tt.seen, []byte("new"))
		want := append(bytes.Clone(stream[:tt.seen]), "new"...)
		if got, _ := held(t, s, id); !bytes.Equal(got, want[:min(100, len(want))]) {
			t.Errorf("%+v: held %q", tt, got)
		}
		if _, err := sealOutput(t.Context(), s, id, job.Stdout, int64(len(want)), nil); err != nil {
			t.Fatal(err)
		}
		if err := s.CutOutput(t.Context(), id, job.Stdout, 0); err != nil {
			t.Fatal(err)
		}
		if got, _ := held(t, s, id); !bytes.Equal(got[:min(10, len(want))], want[:min(10, len(want))]) {
			t.Errorf("%+v: a sealed stream was cut: %q", tt, got)
		}
	}
}

func TestAppendOutput_StreamsAreApart(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	appendOutput(t, s, id, 0, []byte("out"))
	if seen, err := s.AppendOutput(t.Context(), id, job.Stderr, 0, []byte("error")); seen != 5 || err != nil {
		t.Fatal(seen, err)
	}
	got, err := s.Output(t.Context(), id, job.Stderr, 0, 100)
	if string(got) != "error" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, _ := held(t, s, id); string(got) != "out" {
		t.Errorf("%q", got)
	}
}

func TestAppendOutput_ManySendersAtOnceMakeOneStream(t *testing.T) {
	dir := t.TempDir()
	stores := []*Store{openStore(t, Options{Dir: dir}), openStore(t, Options{Dir: dir})} // as two processes
	id := insert(t, stores[0], newJob("echo")).ID
	stream := text(20000)
	var group sync.WaitGroup
	for i := range 8 { // each sends the whole stream, in pieces of its own size
		group.Go(func() {
			size := int64(100 + 37*i)
			for seen := int64(0); seen < int64(len(stream)); {
				next, err := stores[i%2].AppendOutput(t.Context(), id, job.Stdout, seen, stream[seen:min(seen+size, int64(len(stream)))])
				if err != nil {
					t.Error(err)
					return
				}
				seen = next
			}
		})
	}
	group.Wait()
	if got, _ := held(t, stores[0], id); !bytes.Equal(got, stream) {
		t.Errorf("%d bytes held, equal %v", len(got), bytes.Equal(got, stream))
	}
}

// sealOutput seals one stream.
func sealOutput(ctx context.Context, s *Store, id, stream string, total int64, tail []byte) (job.OutputInfo, error) {
	infos, err := s.SealOutput(ctx, id, job.StreamEnd{Stream: stream, Total: total, Tail: tail})
	if err != nil {
		return job.OutputInfo{}, err
	}
	return infos[0], nil
}

func TestSealOutput(t *testing.T) { // newStore keeps 100 bytes, so 50 of a tail
	tests := []struct {
		name  string
		sent  int64 // bytes appended before
		total int64
		tail  int64 // last bytes of the stream given
		head  int64 // bytes kept of the start
		end   int64 // bytes kept of the end, after the marker
	}{
		{"nothing", 0, 0, 0, 0, 0},
		{"whole", 60, 60, 0, 60, 0},
		{"whole, at the limit", 100, 100, 0, 100, 0},
		{"whole, with a tail that is known", 60, 60, 50, 60, 0},
		{"the tail completes it", 60, 80, 50, 80, 0},
		{"the tail is all of it", 0, 40, 40, 40, 0},
		{"one byte too long", 100, 101, 50, 50, 50},
		{"far too long", 100, 1000, 50, 50, 50},
		{"too long, and a tail longer than asked", 100, 1000, 70, 50, 50},
		{"too long, and a short tail leaves room for the head", 100, 1000, 10, 90, 10},
		{"too long, and the VM is gone", 100, 1000, 0, 100, 0},
		{"too long, and little was sent before", 20, 1000, 50, 20, 50},
		{"the VM is gone with the end", 30, 60, 0, 30, 0},
		{"the VM is gone with the middle", 30, 60, 20, 30, 20},
		{"told less than is known", 60, 20, 10, 60, 0},
		{"told less than is known, past the limit", 150, 0, 0, 100, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			id := insert(t, s, newJob("echo")).ID
			total := max(tt.total, tt.sent)
			stream := text(int(total))
			appendOutput(t, s, id, 0, stream[:tt.sent])

			want := job.OutputInfo{Total: total, Dropped: total - tt.head - tt.end}
			content := bytes.Clone(stream[:tt.head])
			if want.Dropped > 0 {
				content = fmt.Appendf(content, "\n[linus: %d bytes dropped]\n", want.Dropped)
				content = append(content, stream[total-tt.end:]...)
			}
			want.Held = int64(len(content))

			got, err := sealOutput(t.Context(), s, id, job.Stdout, tt.total, stream[tt.total-tt.tail:tt.total])
			if err != nil {
				t.Fatal(err)
			}
			diff(t, want, got)
			data, info := held(t, s, id)
			diff(t, want, info)
			diff(t, string(content), string(data))

			again, err := sealOutput(t.Context(), s, id, job.Stdout, 999, []byte("another"))
			if err != nil {
				t.Fatal(err)
			}
			diff(t, want, again)
			if seen := appendOutput(t, s, id, tt.sent, []byte("late")); seen != total {
				t.Errorf("after the seal %d bytes are seen, want %d", seen, total)
			}
			data, _ = held(t, s, id)
			diff(t, string(content), string(data))
			for offset := range total + 2 { // what the task wrote, in pages
				from := min(offset, total)
				if from >= tt.head {
					from = min(max(from, total-tt.end), total)
				}
				end := min(from+7, total)
				if from < tt.head && want.Dropped > 0 {
					end = min(end, tt.head)
				}
				page, at, err := s.Written(t.Context(), id, job.Stdout, offset, 7)
				if err != nil || at != from || !bytes.Equal(page, stream[from:end]) {
					t.Fatalf("7 bytes written from %d: %q at %d, %v; want %q at %d", offset, page, at, err, stream[from:end], from)
				}
			}
			for offset := range int64(len(content) + 2) { // in pages, across head and tail
				page, err := s.Output(t.Context(), id, job.Stdout, offset, 7)
				from := min(offset, int64(len(content)))
				if want := content[from:min(from+7, int64(len(content)))]; err != nil || !bytes.Equal(page, want) {
					t.Fatalf("7 bytes from %d: %q, %v; want %q", offset, page, err, want)
				}
			}
		})
	}
}

func TestSealOutput_InterruptedBeforeItsRowIsDoneAgain(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	stream := text(500)
	appendOutput(t, s, id, 0, stream[:120])
	write(t, s.outputPath(id, job.Stdout+tailSuffix), "left by a seal that was killed")
	if got, _ := held(t, s, id); !bytes.Equal(got, stream[:100]) {
		t.Errorf("before the seal %q is held", got)
	}
	if _, err := sealOutput(t.Context(), s, id, job.Stdout, 500, stream[450:]); err != nil {
		t.Fatal(err)
	}
	got, _ := held(t, s, id)
	diff(t, string(stream[:50])+"\n[linus: 400 bytes dropped]\n"+string(stream[450:]), string(got))
}

func TestSealOutput_LimitChangedByARestart(t *testing.T) {
	stream := text(500)
	for _, tt := range []struct {
		name  string
		limit int64
		want  string
	}{
		{"lowered", 60, string(stream[:30]) + "\n[linus: 90 bytes dropped]\n" + string(stream[120:150])},
		{"raised, the tail fills the hole", 200, string(stream[:150])},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			before := openStore(t, Options{Dir: dir, MaxOutput: 100})
			id := insert(t, before, newJob("echo")).ID
			appendOutput(t, before, id, 0, stream[:120])
			after := openStore(t, Options{Dir: dir, MaxOutput: tt.limit})
			if seen := appendOutput(t, after, id, 120, stream[120:150]); seen != 150 {
				t.Errorf("seen %d", seen)
			}
			if got, _ := held(t, after, id); !bytes.Equal(got, stream[:100]) {
				t.Errorf("held %q", got)
			}
			if _, err := sealOutput(t.Context(), after, id, job.Stdout, 150, stream[50:150]); err != nil {
				t.Fatal(err)
			}
			got, _ := held(t, after, id)
			diff(t, tt.want, string(got))
		})
	}
}

func TestWritten_OfAnOpenStreamPastTheLimit(t *testing.T) { // newStore keeps 100 bytes
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	stream := text(200)
	appendOutput(t, s, id, 0, stream)
	for offset, want := range map[int64]string{0: string(stream[:100]), 90: string(stream[90:100]), 100: "", 150: "", 300: ""} {
		data, at, err := s.Written(t.Context(), id, job.Stdout, offset, 1000)
		if string(data) != want || at != min(offset, 100) || err != nil {
			t.Errorf("from %d: %q at %d, %v; want %q", offset, data, at, err, want)
		}
	}
}

func TestOutput_NamesWhatIsWrong(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	calls := map[string]func() error{
		"offset of Output":       func() error { _, err := s.Output(t.Context(), id, job.Stdout, -1, 1); return err },
		"limit of Output":        func() error { _, err := s.Output(t.Context(), id, job.Stdout, 0, -1); return err },
		"stream of Output":       func() error { _, err := s.Output(t.Context(), id, "../manifest.json", 0, 1); return err },
		"offset of AppendOutput": func() error { _, err := s.AppendOutput(t.Context(), id, job.Stdout, -1, nil); return err },
		"offset of AppendOutput end": func() error {
			_, err := s.AppendOutput(t.Context(), id, job.Stdout, math.MaxInt64, []byte("x"))
			return err
		},
		"stream of AppendOutput": func() error { _, err := s.AppendOutput(t.Context(), id, "", 0, nil); return err },
		"stream of SealOutput":   func() error { _, err := sealOutput(t.Context(), s, id, "stdin", 0, nil); return err },
	}
	for name, call := range calls {
		var bad *job.FieldError
		if err := call(); !errors.As(err, &bad) || bad.Field != strings.Fields(name)[0] {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOutput_ReadWhileItGrowsAndIsSealed(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir(), MaxOutput: 10000})
	id := insert(t, s, newJob("echo")).ID
	stream := text(30000)
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				data, err := s.Output(t.Context(), id, job.Stdout, 0, 5000)
				if err != nil || !bytes.HasPrefix(stream, data) {
					t.Errorf("%d bytes read that were not written, %v", len(data), err)
					return
				}
			}
		})
	}
	for offset := int64(0); offset < 30000; offset += 500 {
		appendOutput(t, s, id, offset, stream[offset:offset+500])
	}
	if _, err := sealOutput(t.Context(), s, id, job.Stdout, 30000, stream[25000:]); err != nil {
		t.Error(err)
	}
	close(done)
	group.Wait()
}

// Both streams are sealed in one commit: each is half a millisecond of CPU.
func TestSealOutput_OneCommit(t *testing.T) {
	s := openCounted(t, t.TempDir())
	j := newJob("echo")
	if _, _, err := s.Insert(t.Context(), j, "", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	var infos []job.OutputInfo
	cost := during(func() {
		var err error
		infos, err = s.SealOutput(t.Context(), j.ID, job.StreamEnd{Stream: job.Stdout, Total: 3, Tail: []byte("out")}, job.StreamEnd{Stream: job.Stderr, Total: 2, Tail: []byte("er")})
		if err != nil {
			t.Fatal(err)
		}
	})
	if cost.commits != 1 {
		t.Errorf("%d commits", cost.commits)
	}
	after, err := s.Job(t.Context(), j.ID)
	if err != nil || after.Stdout != infos[0] || after.Stderr != infos[1] || infos[0].Held != 3 || infos[1].Held != 2 {
		t.Errorf("%+v %+v, %+v, %v", after.Stdout, after.Stderr, infos, err)
	}
}

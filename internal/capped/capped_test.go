package capped_test

import (
	"bytes"
	"io"
	"testing"

	"linus/internal/capped"
)

func TestWriter(t *testing.T) {
	t.Parallel()
	over := 0
	w := &capped.Writer{Most: 5, Over: func() { over++ }}
	for _, step := range []struct {
		write, kept string
		cut         bool
		over        int
	}{{"abc", "abc", false, 0}, {"de", "abcde", false, 0}, {"", "abcde", false, 0}, {"f", "abcde", true, 1}, {"gh", "abcde", true, 2}} {
		n, err := w.Write([]byte(step.write))
		if n != len(step.write) || err != nil || string(w.Bytes()) != step.kept || w.Cut() != step.cut || over != step.over {
			t.Errorf("%q: %d, %v, keeps %q, cut %t, over %d", step.write, n, err, w.Bytes(), w.Cut(), over)
		}
	}
	flood := &capped.Writer{Most: 5}
	if n, err := io.Copy(flood, bytes.NewReader(make([]byte, 1<<20))); n != 1<<20 || err != nil || len(flood.Bytes()) != 5 || !flood.Cut() {
		t.Errorf("of a flood: %d, %v, %d bytes kept", n, err, len(flood.Bytes()))
	}
}

package store

import (
	"slices"
	"testing"
)

func TestCordons_AreStored(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for range 2 {
		for _, node := range []string{"b", "a"} {
			if err := s.SetCordon(ctx, node, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := s.Cordons(ctx); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v, %v", got, err)
	}
	for range 2 {
		if err := s.SetCordon(ctx, "a", false); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Cordons(ctx); err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v, %v", got, err)
	}
}

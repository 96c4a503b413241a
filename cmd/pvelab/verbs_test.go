package main

import (
	"errors"
	"io"
	"slices"
	"testing"

	"linus/internal/lab"
)

func TestParse_TakesFlagsAroundAndBetweenTheWords(t *testing.T) {
	for _, args := range [][]string{{"--dir", "d", "down", "2"}, {"down", "--dir", "d", "2"}, {"down", "2", "--dir=d"}} {
		set, dir := flags("node", lab.Streams{Err: io.Discard})
		if err := parse(set, args); err != nil || *dir != "d" || !slices.Equal(set.Args(), []string{"down", "2"}) {
			t.Errorf("%v: words %v, dir %q, %v", args, set.Args(), *dir, err)
		}
	}
	set, _ := flags("node", lab.Streams{Err: io.Discard})
	if err := parse(set, []string{"down", "--force"}); !errors.Is(err, errUsage) {
		t.Errorf("an unknown flag: %v", err)
	}
}

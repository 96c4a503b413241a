package fleet_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/store"
)

// What many record at once is told in the order in which it is stored.
func TestChanges_AreToldInTheOrderOfCommits(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	changes := &job.Changes{}
	s.Changes = changes
	f := fleet.New(fleet.Options{Store: s, Jobs: s, Changes: changes})
	v := asked("dev")
	if _, _, err := s.InsertVM(t.Context(), v, "", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	var told []string
	changes.Read(func(h job.Happening) {
		for _, e := range h.(job.VMChanged).Events {
			told = append(told, e.Text)
		}
	})
	var writers sync.WaitGroup
	for w := range 16 {
		writers.Go(func() {
			for n := range 25 {
				if err := f.Tell(t.Context(), v.Job, []job.Event{{Kind: job.EventProgress, Text: fmt.Sprint(w, " ", n)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if err := changes.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	events, err := s.VMEvents(t.Context(), v.Job)
	if err != nil {
		t.Fatal(err)
	}
	var stored []string
	for _, e := range events {
		stored = append(stored, e.Text)
	}
	if diff := cmp.Diff(stored, told); diff != "" || len(told) != 16*25 {
		t.Errorf("of %d told (-stored +told):\n%s", len(told), diff)
	}
}

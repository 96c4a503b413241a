package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
)

// What a job waits for may quote a host: it is stored as it may be shown, without escapes and
// bounded.
func TestAcquire_WhatAJobWaitsForMayBeShown(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Placer = &placer{place: func(job.Placement) (string, error) {
			return "", &job.NoRoomError{Text: "no room \x1b[2J" + strings.Repeat("x", 2*job.MaxText)}
		}}
		r.start()
		ctx, end := context.WithCancel(context.Background())
		acquired := make(chan job.Job)
		go func() {
			j, _ := r.acquire(ctx, job.Manifest{})
			acquired <- j
		}()
		r.pass(time.Second)
		end()
		j, err := r.store.Job(context.Background(), (<-acquired).ID)
		events, unread := r.store.Events(context.Background(), j.ID, 0)
		if err != nil || unread != nil || len(events) == 0 {
			t.Fatalf("%v, %v, %d events", err, unread, len(events))
		}
		for _, text := range []string{j.Progress, events[len(events)-1].Text} {
			if !strings.HasPrefix(text, "waiting: no room ") || strings.Contains(text, "\x1b") || len(text) > job.MaxText {
				t.Errorf("%d bytes: %.40q", len(text), text)
			}
		}
	})
}

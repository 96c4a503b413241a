package store

import (
	"testing"
	"time"

	"linus/internal/job"
)

// Of several that find a message due, one takes it.
func TestWebhooks_AreTakenOnce(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	j := insert(t, s, newJob("x"))
	at := time.Now().UTC().Truncate(time.Millisecond)
	_, err := s.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) {
		return job.Record{Outbox: []job.Webhook{
			{ID: "later", JobID: j.ID, Body: []byte(`{}`), CreatedAt: at, NextAt: at.Add(time.Hour)},
			{ID: "now", JobID: j.ID, URL: "https://ci.example/", Private: true, Body: []byte(`{"a":1}`), CreatedAt: at, NextAt: at},
		}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Webhooks(t.Context(), 10)
	if err != nil || len(all) != 2 || all[0].ID != "now" || all[0].URL != "https://ci.example/" || !all[0].Private || string(all[0].Body) != `{"a":1}` || !all[0].NextAt.Equal(at) || all[0].Attempts != 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []bool{true, false} {
		if taken, err := s.TakeWebhook(t.Context(), all[0], at.Add(2*time.Hour)); err != nil || taken != want {
			t.Errorf("taken %d: %v, %v", i, taken, err)
		}
	}
	all, err = s.Webhooks(t.Context(), 10)
	if err != nil || len(all) != 2 || all[1].ID != "now" || all[1].Attempts != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := s.DropWebhook(t.Context(), "now"); err != nil {
		t.Error(err)
	}
	if all, err = s.Webhooks(t.Context(), 10); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

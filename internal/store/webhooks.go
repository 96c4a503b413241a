package store

import (
	"context"
	"encoding/json"
	"time"

	"linus/internal/job"
)

// changeWebhooks adds, postpones and removes messages with a change of their job.
func changeWebhooks(tx *tx, r job.Record) error {
	for _, id := range r.Dropped {
		tx.post(`DELETE FROM webhooks WHERE id = ?`, id)
	}
	for _, w := range r.Postponed {
		tx.post(`UPDATE webhooks SET next_at = ? WHERE id = ?`, timeText(w.NextAt), w.ID)
	}
	return addWebhooks(tx, r.Outbox)
}

func addWebhooks(tx *tx, all []job.Webhook) error {
	for _, w := range all {
		doc, err := json.Marshal(w)
		if err != nil {
			return err
		}
		tx.post(`INSERT INTO webhooks (id, job_id, next_at, attempts, doc) VALUES (?, ?, ?, ?, ?)`,
			w.ID, w.JobID, timeText(w.NextAt), w.Attempts, string(doc))
	}
	return nil
}

// Webhooks returns at most limit messages, in the order in which they are due.
func (s *Store) Webhooks(ctx context.Context, limit int) ([]job.Webhook, error) {
	all, err := query(ctx, s.read, func(row scanner) (w job.Webhook, err error) {
		var doc, next string
		var attempts int
		if err = row.Scan(&doc, &next, &attempts); err == nil {
			err = json.Unmarshal([]byte(doc), &w)
		}
		if err == nil {
			w.Attempts = attempts
			w.NextAt, err = time.Parse(time.RFC3339Nano, next)
		}
		return w, err
	}, `SELECT doc, next_at, attempts FROM webhooks ORDER BY next_at`+atMost, limit)
	return all, tried(err, "read webhooks")
}

// TakeWebhook records that an attempt to deliver a message begins, and when the next one is due. It
// returns false if somebody else did so meanwhile.
func (s *Store) TakeWebhook(ctx context.Context, w job.Webhook, next time.Time) (bool, error) {
	changed, err := execCounted(ctx, s.transaction, "", `UPDATE webhooks SET attempts = attempts + 1, next_at = ? WHERE id = ? AND attempts = ?`, timeText(next), w.ID, w.Attempts)
	return err == nil && changed == 1, tried(err, "take webhook %s", w.ID)
}

// DropWebhook removes a message of a VM, or one whose job was deleted.
func (s *Store) DropWebhook(ctx context.Context, id string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM webhooks WHERE id = ?`, id)
	return tried(err, "remove webhook %s", id)
}

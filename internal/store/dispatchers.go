package store

import (
	"context"
	"encoding/json"
	"time"

	"linus/internal/job"
)

// forgetDispatcher is how many seconds after its last report a dispatcher is forgotten, unless it
// is drained.
const forgetDispatcher = 24 * 3600

// dispatcher is a dispatcher, and its status that was last reported.
type dispatcher struct {
	job.Dispatcher
	told string
}

// Dispatchers returns the dispatchers that serve queues, by queue and name.
func (s *Store) Dispatchers(ctx context.Context) (all []job.Dispatcher, err error) {
	rows, err := s.dispatchers(ctx)
	for _, d := range rows {
		all = append(all, d.Dispatcher)
	}
	return all, err
}

func (s *Store) dispatchers(ctx context.Context) ([]dispatcher, error) {
	all, err := query(ctx, s.read, func(row scanner) (d dispatcher, err error) {
		var doc string
		var heard float64
		var drain int
		if err = row.Scan(&doc, &heard, &drain, &d.told); err == nil {
			err = json.Unmarshal([]byte(doc), &d.Dispatcher)
		}
		d.HeardAt, d.Draining = time.UnixMilli(int64(heard*1000)).UTC(), d.Draining || drain != 0
		return d, err
	}, `SELECT doc, heard, drain, told FROM dispatchers WHERE drain = 1 OR heard > `+s.dialect.clock()+` - ? ORDER BY queue, name, principal`, forgetDispatcher)
	return all, tried(err, "read the dispatchers")
}

// TellDispatchers records the messages for each dispatcher whose status differs from the one told
// last. was is that one; empty if none was told.
func (s *Store) TellDispatchers(ctx context.Context, messages func(was string, d job.Dispatcher) []job.Webhook) error {
	all, err := s.dispatchers(ctx)
	for _, d := range all {
		if err != nil || d.told == d.Status() {
			continue
		}
		err = s.transaction(ctx, func(tx *tx) error {
			n, err := tx.ExecContext(ctx, `UPDATE dispatchers SET told = ? WHERE principal = ? AND queue = ? AND name = ? AND told = ?`, d.Status(), d.Principal, d.Queue, d.Name, d.told)
			if err != nil || n == 0 { // the dispatcher is gone, or another engine has told its status
				return err
			}
			return addWebhooks(tx, messages(d.told, d.Dispatcher))
		})
	}
	return tried(err, "tell of the dispatchers in %s", s.name)
}

// ReportDispatcher writes the state of a dispatcher, and reports whether it must take no more work.
// A dispatcher that has ended is forgotten, unless it is drained. ReportDispatcher returns a
// *job.FieldError if the principal has as many dispatchers as it may.
func (s *Store) ReportDispatcher(ctx context.Context, d job.Dispatcher) (drain bool, err error) {
	doc, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	err = s.transaction(ctx, func(tx *tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM dispatchers WHERE drain = 0 AND (heard < `+s.dialect.clock()+` - ? OR ? = 1 AND principal = ? AND queue = ? AND name = ?)`,
			forgetDispatcher, truth(d.Ended), d.Principal, d.Queue, d.Name); err != nil {
			return err
		}
		if d.Ended {
			_, err := tx.ExecContext(ctx, `UPDATE dispatchers SET doc = ? WHERE principal = ? AND queue = ? AND name = ?`, string(doc), d.Principal, d.Queue, d.Name)
			return err
		}
		n, err := first[int](ctx, tx, `SELECT count(*) FROM dispatchers WHERE principal = ? AND NOT (queue = ? AND name = ?)`, d.Principal, d.Queue, d.Name)
		if err != nil {
			return err
		}
		if n >= job.MaxDispatchers {
			return &job.FieldError{Field: "name", Problem: "is one dispatcher too many", Remedy: "end some: linus dispatch list shows them", Fault: job.FaultLimit}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO dispatchers (principal, queue, name, started, heard, doc) VALUES (?, ?, ?, ?, `+s.dialect.clock()+`, ?)
			ON CONFLICT (principal, queue, name) DO UPDATE SET doc = excluded.doc, heard = excluded.heard, started = excluded.started`,
			d.Principal, d.Queue, d.Name, timeText(d.StartedAt), string(doc)); err != nil {
			return err
		}
		n, err = first[int](ctx, tx, `SELECT drain FROM dispatchers WHERE principal = ? AND queue = ? AND name = ?`, d.Principal, d.Queue, d.Name)
		drain = n != 0
		return err
	})
	return drain, tried(err, "write dispatcher %s to %s", d.Name, s.name)
}

// DrainDispatcher notes whether dispatchers of a name are to take no more work, and returns how
// many there are. They are one principal's, or all principals' if principal is nil.
func (s *Store) DrainDispatcher(ctx context.Context, principal *string, name string, drain bool) (int64, error) {
	var of string
	if principal != nil {
		of = *principal
	}
	n, err := execCounted(ctx, s.transaction, "", `UPDATE dispatchers SET drain = ? WHERE name = ? AND (1 = ? OR principal = ?)`, truth(drain), name, truth(principal == nil), of)
	return n, tried(err, "drain dispatcher %s in %s", name, s.name)
}

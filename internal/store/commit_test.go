package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"linus/internal/job"
)

// hold keeps the writer busy until release is called, so that what comes
// meanwhile shares one commit.
func hold(t *testing.T, s *Store) (release func()) {
	t.Helper()
	holding, proceed := make(chan struct{}), make(chan struct{})
	var held sync.WaitGroup
	held.Go(func() {
		err := s.transaction(context.Background(), func(*tx) error {
			close(holding)
			<-proceed
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-holding
	return func() {
		close(proceed)
		held.Wait()
	}
}

// put returns work that stores a key, and then ends as then says.
func put(key string, then func(*tx) error) func(*tx) error {
	return func(tx *tx) error {
		if _, err := tx.ExecContext(context.Background(), `INSERT INTO meta (key, value) VALUES (?, '')`, key); err != nil {
			return err
		}
		return then(tx)
	}
}

// keys returns the keys of meta that are not the store's own.
func keys(t *testing.T, s *Store) []string {
	t.Helper()
	found, err := query(t.Context(), s.read, func(row scanner) (key string, err error) {
		err = row.Scan(&key)
		return key, err
	}, `SELECT key FROM meta WHERE key NOT LIKE ? ORDER BY key`, marks+"%")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// await returns when as many changes wait for the writer.
func await(t *testing.T, s *Store, changes int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		s.waiting.mu.Lock()
		waiting := len(s.waiting.waiting)
		s.waiting.mu.Unlock()
		if waiting == changes {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d changes wait, want %d", waiting, changes)
		}
	}
}

func TestTransaction_OneCallersFailureIsItsOwn(t *testing.T) {
	own := errors.New("own")
	tests := []struct {
		name string
		then func(*tx) error
		want func(error, any) bool // the error or the panic the caller gets
	}{
		{"an error", func(*tx) error { return own }, func(err error, p any) bool { return err == own && p == nil }}, //nolint:errorlint // it comes unwrapped
		{"a panic", func(*tx) error { panic("bug") }, func(_ error, p any) bool { return p == "bug" }},
		{"a statement that is refused", func(tx *tx) error {
			_, err := tx.ExecContext(context.Background(), `INSERT INTO meta (key, value) VALUES ('twice', ''), ('twice', '')`)
			return err
		}, func(err error, _ any) bool { return err != nil }},
		{"one that runs with the next", func(tx *tx) error {
			tx.post(`INSERT INTO meta (key, value) VALUES ('twice', ''), ('twice', '')`)
			return nil
		}, func(err error, _ any) bool { return err != nil }},
		{"one that ends the whole transaction", func(tx *tx) error {
			_, err := tx.ExecContext(context.Background(), `INSERT OR ROLLBACK INTO meta (key, value) VALUES ('twice', ''), ('twice', '')`)
			return err
		}, func(err error, _ any) bool { return err != nil }},
		{"one that ends it and is not reported", func(tx *tx) error {
			_, err := tx.ExecContext(context.Background(), `ROLLBACK`)
			return err
		}, func(err error, _ any) bool { return err != nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			release := hold(t, s)
			var callers sync.WaitGroup
			var want []string
			for n := range 20 {
				key := fmt.Sprintf("%02d", n)
				if n%5 == 2 {
					callers.Go(func() {
						var err error
						defer func() {
							if p := recover(); !tt.want(err, p) {
								t.Errorf("the caller got %v, and the panic %v", err, p)
							}
						}()
						err = s.transaction(context.Background(), put(key, tt.then))
					})
					continue
				}
				want = append(want, key)
				callers.Go(func() {
					if err := s.transaction(context.Background(), put(key, func(*tx) error { return nil })); err != nil {
						t.Errorf("another caller got %v", err)
					}
				})
			}
			await(t, s, 20)
			release()
			callers.Wait()
			diff(t, want, keys(t, s))
		})
	}
}

func TestTransaction_CallsAtTheSameTimeShareACommit(t *testing.T) {
	s := openCounted(t, t.TempDir())
	release := hold(t, s)
	const callers = 64
	var inserting sync.WaitGroup
	ids := make([]string, callers)
	got := during(func() {
		for n := range ids {
			inserting.Go(func() {
				j := newJob("echo")
				ids[n] = j.ID
				if _, _, err := s.Insert(context.Background(), j, "", job.Limits{}); err != nil {
					t.Error(err)
				}
			})
		}
		await(t, s, callers)
		release()
		inserting.Wait()
	})
	if got.commits != 2 { // hold's own, and one for all that waited
		t.Errorf("%d inserts made %d commits", callers, got.commits-1)
	}
	waiting, err := s.Waiting(t.Context())
	slices.Sort(ids)
	if err != nil || !slices.Equal(waiting, ids) {
		t.Errorf("%d of %d jobs are stored, %v", len(waiting), callers, err)
	}
}

func TestTransaction_CancelledWhileItWaitsWritesNothing(t *testing.T) {
	s := newStore(t)
	release := hold(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { failed <- s.transaction(ctx, put("cancelled", func(*tx) error { return nil })) }()
	await(t, s, 1)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if found := keys(t, s); len(found) > 0 {
		t.Errorf("written: %v", found)
	}
}

func TestTransaction_AfterCloseIsAnError(t *testing.T) {
	s, err := open(t, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // closing again is fine
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Insert(t.Context(), newJob("echo"), "", job.Limits{}); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Job(t.Context(), "j"); !errors.Is(err, errClosed) {
		t.Errorf("a read: %v", err)
	}
}

// A change is given the job as it is, also when it runs for the second time.
func TestUpdate_RunsAgainWhenAnotherCallersChangeFails(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	release := hold(t, s)
	var callers sync.WaitGroup
	callers.Go(func() {
		_ = s.transaction(context.Background(), func(tx *tx) error {
			_, err := tx.ExecContext(context.Background(), `ROLLBACK`)
			return err
		})
	})
	for range 10 {
		callers.Go(func() {
			update(t, s, id, func(j *job.Job) ([]job.Event, error) {
				j.Progress += "x"
				return []job.Event{{Kind: job.EventProgress, Text: j.Progress}}, nil
			})
		})
	}
	await(t, s, 11)
	release()
	callers.Wait()
	j, err := s.Job(t.Context(), id)
	events, eventsErr := s.Events(t.Context(), id, 0)
	if err != nil || eventsErr != nil || j.Progress != "xxxxxxxxxx" || len(events) != 10 {
		t.Errorf("progress %q and %d events, %v, %v", j.Progress, len(events), err, eventsErr)
	}
}

// What many write at once is told in the order in which it is committed; a change that fails, or
// that is no news, is not.
func TestChanges_AreToldAsTheyAreCommitted(t *testing.T) {
	s := newStore(t)
	s.Changes = &job.Changes{}
	var told, want []string
	s.Changes.Read(func(h job.Happening) { told = append(told, h.(job.Change).Events[0].Text) })
	j, _, err := s.Insert(t.Context(), newJob("x"), "", job.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	own := errors.New("own")
	var writers sync.WaitGroup
	for range 16 {
		writers.Go(func() {
			for range 10 {
				_, err := s.Update(t.Context(), j.ID, job.EventsOnly(count))
				_, failed := s.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) { return job.Record{}, own })
				_, quiet := s.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) { return job.Record{Quiet: true}, nil })
				if err != nil || !errors.Is(failed, own) || quiet != nil {
					t.Errorf("%v, %v, %v", err, failed, quiet)
				}
			}
		})
	}
	writers.Wait()
	if err := s.Changes.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 160 {
		want = append(want, strconv.Itoa(n+1))
	}
	diff(t, want, told)
}

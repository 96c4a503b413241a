package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"linus/internal/job"
	"linus/internal/pgtest"
)

// openURL opens a store of a PostgreSQL database.
func openURL(t testing.TB, url string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{URL: url, MaxOutput: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // its server may be gone
	return s
}

// count is a change that can be counted.
func count(j *job.Job) ([]job.Event, error) {
	n, _ := strconv.Atoi(j.Progress)
	j.Progress = strconv.Itoa(n + 1)
	return []job.Event{{Kind: job.EventProgress, Text: j.Progress}}, nil
}

// checkCount checks that a job was changed n times.
func checkCount(t *testing.T, s *Store, id string, n int) {
	t.Helper()
	j, err := s.Job(t.Context(), id)
	events, eventsErr := s.Events(t.Context(), id, 0)
	if err != nil || eventsErr != nil || j.Progress != strconv.Itoa(n) || len(events) != n {
		t.Errorf("%d changes were acknowledged; progress %q and %d events, %v, %v", n, j.Progress, len(events), err, eventsErr)
	}
}

// The database crashes and starts again while many write: no call fails, nothing
// acknowledged is lost, nothing is written twice.
func TestPostgres_RestartedInTheMiddle(t *testing.T) {
	server := pgtest.Start(t)
	s := openURL(t, server.Database(t))
	id := insert(t, s, newJob("echo")).ID
	var updates, inserts atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for range 6 {
		writers.Go(func() {
			for ctx.Err() == nil {
				update(t, s, id, count)
				updates.Add(1)
			}
		})
		writers.Go(func() {
			for ctx.Err() == nil {
				j := newJob("echo")
				if _, isNew, err := s.Insert(context.Background(), j, "key-"+j.ID, job.Limits{}); err != nil || !isNew {
					t.Errorf("insert: new %v, %v", isNew, err)
				}
				inserts.Add(1)
			}
		})
	}
	var out sync.WaitGroup
	stream, seen := text(100), int64(0)
	out.Go(func() {
		for ; seen < 100 && ctx.Err() == nil; seen++ {
			if got, err := s.AppendOutput(context.Background(), id, job.Stdout, seen, stream[seen:seen+1]); err != nil || got != seen+1 {
				t.Errorf("output: %d seen, want %d: %v", got, seen+1, err)
			}
		}
	})
	for round := range 4 {
		enough := updates.Load() + 100
		for deadline := time.Now().Add(time.Minute); updates.Load() < enough; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: no progress", round)
			}
		}
		if round < 3 {
			server.Restart(t)
		}
	}
	stop()
	writers.Wait()
	out.Wait()
	checkCount(t, s, id, int(updates.Load()))
	waiting, err := s.Waiting(t.Context())
	if err != nil || int64(len(waiting)) != inserts.Load()+1 {
		t.Errorf("%d jobs, %d were acknowledged, %v", len(waiting), inserts.Load()+1, err)
	}
	if got, _ := held(t, s, id); !bytes.Equal(got, stream[:seen]) {
		t.Errorf("%d bytes held, %d were acknowledged", len(got), seen)
	}
}

// cutting cuts the connection in a commit: before the database has got it, or
// after.
type cutting struct {
	dialect
	before, after atomic.Int64 // counted down by commits; at 0 it is cut
	forgets       bool         // how a transaction ended cannot be found out
}

func (c *cutting) writesOn(conn *sql.Conn) runner {
	return cuttingRunner{c.dialect.writesOn(conn), conn, c}
}

func (c *cutting) commitOutcome(ctx context.Context, q querier, id string) (bool, error) {
	if c.forgets {
		return false, io.ErrUnexpectedEOF
	}
	return c.dialect.commitOutcome(ctx, q, id)
}

type cuttingRunner struct {
	runner
	on *sql.Conn
	c  *cutting
}

func (e cuttingRunner) run(ctx context.Context, all []statement, read func(scanner) error) (int64, int, error) {
	commits := all[len(all)-1].text == "COMMIT"
	before, after := commits && e.c.before.Add(-1) == 0, commits && e.c.after.Add(-1) == 0
	if !before {
		changed, failed, err := e.runner.run(ctx, all, read)
		if !after || err != nil {
			return changed, failed, err
		}
	}
	_ = raw(e.on, func(c *pgx.Conn) error { return c.Close(ctx) })
	return 0, 0, io.ErrUnexpectedEOF
}

// tripRunner counts the round trips of a writer.
type tripRunner struct {
	runner
	trips int
}

func (r *tripRunner) run(ctx context.Context, all []statement, read func(scanner) error) (int64, int, error) {
	r.trips++
	return r.runner.run(ctx, all, read)
}

// Each round trip wakes the engine, which costs more than the statement.
func TestPostgres_AnUpdateIsTwoRoundTrips(t *testing.T) {
	s := openURL(t, pgtest.Database(t))
	if _, err := s.Join(t.Context(), job.EngineInfo{}, time.Hour); err != nil {
		t.Fatal(err)
	}
	id := insert(t, s, newJob("echo")).ID
	r := &tripRunner{runner: s.write.runner}
	s.write.runner = r
	update(t, s, id, func(j *job.Job) ([]job.Event, error) {
		j.Status = job.Provisioning
		return []job.Event{{Kind: job.EventPhaseStarted}, {Kind: job.EventStatus}}, nil
	})
	if r.trips != 2 {
		t.Errorf("%d round trips, want one that reads the job and one that writes it", r.trips)
	}
}

// A connection that is lost in a commit leaves nobody in the dark: what was
// written is acknowledged and not written again, what was not is written.
func TestPostgres_ConnectionLostInACommit(t *testing.T) {
	url := pgtest.Database(t)
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			s := openURL(t, url)
			c := &cutting{dialect: s.dialect}
			s.dialect, s.write.runner = c, cuttingRunner{s.write.runner, s.write.conn, c}
			id := insert(t, s, newJob("echo")).ID
			release := hold(t, s)
			var callers sync.WaitGroup
			for n := range 20 {
				callers.Go(func() {
					if n%5 == 0 {
						refused := errors.New("refused")
						if _, err := s.Update(context.Background(), id, func(*job.Job) (job.Record, error) { return job.Record{}, refused }); !errors.Is(err, refused) {
							t.Errorf("a refused change: %v", err)
						}
						return
					}
					update(t, s, id, count)
				})
			}
			await(t, s, 20)
			cut := map[string]*atomic.Int64{"before": &c.before, "after": &c.after}[when]
			cut.Store(2) // hold's own commit is first
			release()
			callers.Wait()
			if cut.Load() > 0 {
				t.Error("no connection was cut")
			}
			checkCount(t, s, id, 16)
		})
	}
}

// If nobody can say how a transaction ended, the error says so, and the change
// does not run again.
func TestPostgres_CommitOfUnknownFate(t *testing.T) {
	s := openURL(t, pgtest.Database(t))
	id := insert(t, s, newJob("echo")).ID
	c := &cutting{dialect: s.dialect, forgets: true}
	s.dialect, s.write.runner, s.patience = c, cuttingRunner{s.write.runner, s.write.conn, c}, 50*time.Millisecond
	c.after.Store(1)
	if _, err := s.Update(t.Context(), id, job.EventsOnly(count)); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("got %v", err)
	}
	checkCount(t, s, id, 1)
}

func TestPostgres_TwoStoresUpdateOneJob(t *testing.T) {
	url := pgtest.Database(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	id := insert(t, stores[0], newJob("echo")).ID
	var writers sync.WaitGroup
	for n := range 8 {
		writers.Go(func() {
			for range 25 {
				update(t, stores[n%2], id, count)
			}
		})
	}
	writers.Wait()
	checkCount(t, stores[0], id, 200)
}

func TestPostgres_TwoStoresInsertOneKey(t *testing.T) {
	url := pgtest.Database(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	for n := range 20 {
		var inserting sync.WaitGroup
		var created atomic.Int64
		ids := make([]string, 2)
		for i, s := range stores {
			inserting.Go(func() {
				j, isNew, err := s.Insert(context.Background(), newJob("echo"), fmt.Sprint("key-", n), job.Limits{})
				if err != nil {
					t.Error(err)
				}
				if ids[i] = j.ID; isNew {
					created.Add(1)
				}
			})
		}
		inserting.Wait()
		if created.Load() != 1 || ids[0] != ids[1] {
			t.Fatalf("%d were created: %v", created.Load(), ids)
		}
	}
}

// Two engines lock the same rows in turn: PostgreSQL ends one transaction, which
// runs again.
func TestPostgres_Deadlock(t *testing.T) {
	url := pgtest.Database(t)
	stores := []*Store{openURL(t, url), openURL(t, url)}
	ids := []string{insert(t, stores[0], newJob("echo")).ID, insert(t, stores[0], newJob("echo")).ID}
	var locked, both sync.WaitGroup
	locked.Add(2)
	var runs atomic.Int64
	for i, s := range stores {
		both.Go(func() {
			var once sync.Once
			err := s.transaction(context.Background(), func(tx *tx) error {
				runs.Add(1)
				for _, id := range []string{ids[i], ids[1-i]} {
					j, err := s.one(tx.ctx, tx, `jobs.id = ?`+s.dialect.lock("jobs"), id)
					if err != nil {
						return err
					}
					once.Do(func() {
						locked.Done()
						locked.Wait()
					})
					events, err := count(&j)
					if err == nil {
						err = updateRow(tx, nil, j, job.Record{Events: events})
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if runs.Load() < 3 {
		t.Errorf("there was no deadlock: %d runs", runs.Load())
	}
	for _, id := range ids {
		checkCount(t, stores[0], id, 2)
	}
}

// A database that stays away is an error that says where it is and what to do,
// and not with which password.
func TestPostgres_Away(t *testing.T) {
	server := pgtest.Start(t)
	var log bytes.Buffer
	s, err := Open(t.Context(), Options{URL: server.Database(t), Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	id := insert(t, s, newJob("echo")).ID
	server.Stop()
	s.patience = 200 * time.Millisecond
	_, readErr := s.Job(t.Context(), id)
	_, writeErr := s.Update(t.Context(), id, job.EventsOnly(count))
	for _, err := range []error{readErr, writeErr} {
		for _, want := range []string{"PostgreSQL database test_1 at ", "LINUS_DATABASE_URL", "tried "} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	s.patience = time.Hour
	if _, err := s.Update(ctx, id, job.EventsOnly(count)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller without patience: %v", err)
	}
	said := fmt.Sprint(readErr, writeErr, log.String())
	for _, url := range []string{"postgres://ada:" + pgtest.Password + "@127.0.0.1:1/linus", "postgres://ada:" + pgtest.Password + "@[", "postgres:///linus?sslmode=odd&password=" + pgtest.Password} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if s, err := Open(ctx, Options{URL: url}); err == nil {
			t.Error("opened", s.Close())
		} else {
			said += fmt.Sprintf("%v %+v", err, err)
		}
		cancel()
	}
	if strings.Contains(said, pgtest.Password) {
		t.Errorf("the password is in: %s", said)
	}
	server.Launch(t)
	update(t, s, id, count)
	checkCount(t, s, id, 1)
}

// What a guest says is stored, whatever bytes it has.
func TestUpdate_TextsThatAreNone(t *testing.T) {
	s := newStore(t)
	j := newJob("echo \x00 \xff")
	if _, _, err := s.Insert(t.Context(), j, "key \x00 \xff", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	update(t, s, j.ID, func(j *job.Job) ([]job.Event, error) {
		j.Progress = "a\x00b\xff"
		return []job.Event{{Kind: job.EventProgress, Text: "a\x00b\xff"}}, nil
	})
	if _, err := s.Submitted(t.Context(), "key \x00 \xff"); err != nil {
		t.Error(err)
	}
	events, err := s.Events(t.Context(), j.ID, 0)
	if err != nil || len(events) != 1 || !strings.HasPrefix(events[0].Text, "a") {
		t.Errorf("%+v, %v", events, err)
	}
}

// Each notice wakes every other engine: progress waits for the next one of anything else,
// or for a moment to be over.
func TestPostgres_ProgressIsToldWithTheNextNotice(t *testing.T) {
	url := pgtest.Database(t)
	one, other := openURL(t, url), openURL(t, url)
	joined(t, one, time.Hour)
	joined(t, other, time.Hour)
	heard := make(chan job.Notice, 100)
	go other.Listen(t.Context(), func(n job.Notice) { heard <- n }) //nolint:errcheck // it ends with the test
	await := func(want string) {
		t.Helper()
		for {
			select {
			case n := <-heard:
				if n.Kind == job.NoticeMissed && want == "" || n.Kind == job.NoticeChanged && n.Job == want {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no change of %q was heard", want)
			}
		}
	}
	await("")
	a, b := insert(t, one, newJob("a")).ID, insert(t, one, newJob("b")).ID
	takes(t, one, a)
	takes(t, one, b)
	progress := func(*job.Job) ([]job.Event, error) { return []job.Event{{Kind: job.EventProgress}}, nil }
	left := func(told time.Time) (n int) {
		t.Helper()
		err := one.transaction(t.Context(), func(*tx) error { // it is the writer's
			n, one.gathered.told = len(one.gathered.jobs), told
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return n
	}
	left(time.Now().Add(time.Hour))
	update(t, one, a, progress)
	update(t, one, a, progress)
	if n := left(time.Now().Add(time.Hour)); n != 1 {
		t.Errorf("%d jobs whose progress is not told yet, want 1", n)
	}
	update(t, one, b, func(j *job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventStatus}}, j.Become(job.Provisioning)
	})
	await(a)
	if n := left(time.Now().Add(-time.Hour)); n != 0 {
		t.Errorf("%d jobs whose progress is not told yet, want none", n)
	}
	update(t, one, a, progress)
	await(a)
	left(time.Now())
	update(t, one, b, progress)
	await(b) // nothing else is written
}

// What one engine changes another hears, also after the connection on which it listens
// was cut: then it hears first that something may be missing.
func TestPostgres_EnginesHearOfEachOther(t *testing.T) {
	url := pgtest.Database(t)
	one, other := openURL(t, url), openURL(t, url)
	joined(t, one, time.Hour)
	joined(t, other, time.Hour)
	heard := make(chan job.Notice, 100)
	go other.Listen(t.Context(), func(n job.Notice) { heard <- n }) //nolint:errcheck // it ends with the test
	await := func(want job.Notice) {
		t.Helper()
		for {
			select {
			case n := <-heard:
				if n == want {
					return
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("not heard: %+v", want)
			}
		}
	}
	await(job.Notice{Kind: job.NoticeMissed})
	j := insert(t, one, newJob("one"))
	await(job.Notice{Kind: job.NoticeWaiting, Job: j.ID})
	takes(t, one, j.ID)
	await(job.Notice{Kind: job.NoticeTaken, Job: j.ID})
	update(t, one, j.ID, func(j *job.Job) ([]job.Event, error) { return nil, j.Become(job.Provisioning) })
	update(t, one, j.ID, func(*job.Job) ([]job.Event, error) { return []job.Event{{Kind: job.EventProgress}}, nil })
	await(job.Notice{Kind: job.NoticeChanged, Job: j.ID})
	if err := one.Tell(t.Context(), job.Notice{Kind: job.NoticeHeard, Job: j.ID, Progress: "\x01'\n", End: "exit code 3"}); err != nil {
		t.Fatal(err)
	}
	await(job.Notice{Kind: job.NoticeHeard, Job: j.ID, Progress: "\x01'\n", End: "exit code 3"})

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // its server goes with it
	if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'`); err != nil {
		t.Fatal(err)
	}
	await(job.Notice{Kind: job.NoticeMissed})
	if err := one.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(job.Notice{Kind: job.NoticeFree})
	// Its own are not heard, and it has heard of nothing without an event.
	insert(t, other, newJob("its own"))
	select {
	case n := <-heard:
		t.Errorf("it hears itself: %+v", n)
	default:
	}
}

// An engine that is stopped in the middle of a transaction cannot keep the others from
// evicting it, and what it had in hand is not written.
func TestPostgres_BuryAnEngineInATransaction(t *testing.T) {
	url := pgtest.Database(t)
	dead, other := openURL(t, url), openURL(t, url)
	joined(t, dead, time.Hour)
	joined(t, other, time.Hour)
	j := insert(t, dead, newJob("one"))
	takes(t, dead, j.ID)
	if err := dead.Renew(t.Context(), -time.Second); err != nil {
		t.Fatal(err)
	}
	stopped, goOn := make(chan struct{}), make(chan struct{})
	late := make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := dead.Update(context.Background(), j.ID, func(j *job.Job) (job.Record, error) {
			once.Do(func() { close(stopped) })
			<-goOn
			return job.Record{}, j.Become(job.Provisioning)
		})
		late <- err
	}()
	<-stopped
	if evicted, err := other.Evict(t.Context(), dead.EngineID(), false); err != nil || !evicted {
		t.Fatalf("evicted %t, %v", evicted, err)
	}
	if !takes(t, other, j.ID) {
		t.Error("its job is not free")
	}
	close(goOn)
	if err := <-late; !errors.Is(err, job.ErrDetach) {
		t.Errorf("the late write: %v", err)
	}
	if got, err := other.Job(t.Context(), j.ID); err != nil || got.Status != job.Pending || got.Engine != other.EngineID() {
		t.Errorf("%+v, %v", got, err)
	}
}

// After a crash the database gives the IDs of transactions again that it has lost: none
// of them is taken for one that was committed.
func TestPostgres_LostTransactionAfterACrash(t *testing.T) {
	server := pgtest.Start(t)
	url := server.Database(t)
	s := openURL(t, url)
	insert(t, s, newJob("echo"))
	s.write.ctx = t.Context()
	id, err := s.dialect.begin(s.write)
	if err == nil {
		_, err = s.write.ExecContext(t.Context(), `INSERT INTO meta (key, value) VALUES ('lost', '')`)
	}
	if err != nil {
		t.Fatal(err)
	}
	server.Restart(t)
	other := openURL(t, url)
	for n := range 20 {
		other.write.ctx = t.Context()
		committed, err := other.dialect.commitOutcome(t.Context(), other.write, id)
		if err != nil || committed {
			t.Fatalf("after %d other transactions: committed %t, %v", n, committed, err)
		}
		insert(t, other, newJob("echo"))
	}
}

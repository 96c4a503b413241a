package store

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

var at = time.Date(2026, 3, 1, 12, 30, 0, 5000, time.UTC)

func TestInsert_KeepsJobAndManifest(t *testing.T) {
	s := newStore(t)
	j := newJob("echo '<&>'\x01 ü")
	j.Manifest.Files = []job.File{{Path: "/a", Content: "aGk=", Mode: "0600"}, {Path: "/b", Content: "AA=="}}
	j.Manifest.Env = map[string]string{"A": "a\nb"}
	j.VM = &vm.VM{Name: "linus-job-1", Job: j.ID, Owner: "me", State: vm.Intended}
	stripped := j
	stripped.Manifest.Files = []job.File{{Path: "/a", Mode: "0600"}, {Path: "/b"}}

	diff(t, stripped, insert(t, s, j))
	if j.Manifest.Files[0].Content == "" {
		t.Error("Insert changed its caller's manifest")
	}
	got, err := s.Job(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, stripped, got)
	m, err := s.Manifest(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, j.Manifest, m)
}

func TestInsert_SameKeyReturnsTheFirstJob(t *testing.T) {
	s := newStore(t)
	first, second := newJob("one"), newJob("two")
	if _, isNew, err := s.Insert(t.Context(), first, "key", job.Limits{}); err != nil || !isNew {
		t.Fatal(isNew, err)
	}
	updateWith(t, s, first.ID, newToken("h1"))
	got, isNew, err := s.Insert(t.Context(), second, "key", job.Limits{})
	if err != nil || isNew {
		t.Fatal(isNew, err)
	}
	diff(t, first, got)
	if _, err := s.Job(t.Context(), second.ID); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the second job exists: %v", err)
	}
	if hash, err := s.TokenHash(t.Context(), first.ID); hash != "h1" || err != nil {
		t.Errorf("token hash %q, %v", hash, err)
	}
	insert(t, s, newJob("three")) // no key never matches no key
	insert(t, s, newJob("four"))
}

func TestInsert_SameKeyAtOnceCreatesOneJob(t *testing.T) {
	s := newStore(t)
	var made atomic.Int32
	answers := make([]string, 20)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() {
			j, isNew, err := s.Insert(t.Context(), newJob("echo"), "key", job.Limits{})
			if err != nil {
				t.Error(err)
			}
			if isNew {
				made.Add(1)
			}
			answers[i] = j.ID
		})
	}
	group.Wait()
	for _, id := range answers {
		if id != answers[0] {
			t.Fatalf("answers differ: %q", answers)
		}
	}
	if made.Load() != 1 {
		t.Errorf("%d jobs were new", made.Load())
	}
	if page := list(t, s, job.Filter{}); len(page.Jobs) != 1 {
		t.Errorf("%d jobs are stored", len(page.Jobs))
	}
}

func TestInsert_Refuses(t *testing.T) {
	s := newStore(t)
	j := newJob("echo")
	insert(t, s, j)
	again := j
	again.Manifest.Task = "another"
	for name, bad := range map[string]job.Job{
		"an ID twice":       again,
		"no ID":             {},
		"an ID with a path": {ID: "../../etc"},
		"an ID in capitals": {ID: strings.ToUpper(uuid.NewString())},
	} {
		if _, isNew, err := s.Insert(t.Context(), bad, "", job.Limits{}); err == nil || isNew {
			t.Errorf("%s: new %v, %v", name, isNew, err)
		}
	}
	m, err := s.Manifest(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, j.Manifest, m)
}

func TestInsert_CancelledLeavesNothing(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Insert(ctx, newJob("echo"), "", job.Limits{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if page := list(t, s, job.Filter{}); len(page.Jobs) != 0 {
		t.Errorf("%d jobs are stored", len(page.Jobs))
	}
}

// live moves a job along its life and returns what must be read back.
func live(t *testing.T, s *Store, id string) job.Job {
	t.Helper()
	code := 3
	update(t, s, id, func(j *job.Job) ([]job.Event, error) {
		j.VM = &vm.VM{ID: 101, Name: "linus-job-1", Job: id, Owner: "me", State: vm.Created, HostKey: "ssh-ed25519 AAAA"}
		j.Phase, j.Progress = "create", "cloning"
		return []job.Event{{At: at, Kind: job.EventPhaseStarted, Phase: "create"}}, j.Become(job.Provisioning)
	})
	update(t, s, id, func(j *job.Job) ([]job.Event, error) {
		j.StartedAt, j.LastHeartbeat = at, at.Add(time.Second)
		return nil, j.Become(job.Running)
	})
	return update(t, s, id, func(j *job.Job) ([]job.Event, error) {
		j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, At: at})
		return []job.Event{
			{At: at, Kind: job.EventDecided, Text: "exit_status"},
			{At: at, Kind: job.EventStatus, Text: "failed"},
		}, j.Finish(at.Add(time.Minute))
	})
}

func TestUpdate_WholeLifeIsReadBack(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	want := live(t, s, id)
	got, err := s.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, want, got)
	if got.Status != job.Failed || *got.Outcome.ExitCode != 3 || !got.StartedAt.Equal(at) || got.VM.ID != 101 {
		t.Errorf("read back %+v", got)
	}
	events, err := s.Events(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, []job.Event{
		{Seq: 1, JobID: id, At: at, Kind: job.EventPhaseStarted, Phase: "create"},
		{Seq: 2, JobID: id, At: at, Kind: job.EventDecided, Text: "exit_status"},
		{Seq: 3, JobID: id, At: at, Kind: job.EventStatus, Text: "failed"},
	}, events)
	after, err := s.Events(t.Context(), id, 2)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, events[2:], after)
}

func TestUpdate_ErrorOfChangeComesBackAndNothingIsWritten(t *testing.T) {
	s := newStore(t)
	before := insert(t, s, newJob("echo"))
	mine := errors.New("mine")
	_, err := s.Update(t.Context(), before.ID, func(j *job.Job) (job.Record, error) {
		j.Status, j.Progress = job.Provisioning, "changed"
		return job.Record{Events: []job.Event{{Kind: job.EventWarning, Text: "written?"}}}, mine
	})
	if err != mine { //nolint:errorlint // it must come back as it is
		t.Errorf("got %v", err)
	}
	got, err := s.Job(t.Context(), before.ID)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, before, got)
	if events, err := s.Events(t.Context(), before.ID, 0); err != nil || len(events) != 0 {
		t.Errorf("events %v, %v", events, err)
	}
}

func TestUpdate_PanicOfChangeLeavesTheStoreUsable(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Update(t.Context(), id, func(*job.Job) (job.Record, error) { panic("bug") })
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Update(ctx, id, func(*job.Job) (job.Record, error) { return job.Record{}, nil }); err != nil {
		t.Error(err)
	}
}

func TestUpdate_KeepsWhatIsNotItsOwn(t *testing.T) {
	s := newStore(t)
	before := insert(t, s, newJob("echo"))
	if _, err := s.AppendOutput(t.Context(), before.ID, job.Stdout, 0, []byte("12345")); err != nil {
		t.Fatal(err)
	}
	before.Stdout = job.OutputInfo{Incomplete: true} // without an open stream's counts
	diff(t, before, update(t, s, before.ID, func(j *job.Job) ([]job.Event, error) {
		j.ID, j.Manifest, j.Stdout = "other", job.Manifest{Task: "other"}, job.OutputInfo{Total: 99, Incomplete: true}
		return nil, nil
	}))
	got, err := s.Job(t.Context(), before.ID)
	if err != nil {
		t.Fatal(err)
	}
	before.Stdout.Held, before.Stdout.Total = 5, 5
	diff(t, before, got)
}

func TestUpdate_AllowsOnlyWhatTheTableAllows(t *testing.T) {
	for _, from := range job.Statuses {
		for _, to := range job.Statuses {
			t.Run(string(from)+" to "+string(to), func(t *testing.T) {
				s := newStore(t)
				j := newJob("echo")
				j.Status = from
				insert(t, s, j)
				_, err := s.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) {
					j.Status = to
					return job.Record{}, nil
				})
				want := from == to || from.CanBecome(to)
				if (err == nil) != want || (err != nil && !errors.Is(err, ErrForbidden)) {
					t.Errorf("allowed %v, got %v", want, err)
				}
				if from.Terminal() && from != to && err == nil {
					t.Error("a terminal status changed")
				}
			})
		}
	}
}

func TestUpdate_AllowsOnlyWhatTheTableOfVMsAllows(t *testing.T) {
	s := newStore(t)
	states := append([]vm.State{"", "nonsense"}, vm.States...)
	in := func(id string, state vm.State) *vm.VM {
		if state == "" {
			return nil
		}
		return &vm.VM{ID: 100, Name: "vm", Job: id, State: state}
	}
	for _, from := range states {
		for _, to := range states {
			j := newJob("echo")
			j.VM = in(j.ID, from)
			insert(t, s, j)
			_, err := s.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) {
				j.VM = in(j.ID, to)
				return job.Record{}, nil
			})
			want := from == to || from.CanBecome(to)
			if (err == nil) != want || err != nil && !errors.Is(err, ErrForbidden) {
				t.Errorf("%q to %q: allowed %v, got %v", from, to, want, err)
			}
			stored, err := s.Job(t.Context(), j.ID)
			if is := stored.VMState(); err != nil || want && is != to || !want && is != from {
				t.Errorf("%q to %q: it is %q, %v", from, to, is, err)
			}
		}
	}
}

func TestUpdate_LearnsLaterHowAKilledTaskEnded(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	killed := job.Outcome{Status: job.Failed, Reason: job.ReasonKilled, Error: "Killed by user", At: at}
	learn := func(code int, text string) error {
		_, err := s.Update(t.Context(), id, func(j *job.Job) (job.Record, error) {
			o := killed
			o.ExitCode, o.Duration, o.Error = &code, time.Second, text
			j.Outcome = &o
			return job.Record{}, nil
		})
		return err
	}
	update(t, s, id, func(j *job.Job) ([]job.Event, error) {
		j.Decide(killed)
		return nil, nil
	})
	if err := learn(143, "another"); !errors.Is(err, ErrForbidden) {
		t.Errorf("with another error: %v", err)
	}
	if err := learn(143, killed.Error); err != nil {
		t.Error(err)
	}
	if err := learn(0, killed.Error); !errors.Is(err, ErrForbidden) {
		t.Errorf("for the second time: %v", err)
	}
}

func TestUpdate_DecidedOutcomeNeverChanges(t *testing.T) {
	code := func(n int) *int { return &n }
	decided := job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: code(3), Error: "e", At: at}
	tests := []struct {
		name    string
		change  func(*job.Job)
		refused bool
	}{
		{"removed", func(j *job.Job) { j.Outcome = nil }, true},
		{"another status", func(j *job.Job) { j.Outcome.Status = job.Success }, true},
		{"another reason", func(j *job.Job) { j.Outcome.Reason = job.ReasonCancelled }, true},
		{"exit code changed in place", func(j *job.Job) { *j.Outcome.ExitCode = 0 }, true},
		{"exit code removed", func(j *job.Job) { j.Outcome.ExitCode = nil }, true},
		{"another error", func(j *job.Job) { j.Outcome.Error = "" }, true},
		{"another time", func(j *job.Job) { j.Outcome.At = at.Add(1) }, true},
		{"replaced by its equal", func(j *job.Job) {
			o := decided
			o.ExitCode = code(3)
			j.Outcome = &o
		}, false},
		{"something else", func(j *job.Job) { j.Progress = "collecting" }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			id := insert(t, s, newJob("echo")).ID
			update(t, s, id, func(j *job.Job) ([]job.Event, error) {
				o := decided
				o.ExitCode = code(3)
				j.Decide(o)
				return nil, nil
			})
			_, err := s.Update(t.Context(), id, func(j *job.Job) (job.Record, error) {
				tt.change(j)
				return job.Record{}, nil
			})
			if tt.refused != errors.Is(err, ErrForbidden) {
				t.Errorf("refused %v, got %v", tt.refused, err)
			}
			got, err := s.Job(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, &decided, got.Outcome)
		})
	}
}

func TestUpdate_ManyAtOnceLoseNothing(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	const writers, each = 100, 5
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				update(t, s, id, func(j *job.Job) ([]job.Event, error) {
					j.Progress += "x"
					return []job.Event{{Kind: job.EventProgress, Text: j.Progress}}, nil
				})
			}
		})
	}
	group.Wait()
	got, err := s.Job(t.Context(), id)
	if err != nil || len(got.Progress) != writers*each {
		t.Fatalf("%d of %d updates, %v", len(got.Progress), writers*each, err)
	}
	events, err := s.Events(t.Context(), id, 0)
	if err != nil || len(events) != writers*each {
		t.Fatalf("%d of %d events, %v", len(events), writers*each, err)
	}
	for i, e := range events {
		if len(e.Text) != i+1 {
			t.Fatalf("event %d tells of update %d", i+1, len(e.Text))
		}
	}
}

func TestUpdate_FirstDecisionWinsOnce(t *testing.T) {
	dir := t.TempDir()
	stores := []*Store{openStore(t, Options{Dir: dir}), openStore(t, Options{Dir: dir})} // as two processes
	id := insert(t, stores[0], newJob("echo")).ID
	var winner atomic.Pointer[job.Outcome]
	var wins atomic.Int32
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			o := job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &i, At: at}
			won := false
			update(t, stores[i%2], id, func(j *job.Job) ([]job.Event, error) {
				won = j.Decide(o)
				return nil, nil
			})
			if won {
				wins.Add(1)
				winner.Store(&o)
			}
		})
	}
	group.Wait()
	if wins.Load() != 1 {
		t.Fatalf("%d decisions won", wins.Load())
	}
	got, err := stores[1].Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, winner.Load(), got.Outcome)
}

func TestEvents_TextIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"short":         "all is well",
		"at the limit":  strings.Repeat("a", job.MaxText),
		"long":          strings.Repeat("a", job.MaxText+1),
		"rune cut":      strings.Repeat("ü", job.MaxText),
		"invalid UTF-8": "a\xffb",
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			id := insert(t, s, newJob("echo")).ID
			update(t, s, id, func(*job.Job) ([]job.Event, error) {
				return []job.Event{{Kind: job.EventProgress, Text: text}}, nil
			})
			events, err := s.Events(t.Context(), id, 0)
			if err != nil || len(events) != 1 {
				t.Fatal(events, err)
			}
			got := events[0]
			if len(got.Text) > job.MaxText || !utf8.ValidString(got.Text) {
				t.Errorf("%d bytes of text, valid %v", len(got.Text), utf8.ValidString(got.Text))
			}
			if len(text) <= job.MaxText && utf8.ValidString(text) && got.Text != text {
				t.Errorf("text changed to %q", got.Text)
			}
			if time.Since(got.At) > time.Minute {
				t.Errorf("an event without a time is at %v", got.At)
			}
		})
	}
}

// newToken is a change that gives a job a callback token.
func newToken(hash string) func(*job.Job) (job.Record, error) {
	return func(*job.Job) (job.Record, error) { return job.Record{TokenHash: hash}, nil }
}

func TestTokenHash_IsReplaced(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	updateWith(t, s, id, newToken("new"))
	update(t, s, id, func(j *job.Job) ([]job.Event, error) { // it stays
		j.Progress = "later"
		return nil, nil
	})
	if hash, err := s.TokenHash(t.Context(), id); hash != "new" || err != nil {
		t.Errorf("%q, %v", hash, err)
	}
}

func TestBegunAndWaiting_AreWhatIsNotDone(t *testing.T) {
	s := newStore(t)
	state := func(st job.Status, l vm.Lifecycle, v *vm.VM, more ...func(*job.Job)) string {
		j := newJob("echo")
		j.Status, j.Manifest.Lifecycle, j.VM = st, l, v
		if v != nil {
			v.Job = j.ID
		}
		for _, change := range more {
			change(&j)
		}
		return insert(t, s, j).ID
	}
	var begun, waiting []string
	waiting = append(waiting, state(job.Pending, vm.Ephemeral, nil))
	state(job.Failed, vm.Ephemeral, nil)
	begun = append(begun,
		state(job.Running, vm.Persistent, &vm.VM{State: vm.Created}),
		state(job.Success, vm.Ephemeral, &vm.VM{State: vm.Created}),
		state(job.Failed, vm.Ephemeral, &vm.VM{State: vm.Intended}))
	state(job.Success, vm.Persistent, &vm.VM{State: vm.Created, Kept: true})
	state(job.Timeout, vm.Ephemeral, &vm.VM{State: vm.Destroyed})
	state(job.Success, vm.Ephemeral, &vm.VM{State: vm.LeftAlone})
	state(job.Success, vm.Persistent, &vm.VM{State: vm.Forgotten})
	begun = append(begun,
		state(job.Pending, vm.Ephemeral, nil, func(j *job.Job) { j.Manifest.VM = "dev" }), // needs no slot
		state(job.Pending, vm.Ephemeral, nil, func(j *job.Job) { j.Decide(job.Outcome{Status: job.Failed, At: at}) }))
	waiting = append(waiting, state(job.Pending, "", nil, func(j *job.Job) { j.Kind = job.KindMake }))

	check := func() {
		t.Helper()
		jobs, err := s.InProgress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		diff(t, begun, ids)
		ids, err = s.Waiting(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		diff(t, waiting, ids)
		n, since, err := s.Queue(t.Context())
		if err != nil || n != len(waiting) || n > 0 == since.IsZero() {
			t.Errorf("%d wait since %v, %v", n, since, err)
		}
	}
	check()
	update(t, s, begun[1], func(j *job.Job) ([]job.Event, error) {
		j.VM.State = vm.Destroyed
		return nil, nil
	})
	update(t, s, waiting[0], func(j *job.Job) ([]job.Event, error) { return nil, j.Become(job.Provisioning) })
	update(t, s, waiting[1], func(j *job.Job) ([]job.Event, error) {
		j.Decide(job.Outcome{Status: job.Failed, At: at})
		return nil, nil
	})
	begun, waiting = []string{waiting[0], begun[0], begun[2], begun[3], begun[4], waiting[1]}, nil
	check()
}

// A job that runs in another's VM says in its row what that is to it.
func TestVMs_AreListedByTheJobsThatCreatedThem(t *testing.T) {
	s := newStore(t)
	add := func(maker string, state vm.State) string {
		j := newJob("echo")
		if maker == "" {
			maker = j.ID
		}
		if state != "" {
			j.VM = &vm.VM{ID: 100, Name: "dev", Job: maker, Owner: "me", State: state}
		}
		return insert(t, s, j).ID
	}
	var want []string
	for _, state := range []vm.State{vm.Intended, vm.Created, vm.LeftAlone} {
		want = append(want, add("", state))
	}
	for _, state := range []vm.State{vm.Intended, vm.Created, vm.LeftAlone, vm.Released} {
		add(want[1], state)
	}
	for _, state := range []vm.State{vm.Destroyed, vm.Forgotten, ""} {
		add("", state)
	}
	vms, err := s.VMs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range vms {
		got = append(got, v.Job)
		if of, err := s.Job(t.Context(), v.Job); err != nil || !reflect.DeepEqual(v, *of.VM) {
			t.Errorf("%+v, %v, and its job has %+v", v, err, of.VM)
		}
	}
	diff(t, want, got)
}

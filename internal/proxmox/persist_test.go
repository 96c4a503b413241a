package proxmox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

func TestPersist_TriesAsLongAsTheHostMayAnswer(t *testing.T) {
	refused := &remote.Error{Op: "connect to", Class: remote.Refused, Err: errors.New("refused")}
	other := errors.New("the script failed")
	type try struct {
		answered bool
		err      error
	}
	tests := []struct {
		name  string
		limit time.Duration
		tries []try // what each attempt has; the last one must be the last
	}{
		{"it answers at once", time.Minute, []try{{true, nil}}},
		{"it answers in the end", time.Minute, []try{{false, refused}, {true, refused}, {true, nil}}},
		{"another fault ends it", time.Minute, []try{{false, refused}, {true, other}}},
		{"no patience", 0, []try{{false, refused}}},
		{"what ran there was killed", time.Minute, []try{{true, &remote.ExitError{Code: 137, Signal: "KILL"}}, {true, nil}}},
		{"an exit code is an answer", time.Minute, []try{{true, &remote.ExitError{Code: 255}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := &Provider{o: Options{Host: remote.NewPool(remote.Options{}), Log: slog.New(slog.DiscardHandler)}}
			n := 0
			err := p.persist(t.Context(), "look", tt.limit, func() (bool, error) {
				if n++; n > len(tt.tries) {
					return true, nil
				}
				return tt.tries[n-1].answered, tt.tries[n-1].err
			})
			if last := tt.tries[len(tt.tries)-1].err; n != len(tt.tries) || !errors.Is(err, last) {
				t.Errorf("%d attempts, then %v; want %d, then %v", n, err, len(tt.tries), last)
			}
		})
	}
}

func TestPersist_EndsWithItsContextAndTheLastFault(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	refused := &remote.Error{Op: "connect to", Class: remote.Refused, Err: errors.New("refused")}
	p := &Provider{o: Options{Host: remote.NewPool(remote.Options{}), Log: slog.New(slog.DiscardHandler)}}
	err := p.persist(ctx, "look", time.Hour, func() (bool, error) {
		cancel()
		return false, refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("persist() = %v, want what the last attempt returned", err)
	}
}

// A host that answers now and then keeps its patience, however long it takes.
func TestPersist_StartsAnewWithEachAnswer(t *testing.T) {
	refused := &remote.Error{Op: "connect to", Class: remote.Refused, Err: errors.New("refused")}
	p := &Provider{o: Options{Host: remote.NewPool(remote.Options{}), Log: slog.New(slog.DiscardHandler)}}
	synctest.Test(t, func(t *testing.T) {
		began, n := time.Now(), 0
		err := p.persist(t.Context(), "look", time.Minute, func() (bool, error) {
			n++
			return n%5 == 0 && n <= 100, refused // the last answer comes after minutes
		})
		if took := time.Since(began); !errors.Is(err, refused) || n < 105 || took < 2*time.Minute || took > 4*time.Minute {
			t.Errorf("%d attempts in %v, then %v", n, took, err)
		}
	})
}

// Who has a listener hears once what is waited for, why, and until when.
func TestPersist_SaysWhatItWaitsFor(t *testing.T) {
	refused := &remote.Error{Op: "connect to", Addr: "root@pve:22", Class: remote.Refused, Err: errors.New("refused")}
	p := &Provider{o: Options{Host: remote.NewPool(remote.Options{Host: "pve", User: "root"}), Log: slog.New(slog.DiscardHandler)}}
	synctest.Test(t, func(t *testing.T) {
		var told []string
		began, n := time.Now(), 0
		ctx := job.WithListener(t.Context(), func(p job.Progress) {
			told = append(told, p.Line())
			if p.Warning != p.Text {
				t.Errorf("told %+v", p)
			}
		})
		err := p.persist(ctx, "list VMs", time.Minute, func() (bool, error) {
			n++
			return n == 4, refused
		})
		want := "waiting for the host until " + began.Add(time.Minute).UTC().Format("15:04:05 UTC") + ": list VMs on root@pve:22: connection refused: connect to root@pve:22: refused; check PROXMOX_SSH_PORT, and that sshd runs on the host"
		if !errors.Is(err, refused) || len(told) != 2 || told[0] != want {
			t.Errorf("%v; told %q, want first %q, and once more after an answer", err, told, want)
		}
	})
}

// A host that neither responds nor refuses is told of while it is still asked.
func TestPersist_SaysThatNothingAnswers(t *testing.T) {
	dropped := &remote.Error{Op: "connect to", Addr: "root@pve:22", Class: remote.Unreachable, Err: errors.New("no answer within 15s")}
	p := &Provider{o: Options{Host: remote.NewPool(remote.Options{Host: "pve", User: "root"}), Log: slog.New(slog.DiscardHandler)}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var told []string
		var after time.Duration
		ctx := job.WithListener(t.Context(), func(p job.Progress) { told, after = append(told, p.Line()), time.Since(began) })
		err := p.persist(ctx, "list VMs", 20*time.Second, func() (bool, error) {
			time.Sleep(15 * time.Second)
			return false, dropped
		})
		want := "waiting for the host until " + began.Add(20*time.Second).UTC().Format("15:04:05 UTC") + ": list VMs on root@pve:22: no answer yet"
		if !errors.Is(err, dropped) || len(told) != 1 || told[0] != want || after > 2*time.Second {
			t.Errorf("%v; told %q after %v, want %q", err, told, after, want)
		}
		if err := p.persist(ctx, "list VMs", 0, func() (bool, error) { return true, nil }); err != nil || len(told) != 1 {
			t.Errorf("%v; told %q of a host that answers", err, told)
		}
	})
}

// A hurried call fails where it would wait, and says whether the host refused or was silent.
func TestPersist_Hurried(t *testing.T) {
	refused := &remote.Error{Op: "connect to", Addr: "root@pve:22", Class: remote.Refused, Err: errors.New("refused")}
	var log strings.Builder
	p := &Provider{o: Options{Host: remote.NewPool(remote.Options{Host: "pve", User: "root"}), Log: slog.New(slog.NewTextHandler(&log, nil))}}
	for want, try := range map[string]func(context.Context) error{
		"list VMs on root@pve:22: connection refused: connect to root@pve:22: refused; check PROXMOX_SSH_PORT, and that sshd runs on the host": func(context.Context) error { return refused },
		"list VMs on root@pve:22: connect to root@pve:22: no answer yet; check that the host is up and no firewall drops SSH (PROXMOX_HOST, PROXMOX_SSH_PORT)": func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("connect to root@pve:22: %w", context.Cause(ctx))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, end := job.Hurried(t.Context())
			defer end()
			began := time.Now()
			err := p.persist(ctx, "list VMs", time.Minute, func() (bool, error) { return false, try(ctx) })
			err = p.scriptError(ctx, "list VMs", result.Result{}, err)
			if err.Error() != want || !job.IsClass(err, job.HostUnreachable) || time.Since(began) > 2*time.Second || log.Len() > 0 {
				t.Errorf("after %v: %v\nwant %s\nlog %s", time.Since(began), err, want, &log)
			}
		})
	}
}

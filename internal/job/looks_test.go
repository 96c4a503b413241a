package job_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
)

func TestLooks_OneLooksForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks job.Looks[string, int]
		n := 0
		look := func(ctx context.Context, age time.Duration) (int, error) {
			return looks.Do(ctx, "a", age, func(ctx context.Context) (int, error) {
				n++
				seen := n
				select {
				case <-time.After(time.Second):
					return seen, nil
				case <-ctx.Done():
					return 0, ctx.Err()
				}
			})
		}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got, err := look(t.Context(), time.Minute); got != 1 || err != nil {
					t.Errorf("%d, %v", got, err)
				}
			})
		}
		all.Wait()
		if got, err := look(t.Context(), time.Minute); got != 1 || err != nil {
			t.Errorf("what is new enough is looked at again: %d, %v", got, err)
		}
		if got, err := look(t.Context(), time.Millisecond); got != 2 || err != nil {
			t.Errorf("what is old is not looked at again: %d, %v", got, err)
		}
		gone, leave := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := look(gone, 0); !errors.Is(err, context.Canceled) {
				t.Errorf("who has gone: %v", err)
			}
		})
		synctest.Wait()
		time.Sleep(time.Millisecond)
		all.Go(func() {
			if got, err := look(t.Context(), 0); got != 4 || err != nil {
				t.Errorf("who waited for one that has gone: %d, %v", got, err)
			}
		})
		synctest.Wait()
		leave()
		all.Wait()
		if _, err := looks.Do(t.Context(), "b", time.Hour, func(context.Context) (int, error) { return 0, job.ErrNotFound }); !errors.Is(err, job.ErrNotFound) {
			t.Error(err)
		}
		if got, err := looks.Do(t.Context(), "b", time.Hour, func(context.Context) (int, error) { return 7, nil }); got != 7 || err != nil {
			t.Errorf("another's error: %d, %v", got, err)
		}
	})
}

// outputs counts looks at an output.
type outputs struct {
	job.Engine
	n int
}

func (o *outputs) Output(context.Context, string, string, int64, int64) (job.Chunk, error) {
	o.n++
	return job.Chunk{Next: int64(o.n)}, nil
}

func TestShared_IsOfOnePrincipalAndOutput(t *testing.T) {
	o := &outputs{}
	e := job.Shared(o)
	ask := func(who job.Principal, id string, follows bool) {
		t.Helper()
		ctx := job.WithPrincipal(t.Context(), who)
		if follows {
			ctx = job.Following(ctx, time.Hour)
		}
		if _, err := e.Output(ctx, id, job.Stdout, 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	ann, other := job.Principal{Name: "ann", Token: "1"}, job.Principal{Name: "ann", Token: "2"}
	for range 10 {
		ask(ann, "a", true)
	}
	if o.n != 1 {
		t.Errorf("ten of one look %d times", o.n)
	}
	ask(other, "a", true)
	ask(job.Principal{Name: "bob", Token: "1"}, "a", true)
	ask(ann, "b", true)
	ask(ann, "a", false)
	if o.n != 5 {
		t.Errorf("another token, another principal, another job, and one that does not follow look %d times", o.n-1)
	}
}

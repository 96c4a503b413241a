package dispatch_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/queuetest"
)

// Claude's queue keeps the contract: leases end, and the queue gives out again what they were for.
func TestClaude_KeepsTheContract(t *testing.T) {
	t.Parallel()
	queuetest.Conforms(t, func(t *testing.T) queuetest.Service {
		q, dir := queuetest.New(t, 2*time.Second), t.TempDir()
		var sessions []string
		return queuetest.Service{
			Connect: func(name string) dispatch.Queue {
				return dispatch.NewClaude(dispatch.Options{Name: name, Log: slog.New(slog.NewTextHandler(t.Output(), nil))},
					dispatch.Claude{API: q.URL, Environment: queuetest.Environment, Key: queuetest.Key, Worker: []byte("the worker")})
			},
			Add: func(n int) {
				for i := range n {
					session := "sesn_" + string(rune('a'+i))
					sessions = append(sessions, session)
					q.Add(session, false, "echo one")
				}
			},
			Nonsense: q.Nonsense,
			Run:      func(ctx context.Context, vm queuetest.VM) int { return work(ctx, dir, vm) },
			Done: func() (times []int) {
				for _, s := range sessions {
					times = append(times, len(q.Item(s).Results))
				}
				return times
			},
			Left: func() (left []string) {
				for _, s := range sessions {
					if it := q.Item(s); it.State != "stopped" {
						left = append(left, s+" is "+it.State)
					}
				}
				return left
			},
		}
	})
}

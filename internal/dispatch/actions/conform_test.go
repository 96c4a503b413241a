package actions

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/githubtest"
	"linus/internal/queuetest"
)

// GitHub gives each job to one runner, once, whatever ends in the middle.
func TestQueue_KeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"of a repository": {}, "of an organization": {Organization: githubtest.Owner}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queuetest.Conforms(t, func(t *testing.T) queuetest.Service {
				g := githubtest.New(t)
				var ids []int64
				var nonsense atomic.Int64
				g.Intercept = func(w http.ResponseWriter, _ *http.Request) bool {
					if nonsense.Add(-1) < 0 {
						return false
					}
					_, _ = io.WriteString(w, `{"workflow_runs":{},"runners":"x","encoded_jit_config":7}`)
					return true
				}
				return queuetest.Service{
					Connect: func(string) dispatch.Queue {
						o := o
						o.Look = 50 * time.Millisecond
						q, _ := queue(t, g, o)
						return q
					},
					Add: func(n int) {
						for range n {
							ids = append(ids, g.Queue(web, "self-hosted")...)
						}
					},
					Run: func(ctx context.Context, vm queuetest.VM) int {
						ctx, done := context.WithTimeout(ctx, time.Second)
						defer done()
						if g.Runner(ctx, string(vm.Secret), "take") != nil || g.Runner(context.WithoutCancel(ctx), string(vm.Secret), "done") != nil {
							return 69
						}
						return 0
					},
					Done: func() (times []int) {
						for _, id := range ids {
							j := g.Job(id)
							if j.Status != "completed" {
								j.Attempts = 0
							}
							times = append(times, j.Attempts)
						}
						return times
					},
					Left: func() (left []string) {
						for _, r := range g.Runners() {
							left = append(left, r.Name)
						}
						return left
					},
					Nonsense: func(n int) { nonsense.Store(int64(n)) },
				}
			})
		})
	}
}

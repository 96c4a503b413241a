package forge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/dispatch/forge"
	"linus/internal/forgetest"
	"linus/internal/queuetest"
)

// Both forges' queues keep the contract: the forge gives each job to one runner, once.
func TestForges_KeepTheContract(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			queuetest.Conforms(t, func(t *testing.T) queuetest.Service {
				s := forgetest.New(t, kind == forge.Gitea)
				var ids []int64
				return queuetest.Service{
					Connect: func(string) dispatch.Queue { return newQueue(t, s, forge.Options{Kind: kind}) },
					Add: func(n int) {
						for range n {
							ids = append(ids, s.Add("test", "linus"))
						}
					},
					Run: func(ctx context.Context, vm queuetest.VM) int { return runner(ctx, kind, vm.Secret) },
					Done: func() (times []int) {
						for _, id := range ids {
							n := s.Job(id).Taken
							if s.Job(id).Status != "success" {
								n = 0
							}
							times = append(times, n)
						}
						return times
					},
					Left: func() (left []string) {
						for _, r := range s.Runners() {
							left = append(left, r.Name)
						}
						return left
					},
					Nonsense: func(n int) {
						s.Break(func(w http.ResponseWriter, _ *http.Request) {
							_, _ = io.WriteString(w, `{"jobs":{},"id":"x"}`)
							if n--; n <= 0 {
								s.Mend()
							}
						})
					},
				}
			})
		})
	}
}

// runner is what the VM of a session runs: it takes one job if one comes.
func runner(ctx context.Context, kind forge.Kind, secret []byte) int {
	var is struct{ UUID, Token, Address string }
	var ask struct {
		Handle string   `json:"handle"`
		Labels []string `json:"labels"`
	}
	if lines := strings.Split(string(secret), "\n"); kind == forge.Forgejo && len(lines) > 4 {
		is.Address, is.UUID, ask.Handle, ask.Labels, is.Token = lines[0], lines[1], lines[2], strings.Fields(lines[3]), lines[4]
	} else if json.Unmarshal(secret, &is) != nil {
		return 1
	}
	call := func(method string, body any) string {
		data, _ := json.Marshal(body)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, is.Address+"/api/actions/runner.v1.RunnerService/"+method, bytes.NewReader(data))
		if err != nil {
			return ""
		}
		req.Header.Set("X-Runner-Uuid", is.UUID)
		req.Header.Set("X-Runner-Token", is.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		said, _ := io.ReadAll(resp.Body)
		return string(said)
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if strings.Contains(call("FetchTask", ask), "task") {
			call("UpdateTask", "done")
			return 0
		}
	}
	return 69
}

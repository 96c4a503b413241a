package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anthropics/anthropic-sdk-go/lib/environments"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// ExitLeaseLost is a worker's exit code when its session is no longer its own, as is that of a
// task which has got no work: sysexits.h calls it a temporary failure.
const ExitLeaseLost = 75

// ErrLeaseLost says that the queue has given the session to another worker, or will.
var ErrLeaseLost = errors.New("the session's lease is lost: it goes on elsewhere")

// item is what a worker gets: one claimed item of work, with its own secret.
type item struct {
	API           string        `json:"api,omitempty"`
	Environment   string        `json:"environment"`
	Work          string        `json:"work"`
	Session       string        `json:"session"`
	Secret        string        `json:"secret"`
	LastHeartbeat string        `json:"last_heartbeat"`
	MaxIdle       time.Duration `json:"max_idle,omitempty"`
}

// Work serves the session that a file says, in the working directory, and keeps its lease. The
// file is removed first.
func Work(ctx context.Context, file string, log *slog.Logger) error {
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		return fmt.Errorf("take the work: %w", err)
	}
	var it item
	if err := json.Unmarshal(data, &it); err != nil {
		return fmt.Errorf("read the work: %w", err)
	}
	// The SDK says of a lost lease in its log alone; unless it is lost, the item is stopped.
	var stopped atomic.Bool
	o := environments.EnvironmentWorkerOptions{Logger: log, RequestOptions: []option.RequestOption{
		option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/stop") {
				stopped.Store(true)
			}
			return next(r)
		}),
	}}
	if it.MaxIdle > 0 {
		o.MaxIdle = &it.MaxIdle
	}
	err = environments.NewEnvironmentWorker(newClient(it.API), o).HandleItem(ctx, environments.HandleItemOptions{
		WorkID: it.Work, EnvironmentID: it.Environment, SessionID: it.Session, WorkSecret: it.Secret, ExpectedLastHeartbeat: it.LastHeartbeat,
	})
	if err == nil && !stopped.Load() {
		return ErrLeaseLost
	}
	return err
}

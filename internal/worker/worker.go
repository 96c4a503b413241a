// Package worker serves one session of Claude Managed Agents in the VM it runs in, with Anthropic's
// SDK. No other program links the SDK, which adds 19 MB to a program. The package knows nothing of
// engines and dispatchers.
package worker

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

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/lib/environments"
	"github.com/anthropics/anthropic-sdk-go/option"

	"linus/internal/handover"
)

// ErrLeaseLost says that the queue has given the session to another worker, or will do so.
var ErrLeaseLost = errors.New("the session's lease is lost: it continues elsewhere")

// Serve serves the session that a file describes, in the working directory, and keeps its lease. It
// first removes the file.
func Serve(ctx context.Context, file string, log *slog.Logger) error {
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		return fmt.Errorf("take the work: %w", err)
	}
	var it handover.Item
	if err := json.Unmarshal(data, &it); err != nil {
		return fmt.Errorf("read the work: %w", err)
	}
	client := []option.RequestOption{option.WithoutEnvironmentDefaults(), option.WithoutOpenTelemetry()}
	if it.API != "" {
		client = append(client, option.WithBaseURL(it.API))
	}
	// The SDK reports a lost lease only in its log. Unless the lease is lost, it stops the item.
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
	err = environments.NewEnvironmentWorker(anthropic.NewClient(client...), o).HandleItem(ctx, environments.HandleItemOptions{
		WorkID: it.Work, EnvironmentID: it.Environment, SessionID: it.Session, WorkSecret: it.Secret, ExpectedLastHeartbeat: it.LastHeartbeat,
	})
	if err == nil && !stopped.Load() {
		return ErrLeaseLost
	}
	return err
}

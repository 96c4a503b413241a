package dispatch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"linus/internal/sleep"
)

// queue makes the four requests that claim, keep and stop an environment's work. Paths, headers and
// retries are those of anthropic-sdk-go v1.84.0 (betaenvironmentwork.go, lib/environments/poller.go). It
// is plain HTTP, because the SDK would add 19 MB to this program; only the worker has it.
type queue struct {
	url     string // of the environment's work
	key     string
	worker  string // ID of the claimant
	retries int    // of a request that fails temporarily
	http    *http.Client
}

const (
	anthropicAPI = "https://api.anthropic.com"
	managedBeta  = "managed-agents-2026-04-01"
	pollBlock    = 999 * time.Millisecond // the server's maximum
)

func newQueue(api, environment, key, worker string) *queue {
	at, _ := url.JoinPath(cmp.Or(api, anthropicAPI), "v1/environments", url.PathEscape(environment), "work") // it was parsed before
	return &queue{url: at, key: key, worker: worker, retries: 2, http: &http.Client{CheckRedirect: Stay}}
}

type claimed struct {
	ID   string `json:"id"`
	Data struct {
		ID   string `json:"id"` // the session's
		Type string `json:"type"`
	} `json:"data"`
	Secret string `json:"secret"`
}

type heartbeat struct {
	LastHeartbeat string `json:"last_heartbeat"`
	LeaseExtended bool   `json:"lease_extended"`
	State         string `json:"state"`
	TTLSeconds    int64  `json:"ttl_seconds"`
}

// poll returns a waiting item, or nil if there is none.
func (q *queue) poll(ctx context.Context) (*claimed, error) {
	var w *claimed
	err := q.do(ctx, http.MethodGet, "/poll", url.Values{"block_ms": {fmt.Sprint(pollBlock.Milliseconds())}}, nil, &w)
	switch {
	case w == nil || w.ID == "":
		return nil, err
	case err == nil && w.Data.Type == "":
		return nil, fmt.Errorf("the queue's answer is not an item of work: %s has no type", Line(w.ID))
	}
	return w, err
}

func (q *queue) ack(ctx context.Context, id string) error {
	return q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/ack", nil, nil, nil)
}

// beat extends the lease of an item.
func (q *queue) beat(ctx context.Context, id, last string) (h heartbeat, err error) {
	err = q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/heartbeat", url.Values{"expected_last_heartbeat": {last}}, nil, &h)
	if err == nil && (h.State == "" || h.LastHeartbeat == "") { // an empty answer would end the lease
		err = errors.New("the queue's answer is not an answer to a heartbeat")
	}
	return h, err
}

// stop ends an item for good. It is no error if the item has ended already.
func (q *queue) stop(ctx context.Context, id string) error {
	err := q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/stop", nil, json.RawMessage(`{"force":true}`), nil)
	if Code(err) == http.StatusConflict {
		return nil
	}
	return err
}

// passes reports whether an error may be temporary, that is, not due to the key, the environment or the request.
func passes(err error) bool {
	code := Code(err)
	return code/100 != 4 || code == http.StatusRequestTimeout || code == http.StatusConflict || code == http.StatusTooManyRequests
}

// do makes a request, and retries it after errors that may be temporary.
func (q *queue) do(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	for n := 0; ; n++ {
		err := q.once(ctx, method, path, query, body, answer)
		if err == nil || n >= q.retries || !passes(err) || Code(err) == http.StatusConflict {
			return err
		}
		if sleep.For(ctx, backOff(n)/2) != nil {
			return err
		}
	}
}

func (q *queue) once(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	if query == nil {
		query = url.Values{}
	}
	query.Set("beta", "true")
	_, data, err := Ask(ctx, q.http, method, q.url+path+"?"+query.Encode(), http.Header{
		"Authorization": {"Bearer " + q.key}, "Anthropic-Beta": {managedBeta}, "Anthropic-Version": {"2023-06-01"},
		"Anthropic-Worker-Id": {q.worker}, "Content-Type": {"application/json"}, "Accept": {"application/json"},
	}, body, nil)
	if err == nil && answer != nil && len(data) > 0 { // the answer is empty if nothing waits
		err = json.Unmarshal(data, answer)
	}
	return err
}

// backOff returns the pause after the n-th failure in a row: about 2^n seconds, at most a minute.
func backOff(n int) time.Duration {
	most := min(time.Second<<min(n, 6), time.Minute)
	return most/2 + rand.N(most/2) //nolint:gosec // so that dispatchers do not ask all at once
}

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

// queue makes the four requests by which an environment's work is claimed, kept and stopped. Paths,
// headers and retries are those of anthropic-sdk-go v1.84.0 (betaenvironmentwork.go,
// lib/environments/poller.go). Here it is plain HTTP: the SDK itself would be 19 MB of this
// program, and is in the worker alone.
type queue struct {
	url     string // of the environment's work
	key     string
	worker  string // who claims
	retries int    // of a request that fails for a while
	http    *http.Client
}

const (
	anthropicAPI = "https://api.anthropic.com"
	managedBeta  = "managed-agents-2026-04-01"
	pollBlock    = 999 * time.Millisecond // the server's most
)

func newQueue(api, environment, key, worker string) *queue {
	at, _ := url.JoinPath(cmp.Or(api, anthropicAPI), "v1/environments", url.PathEscape(environment), "work") // it was parsed before
	return &queue{url: at, key: key, worker: worker, retries: 2, http: &http.Client{CheckRedirect: Stay}}
}

// claimed is an item of work.
type claimed struct {
	ID   string `json:"id"`
	Data struct {
		ID   string `json:"id"` // the session's
		Type string `json:"type"`
	} `json:"data"`
	Secret string `json:"secret"`
}

// heartbeat is the answer to one.
type heartbeat struct {
	LastHeartbeat string `json:"last_heartbeat"`
	LeaseExtended bool   `json:"lease_extended"`
	State         string `json:"state"`
	TTLSeconds    int64  `json:"ttl_seconds"`
}

// poll returns an item that waits, or nil if there is none.
func (q *queue) poll(ctx context.Context) (*claimed, error) {
	var w *claimed
	err := q.do(ctx, http.MethodGet, "/poll", url.Values{"block_ms": {fmt.Sprint(pollBlock.Milliseconds())}}, nil, &w)
	switch {
	case w == nil || w.ID == "":
		return nil, err
	case err == nil && w.Data.Type == "":
		return nil, fmt.Errorf("the queue's answer is no item of work: %s is of no type", Line(w.ID))
	}
	return w, err
}

// ack claims an item.
func (q *queue) ack(ctx context.Context, id string) error {
	return q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/ack", nil, nil, nil)
}

// beat extends the lease of an item.
func (q *queue) beat(ctx context.Context, id, last string) (h heartbeat, err error) {
	err = q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/heartbeat", url.Values{"expected_last_heartbeat": {last}}, nil, &h)
	if err == nil && (h.State == "" || h.LastHeartbeat == "") { // else nothing would be the end of the lease
		err = errors.New("the queue's answer is none to a heartbeat")
	}
	return h, err
}

// stop ends an item for good. One that has ended already is no error.
func (q *queue) stop(ctx context.Context, id string) error {
	err := q.do(ctx, http.MethodPost, "/"+url.PathEscape(id)+"/stop", nil, json.RawMessage(`{"force":true}`), nil)
	if Code(err) == http.StatusConflict {
		return nil
	}
	return err
}

// passes reports whether an error may pass: the key, the environment and the request are well.
func passes(err error) bool {
	code := Code(err)
	return code/100 != 4 || code == http.StatusRequestTimeout || code == http.StatusConflict || code == http.StatusTooManyRequests
}

// do makes a request, and again where the error may pass.
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
	if err == nil && answer != nil && len(data) > 0 { // nothing waits if there is nothing
		err = json.Unmarshal(data, answer)
	}
	return err
}

// backOff is the pause after the n-th failure in a row: about 2^n seconds, a minute at most.
func backOff(n int) time.Duration {
	most := min(time.Second<<min(n, 6), time.Minute)
	return most/2 + rand.N(most/2) //nolint:gosec // so that dispatchers do not ask all at once
}

package actions

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/dispatch"
)

// PublicAPI is the API of github.com. That of an enterprise server is https://HOST/api/v3.
const PublicAPI = "https://api.github.com"

const (
	apiVersion = "2022-11-28"
	maxKept    = 64 << 20 // bytes of answers kept for conditional requests
	perPage    = 100      // the API's maximum
	maxPause   = time.Hour
)

// api makes requests to GitHub's REST API. They are few and simple: a library for the whole API would add
// a megabyte to this program, and neither bounds answers nor makes conditional requests.
//
// It respects rate limits as "Best practices for using the REST API" says: after a refusal it makes no
// request until the time given in the answer or, if there is none, for a minute, doubled each time.
type api struct {
	url  string
	http *http.Client

	mu          sync.Mutex
	until       time.Time // no requests before
	slowed      int       // consecutive answers that asked for a pause
	left, limit int       // requests until reset
	reset       time.Time
	before, now map[string]page // what the previous look has read, and the current one
	kept, most  int             // size of the answers in now, in bytes, and its maximum
}

// page is the content of a URL, valid until it changes.
type page struct {
	etag  string
	value any
	size  int // of the answer, in bytes
}

// limited means that no requests are made until then.
type limited struct{ until time.Time }

func (e *limited) Error() string {
	return "GitHub asks for a pause: the rate limit is used up until " + e.until.UTC().Format(time.RFC3339)
}

// Unwrap makes retries wait until then.
func (e *limited) Unwrap() error { return &backoff.RetryAfterError{Duration: time.Until(e.until)} }

type request struct {
	method, path string
	auth         string // the whole Authorization header
	body         any
	etag         string // of the content known already
	size         *int   // set to the size of the answer, unless nil
}

// do makes a request, decodes its answer, and returns the answer's ETag. If the content is still that of
// request.etag, changed is false, and answer is left as it is.
func (a *api) do(ctx context.Context, r request, answer any) (etag string, changed bool, err error) {
	a.mu.Lock()
	until := a.until
	a.mu.Unlock()
	if time.Now().Before(until) {
		return "", false, &limited{until}
	}
	header := http.Header{
		"Accept": {"application/vnd.github+json"}, "Authorization": {r.auth}, "User-Agent": {"linus"}, "X-GitHub-Api-Version": {apiVersion},
	}
	if r.etag != "" {
		header.Set("If-None-Match", r.etag)
	}
	resp, data, err := dispatch.Ask(ctx, a.http, r.method, a.url+r.path, header, r.body, answer)
	if resp == nil {
		return "", false, err
	}
	said := ""
	if refused, is := errors.AsType[*dispatch.Refusal](err); is {
		said = refused.Text
	}
	if err := a.keep(resp, said); err != nil {
		return "", false, err
	}
	switch {
	case resp.StatusCode == http.StatusNotModified && r.etag != "":
		return r.etag, false, nil
	case err != nil:
		return "", false, err
	}
	if r.size != nil {
		*r.size = len(data)
	}
	return resp.Header.Get("ETag"), true, nil
}

// keep records an answer's rate limit. It returns a *limited if the rate limit is why the request failed.
func (a *api) keep(resp *http.Response, said string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := func(name string) int {
		n, err := strconv.Atoi(resp.Header.Get(name))
		if err != nil {
			return -1
		}
		return n
	}
	now := time.Now()
	left, limit := number("X-RateLimit-Remaining"), number("X-RateLimit-Limit")
	if left >= 0 && limit > 0 {
		a.left, a.limit, a.reset = left, limit, soon(now, time.Unix(int64(number("X-RateLimit-Reset")), 0))
	}
	refused := resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusForbidden && (left == 0 || resp.Header.Get("Retry-After") != "" || strings.Contains(strings.ToLower(said), "rate limit"))
	if !refused {
		a.slowed = 0
		return nil
	}
	switch after := number("Retry-After"); {
	case after > 0:
		a.until = soon(now, now.Add(min(time.Duration(after), maxPause/time.Second)*time.Second))
	case left == 0:
		a.until = a.reset
	default:
		a.until = soon(now, now.Add(time.Minute<<min(a.slowed, 6)))
	}
	a.slowed++
	return &limited{a.until}
}

// soon returns t, but no later than maxPause from now and, if t is past, in a second.
func soon(now, t time.Time) time.Time {
	switch most := now.Add(maxPause); {
	case t.After(most):
		return most
	case t.Before(now):
		return now.Add(time.Second)
	}
	return now.Add(t.Sub(now)) // monotonic: independent of later changes of the clock
}

// spare returns an error if the remaining requests are reserved for running sessions.
func (a *api) spare() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit > 0 && a.left <= a.limit/10 && time.Now().Before(a.reset) {
		return &limited{a.reset}
	}
	return nil
}

// turn begins the next look: only what the current one has read stays known.
func (a *api) turn() { a.before, a.now, a.kept = a.now, map[string]page{}, 0 }

// passes reports whether an error may be temporary.
func passes(err error) bool {
	c := dispatch.Code(err)
	return c/100 != 4 || c == http.StatusRequestTimeout
}

// retry makes attempts until one succeeds or fails permanently, for at most the given time.
func retry(ctx context.Context, most time.Duration, attempt func() error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := attempt()
		if err != nil && !passes(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(most))
	return err
}

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

// PublicAPI is the API of github.com. An enterprise server's is https://HOST/api/v3.
const PublicAPI = "https://api.github.com"

const (
	apiVersion = "2022-11-28"
	maxKept    = 64 << 20 // of those that are not read again as long as they do not change
	perPage    = 100      // the API's most
	maxPause   = time.Hour
)

// api makes requests to GitHub's REST API. They are few and plain: a library of all of it would be
// a megabyte of this program, and neither bounds an answer nor asks for what has changed alone.
//
// Rates are kept as "Best practices for using the REST API" says: nothing is asked before the time
// that an answer names, or for a minute, and ever longer, where one names none.
type api struct {
	url  string
	http *http.Client

	mu          sync.Mutex
	until       time.Time // nothing is asked before
	slowed      int       // answers in a row that asked for a pause
	left, limit int       // requests until reset
	reset       time.Time
	before, now map[string]page // what the last look has read, and this one
	kept, most  int             // bytes of the answers of this one, and how many may be
}

// page is what was read from a URL, as long as it does not change.
type page struct {
	etag  string
	value any
	size  int // of the answer
}

// limited says that nothing is asked for a while.
type limited struct{ until time.Time }

func (e *limited) Error() string {
	return "GitHub asks for a pause: the rate limit is used up until " + e.until.UTC().Format(time.RFC3339)
}

// Unwrap has who tries again wait for so long.
func (e *limited) Unwrap() error { return &backoff.RetryAfterError{Duration: time.Until(e.until)} }

// request is one of the API.
type request struct {
	method, path string
	auth         string // the whole header
	body         any
	etag         string // of what is known already
	size         *int   // gets the answer's; nil: nobody asks
}

// do makes a request and reads its answer, which has the ETag that is returned. What is known
// already is no error, and not read: the answer stays as it was, and changed is false.
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

// keep notes what an answer says of the rate of requests; a *limited if it is the reason for it.
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

// soon is a time that is ahead, as far as a server may put it off.
func soon(now, t time.Time) time.Time {
	switch most := now.Add(maxPause); {
	case t.After(most):
		return most
	case t.Before(now):
		return now.Add(time.Second)
	}
	return now.Add(t.Sub(now)) // whatever the clock says then
}

// spare returns an error when the requests that are left are for the sessions there are.
func (a *api) spare() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limit > 0 && a.left <= a.limit/10 && time.Now().Before(a.reset) {
		return &limited{a.reset}
	}
	return nil
}

// turn has what was read since the last one known, and nothing else.
func (a *api) turn() { a.before, a.now, a.kept = a.now, map[string]page{}, 0 }

// passes reports whether an error may pass.
func passes(err error) bool {
	c := dispatch.Code(err)
	return c/100 != 4 || c == http.StatusRequestTimeout
}

// retry makes an attempt until it succeeds or its error will not pass, for so long at most.
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

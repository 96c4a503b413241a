package actions

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/dispatch"
)

// answers is a server without a network.
type answers func(r *http.Request) (code int, header http.Header, body []byte)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) {
	code, header, body := f(r)
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
}

// Nothing is asked before the time that an answer names.
func TestRates_AreKept(t *testing.T) {
	at := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }
	for _, tt := range []struct {
		name   string
		code   int
		header func() http.Header
		body   string
		pause  []time.Duration // after the first, second ... such answer
	}{
		{"a secondary limit that names a time", 403, func() http.Header { return http.Header{"Retry-After": {"30"}} }, "", []time.Duration{30 * time.Second, 30 * time.Second}},
		{"too many requests", 429, func() http.Header { return nil }, "", []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}},
		{"a secondary limit that names none", 403, func() http.Header { return nil }, `{"message":"You have exceeded a secondary rate limit."}`, []time.Duration{time.Minute, 2 * time.Minute}},
		{"the hour's requests are used", 403, func() http.Header {
			return http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {at(20 * time.Minute)}}
		}, "", []time.Duration{20 * time.Minute}},
		{"a time that is far", 429, func() http.Header { return http.Header{"Retry-After": {"99999999999"}} }, "", []time.Duration{maxPause}},
		{"a time that has been", 403, func() http.Header {
			return http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {at(-time.Hour)}}
		}, "", []time.Duration{time.Second}},
		{"nonsense", 429, func() http.Header { return http.Header{"Retry-After": {"soon"}, "X-Ratelimit-Reset": {"x"}} }, "", []time.Duration{time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				a := &api{url: "http://x", http: &http.Client{Transport: answers(func(*http.Request) (int, http.Header, []byte) {
					asked++
					return tt.code, tt.header(), []byte(tt.body)
				})}}
				do := func() (until time.Time) {
					t.Helper()
					_, _, err := a.do(t.Context(), request{method: http.MethodGet, path: "/"}, nil)
					wait, is := errors.AsType[*limited](err)
					if !is || !strings.Contains(err.Error(), "until 2") {
						t.Fatal(err)
					}
					return wait.until
				}
				for i, pause := range tt.pause {
					if got := time.Until(do()); got != pause {
						t.Errorf("answer %d: a pause of %s, want %s", i, got, pause)
					}
					time.Sleep(pause - time.Millisecond)
					do()
					if asked != i+1 {
						t.Errorf("%d requests before the time", asked)
					}
					time.Sleep(time.Millisecond)
				}
			})
		})
	}
}

// The last requests of an hour are for the sessions there are: nothing is looked for with them.
func TestRates_LeaveSomeForSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		left := 501
		q := &Queue{
			Options: Options{Repositories: []string{web}, Key: Key{Token: "t"}, Log: slog.New(slog.DiscardHandler), Look: lookPause},
			waiting: map[int64]waiting{}, runners: map[string]string{}, checked: true,
		}
		reset := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
		q.api = &api{url: "http://x", before: map[string]page{}, now: map[string]page{}, http: &http.Client{Transport: answers(func(r *http.Request) (int, http.Header, []byte) {
			asked = append(asked, r.Method)
			left--
			return 200, http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {strconv.Itoa(left)}, "X-Ratelimit-Reset": {reset}}, []byte(`{"encoded_jit_config":"x"}`)
		})}}
		if _, err := q.Waiting(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookPause)
		if _, err := q.Waiting(t.Context()); err == nil || !strings.Contains(err.Error(), "rate limit") {
			t.Errorf("%v", err)
		}
		if _, err := q.Handover(t.Context(), session(1)); err != nil {
			t.Error(err)
		}
		if got := strings.Join(asked, " "); got != "GET GET POST" {
			t.Error(got)
		}
		time.Sleep(time.Hour)
		if _, err := q.Waiting(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A runner's configuration is asked for again while the VM can wait, and no longer.
func TestHandover_OutlastsAShortFault(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults int
		code   int
		header http.Header
		well   bool
	}{
		{"errors", 3, 502, nil, true},
		{"a pause", 1, 403, http.Header{"Retry-After": {"20"}}, true},
		{"a long pause", 1, 403, http.Header{"Retry-After": {"600"}}, false},
		{"no end", 1000, 500, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				q := &Queue{Options: Options{Repositories: []string{web}, Key: Key{Token: "t"}, Log: slog.New(slog.DiscardHandler)}, runners: map[string]string{}}
				q.api = &api{url: "http://x", http: &http.Client{Transport: answers(func(*http.Request) (int, http.Header, []byte) {
					if n++; n <= tt.faults {
						return tt.code, tt.header, nil
					}
					return 201, nil, []byte(`{"encoded_jit_config":"x"}`)
				})}}
				began := time.Now()
				_, err := q.Handover(t.Context(), session(1))
				if (err == nil) != tt.well || time.Since(began) > handoverTime || n > 100 {
					t.Errorf("%v, after %s and %d requests", err, time.Since(began), n)
				}
			})
		})
	}
}

// The key goes to no other server than the API's, though that names one; where it is moved on the
// same, it is followed.
func TestAPI_KeepsTheKey(t *testing.T) {
	for to, want := range map[string]int{"https://api.github.com/repositories/1": 200, "http://api.github.com/x": 301, "https://api.github.com:444/x": 301, "https://x.api.github.com/": 301} {
		var asked []string
		q, err := New(Options{Repositories: []string{web}, Key: Key{Token: "t"}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		a := q.(*Queue).api
		a.http.Transport = answers(func(r *http.Request) (int, http.Header, []byte) {
			if asked = append(asked, r.URL.String()); len(asked) == 1 {
				return http.StatusMovedPermanently, http.Header{"Location": {to}}, nil
			}
			return 200, nil, nil
		})
		_, _, err = a.do(t.Context(), request{method: http.MethodGet, path: "/repos/acme/old", auth: "Bearer t"}, nil)
		if want == 200 && (err != nil || len(asked) != 2) || want != 200 && (dispatch.Code(err) != want || len(asked) != 1) {
			t.Errorf("%s: %v, asked %q", to, err, asked)
		}
	}
}

// A limit ends though the clock is put back meanwhile: it is a time from now on, and none of the day.
func TestRates_OutlastAClockThatIsPutBack(t *testing.T) {
	now := time.Now()
	if until := soon(now, time.Unix(now.Add(20*time.Minute).Unix(), 0)); !strings.Contains(until.String(), " m=") {
		t.Errorf("%s is a time of the day", until)
	}
}

// What large answers leave in memory is bounded.
func TestWaiting_KeepsSoMuch(t *testing.T) {
	var repositories []string
	const size, most = 100_000, 400_000
	for i := range 2 * most / size {
		repositories = append(repositories, "acme/r"+strconv.Itoa(i))
	}
	q, err := New(Options{Repositories: repositories, Key: Key{Token: "t"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	of := q.(*Queue)
	if of.api.most != maxKept {
		t.Errorf("%d bytes may be kept", of.api.most)
	}
	of.api.most = most
	pad := strings.Repeat("x", size)
	of.api.http.Transport = answers(func(r *http.Request) (int, http.Header, []byte) {
		body := `{}`
		switch {
		case r.URL.Query().Get("status") == queued:
			body = `{"workflow_runs":[{"id":1,"repository":{"full_name":"a/b"},"head_repository":{"full_name":"a/b"}}]}`
		case strings.HasSuffix(r.URL.Path, "/jobs"):
			body = `{"jobs":[{"id":1,"status":"queued","labels":["self-hosted"],"name":"` + pad + `"}]}`
		}
		return 200, http.Header{"Etag": {`"1"`}}, []byte(body)
	})
	works, err := of.Waiting(t.Context())
	if err != nil || len(works) != 1 || len(works[0].Title) > 200 {
		t.Errorf("%d, %v", len(works), err)
	}
	kept := 0
	for _, p := range of.api.before {
		kept += p.size
	}
	if of.at != 0 || kept == 0 || kept > most {
		t.Errorf("%d bytes are kept", kept)
	}
}

package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"linus/internal/dispatch"
)

// api makes requests to a forge's REST API. They are few and simple: a library for the whole API neither
// bounds answers nor knows both forges.
type api struct {
	url, token string
	http       *http.Client
}

func newAPI(url, token string) *api {
	// The token is for this server only, not for one that it redirects to.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &api{url: url, token: token, http: &http.Client{CheckRedirect: stay}}
}

// do makes a request of the REST API and decodes its answer.
func (a *api) do(ctx context.Context, method, path string, body, answer any) error {
	return a.send(ctx, method, "/api/v1"+path, http.Header{"Authorization": {"token " + a.token}}, body, answer)
}

// register makes the request by which a runner registers itself: Connect's protocol for unary calls, with
// JSON (connectrpc.com/docs/protocol). The token in its body authorizes it.
func (a *api) register(ctx context.Context, body, answer any) error {
	return a.send(ctx, http.MethodPost, "/api/actions/runner.v1.RunnerService/Register", http.Header{"Connect-Protocol-Version": {"1"}}, body, answer)
}

func (a *api) send(ctx context.Context, method, path string, header http.Header, body, answer any) error {
	header.Set("Accept", "application/json")
	header.Set("User-Agent", "linus")
	_, _, err := dispatch.Ask(ctx, a.http, method, a.url+path, header, body, answer)
	return err
}

// pages calls yield for the elements of a list, until it returns false. paged lists are read page by
// page. field is the answer's field with the list; empty: the answer is the list.
func pages[T any](ctx context.Context, a *api, path, field string, paged bool, yield func(T) bool) error {
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	first := 0
	for n := 1; n <= maxPages; n++ {
		at := path
		if paged {
			at += fmt.Sprintf("%slimit=%d&page=%d", sep, perPage, n)
		}
		var all []T
		var answer any = &all
		fields := map[string]json.RawMessage{}
		if field != "" {
			answer = &fields
		}
		err := a.do(ctx, http.MethodGet, at, nil, answer)
		if err == nil && field != "" {
			if fields[field] == nil {
				return fmt.Errorf("%s: the answer has no %s", path, field) // not an empty list
			}
			err = json.Unmarshal(fields[field], &all)
		}
		if err != nil {
			return err
		}
		for _, v := range all {
			if !yield(v) {
				return nil
			}
		}
		if n == 1 {
			first = len(all)
		}
		if !paged || len(all) < max(first, fewest) { // a server's maximum page may be smaller than perPage
			return nil
		}
	}
	return nil
}

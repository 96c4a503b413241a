package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// Refusal is an error answer of a queue's service.
type Refusal struct {
	Code int
	Text string // a single line
}

func (e *Refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, http.StatusText(e.Code), e.Text)
}

// Code returns the status code of a refusal, and 0 for other errors.
func Code(err error) int {
	if refused, is := errors.AsType[*Refusal](err); is {
		return refused.Code
	}
	return 0
}

const (
	answerTime = 30 * time.Second
	// MaxAnswer bounds the length of an answer, in bytes. A hundred runs of GitHub, each with its
	// repository twice, take 2 MB.
	MaxAnswer = 16 << 20
)

// Ask makes a request of a service's API, with body as JSON unless it is nil, and decodes the answer
// unless answer is nil. It returns a *Refusal for an error status. If the service has answered, resp is
// not nil, and data is the body of it.
func Ask(ctx context.Context, client *http.Client, method, url string, header http.Header, body, answer any) (resp *http.Response, data []byte, err error) {
	ctx, done := context.WithTimeout(ctx, answerTime)
	defer done()
	var from io.Reader
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return nil, nil, err
		}
		from = bytes.NewReader(data)
		header.Set("Content-Type", "application/json")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, from)
	if err != nil {
		return nil, nil, err
	}
	req.Header = header
	if resp, err = client.Do(req); err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	data, err = io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case resp.StatusCode/100 != 2:
		err = &Refusal{resp.StatusCode, reason(data)}
	case err != nil:
	case len(data) > MaxAnswer:
		err = fmt.Errorf("%s %s: the answer is longer than %d bytes", method, req.URL.Path, MaxAnswer)
	case answer != nil:
		if err = json.Unmarshal(data, answer); err != nil {
			err = fmt.Errorf("%s %s: the answer is not what the API says: %w", method, req.URL.Path, err)
		}
	}
	return resp, data, err
}

// reason returns the text of a refusal as one line. GitHub and the forges have a message; Anthropic has a
// message in an error.
func reason(data []byte) string {
	var said struct {
		Message string `json:"message"`
		Errors  []any  `json:"errors"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(data, &said) // what is not JSON is shown as text
	text := cmp.Or(said.Message, said.Error.Message, string(data[:min(len(data), 1000)]))
	if len(said.Errors) > 0 {
		text += fmt.Sprint(": ", said.Errors)
	}
	return Line(text)
}

// maxLine bounds the length of a foreign text that is shown, in bytes.
const maxLine = 200

// Line returns a text of a queue's service as one printable line of bounded length.
func Line(text string) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, ""))), " ")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + "..."
	}
	return text
}

// Stay keeps a client from following redirects to another server: its requests contain a key.
func Stay(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) >= 10 || r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

package dispatch

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
)

// Refusal is what a queue's service answers instead of what it was asked for.
type Refusal struct {
	Code int
	Text string // a line
}

func (e *Refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, http.StatusText(e.Code), e.Text)
}

// Code is that of a refusal; 0 for other errors.
func Code(err error) int {
	if refused, is := errors.AsType[*Refusal](err); is {
		return refused.Code
	}
	return 0
}

// maxLine bounds what is shown of a text of others, in bytes.
const maxLine = 200

// Line returns a text of a queue's service as a line of ours.
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

// Stay has a client follow no redirect to another server: what it sends has a key in it.
func Stay(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) >= 10 || r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return http.ErrUseLastResponse
	}
	return nil
}

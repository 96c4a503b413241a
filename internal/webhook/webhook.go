// Package webhook delivers messages to URLs, signed as Standard Webhooks (standardwebhooks.com)
// describes. It trusts no receiver: addresses are checked when they are dialled, redirects are not
// followed, and answers are bounded and dropped. It knows nothing about jobs but the message.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"linus/internal/job"
)

// Options configure a Sender.
type Options struct {
	URL     string // for messages without one; empty: they are not sent
	Key     []byte // signs messages
	Version string // of linus
}

// Sender delivers messages.
type Sender struct {
	o            Options
	open, public *http.Client // for any address, and for public addresses only
}

const (
	sendTime   = 15 * time.Second
	mostAnswer = 64 << 10 // bytes of an answer that are read, so that its connection can be reused
)

// New returns a Sender.
func New(o Options) *Sender {
	return &Sender{o: o, open: client(nil), public: client(onlyPublic)}
}

func client(check func(network, address string, c syscall.RawConn) error) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, Control: check}
	return &http.Client{
		Timeout:       sendTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: sendTime,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 2, ForceAttemptHTTP2: true,
		},
	}
}

// errPrivate says that an address is not public.
var errPrivate = errors.New("the address is not public")

// onlyPublic checks the address that is dialled, after its name was resolved, so that a name that
// resolves to another address later gains nothing.
func onlyPublic(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if !job.IsPublic(at.Addr().Unmap()) {
		return fmt.Errorf("%s: %w", at.Addr(), errPrivate)
	}
	return nil
}

// Send makes one attempt to deliver a message. It ends within sendTime, whatever the receiver does.
func (s *Sender) Send(ctx context.Context, w job.Webhook) job.WebhookResult {
	to, via := w.URL, s.public
	if to == "" {
		to, w.Private = s.o.URL, true
	}
	if w.Private {
		via = s.open
	}
	u, err := url.Parse(to)
	if to == "" || err != nil {
		return job.WebhookResult{Err: errors.New("WEBHOOK_URL is no longer set"), Final: true}
	}
	r := job.WebhookResult{Host: u.Host}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(w.Body))
	if err != nil {
		r.Err, r.Final = errors.New("it is no URL"), true
		return r
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "linus/"+s.o.Version)
	req.Header.Set("webhook-id", w.ID)
	req.Header.Set("webhook-timestamp", at)
	req.Header.Set("webhook-signature", Signature(s.o.Key, w.ID, at, w.Body))
	resp, err := via.Do(req)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the wrapper's text has the URL, which may contain a token
		}
		r.Err, r.Final = err, errors.Is(err, errPrivate)
		return r
	}
	defer resp.Body.Close() //nolint:errcheck // read as far as wanted
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, mostAnswer))
	r.Status = resp.StatusCode
	switch {
	case r.Status/100 == 2:
	case r.Status == http.StatusGone:
		r.Err, r.Final = errors.New("the receiver wants no more (410)"), true
	case r.Status/100 == 3:
		r.Err = fmt.Errorf("the receiver redirects (%d), which is not followed", r.Status)
	default:
		r.Err = fmt.Errorf("the receiver returned %d", r.Status)
	}
	return r
}

// Signature returns a message's signature, version 1.
func Signature(key []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

package control

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"linus/internal/sleep"

	"github.com/coder/websocket"
)

const (
	maxFrame  = 64 << 10 // bytes of one message
	pingEvery = 20 * time.Second
	// pingLimit is how long the other side may take to answer a ping, or to read.
	pingLimit = 2 * time.Minute
	closeTime = 5 * time.Second
)

// opener serves a WebSocket. It calls accept once there is something to connect to, and returns
// when either side is done. Errors before accept are HTTP errors.
type opener = func(ctx context.Context, in any, accept accepting) error

type accepting = func() (*websocket.Conn, error)

func socket(s shape, open opener) row {
	return row{s, func(w http.ResponseWriter, r *http.Request) {
		in, err := s.decode(r)
		if err != nil {
			refuse(w, err)
			return
		}
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			w.Header().Set("Upgrade", "websocket")
			Refuse(w, http.StatusUpgradeRequired, codeInvalid, "this is a WebSocket: connect to it as one")
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		var ws *websocket.Conn
		err = open(ctx, in, func() (*websocket.Conn, error) {
			// Accept checks that a browser's page is of this host. Compression would take memory
			// per connection.
			conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
			if err != nil {
				return nil, errRefused // Accept has answered
			}
			ws = conn
			ws.SetReadLimit(maxFrame)
			go keepAlive(ctx, cancel, ws)
			return ws, nil
		})
		switch {
		case ws != nil:
			finish(r.Context(), ws, err)
		case !errors.Is(err, errRefused):
			s.fail(w, r, err)
		}
	}}
}

var errRefused = errors.New("refused by the WebSocket's server")

// keepAlive ends a WebSocket whose other side does not answer.
func keepAlive(ctx context.Context, end context.CancelFunc, ws *websocket.Conn) {
	for sleep.For(ctx, pingEvery) == nil {
		timed, cancel := context.WithTimeout(ctx, pingLimit)
		err := ws.Ping(timed)
		cancel()
		if err != nil {
			end()
			return
		}
	}
}

// finish closes a WebSocket with the reason.
func finish(ctx context.Context, ws *websocket.Conn, err error) {
	code, reason := websocket.StatusNormalClosure, ""
	switch {
	case ctx.Err() != nil:
		code, reason = websocket.StatusGoingAway, "the server ends the connection"
	case err != nil:
		_, f := encodeError(err)
		code, reason = websocket.StatusInternalError, f.Code+": "+f.Detail
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = ws.Close(code, cutReason(reason))
	}()
	select { // Close waits for the other side
	case <-closed:
	case <-time.After(closeTime):
		_ = ws.CloseNow()
		<-closed
	}
}

// cutReason cuts a text to the 123 bytes that a close frame holds.
func cutReason(text string) string {
	const most = 123
	if len(text) > most {
		text = text[:most]
	}
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}

func (c *Conn) open(ctx context.Context, s shape, in any) (*websocket.Conn, error) {
	req, err := c.request(ctx, s, in)
	if err != nil {
		return nil, err
	}
	ws, resp, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: req.Header, CompressionMode: websocket.CompressionDisabled}) //nolint:bodyclose // Dial closes it, unless readFailure does
	if err != nil && resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, readFailure(resp)
	}
	if err != nil {
		return nil, noResponse(ctx, err, false)
	}
	ws.SetReadLimit(maxFrame)
	return ws, nil
}

package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
)

// Remote is a server of the API on another machine.
type Remote struct {
	URL   string                                    // https://linus.example:8766; http:// only for this machine's loopback
	Token func(ctx context.Context) (string, error) // called for each connection
	Roots *x509.CertPool                            // CAs for the server's certificate; nil: the system's
}

const (
	// reconnectTime is how long a client that was connected tries to reach the server again.
	reconnectTime = 30 * time.Second
	reconnectWait = 500 * time.Millisecond

	pingAfter = 15 * time.Second // of silence on a connection
	pingTime  = 15 * time.Second // for the answer
)

// DialRemote returns a Client of the engine behind a server. If the server becomes unreachable, the
// client tries to reconnect for reconnectTime.
func DialRemote(ctx context.Context, r Remote) (*Client, error) {
	connected := false
	c, err := NewClient(ctx, func(ctx context.Context) (*Conn, error) { // one call at a time
		give := time.Now().Add(reconnectTime)
		for {
			conn, err := ConnectRemote(ctx, r)
			if err == nil {
				connected = true
				return conn, nil
			}
			gone := errors.Is(err, ErrNoEngine) || errors.Is(err, ErrLost) || errors.Is(err, ErrStopped)
			if !connected || !gone || time.Now().After(give) {
				return nil, err
			}
			if sleep.For(ctx, reconnectWait) != nil {
				return nil, err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	c.restarts = true
	return c, nil
}

// ConnectRemote connects to a server. It returns ErrNoEngine if nothing answers there.
func ConnectRemote(ctx context.Context, r Remote) (*Conn, error) {
	base, err := checkURL(r.URL)
	if err != nil {
		return nil, err
	}
	token, err := r.Token(ctx)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pingAfter, Interval: 5 * time.Second, Count: 3}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil && ctx.Err() == nil {
				return nil, &unreachable{err}
			}
			return conn, err
		},
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: r.Roots},
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTime}, // so that no call waits for a dead connection
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     time.Minute, // less than the server's
	}
	c := &Conn{base: base + APIPrefix, header: http.Header{"Authorization": {"Bearer " + token}}, transport: transport, http: &http.Client{
		Transport: transport,
		// The token is only for this server, not for the target of a redirect.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if err := c.call(ctx, shapeOf(infoVerb), job.None{}, &c.info); err != nil {
		c.Close()
		if errors.Is(err, http.ErrSchemeMismatch) {
			err = fmt.Errorf("what answers there speaks http and not https: set HTTP_TLS_CERT on the server, or reach it through an SSH tunnel, as http://127.0.0.1:PORT (%w)", err)
		}
		return nil, fmt.Errorf("connect to %s: %w", base, err)
	}
	return c, nil
}

// checkURL returns the URL of a server without a final slash, if it is safe to send it a token.
func checkURL(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%q is not the URL of a server; write it as https://linus.example:8766", text)
	case u.Scheme == "http" && !job.IsLoopback(u.Hostname()):
		return "", fmt.Errorf("%s is not encrypted, so the token could be read on the way; use https:// (HTTP_TLS_CERT on the server), or an SSH tunnel to this machine's loopback", text)
	}
	// linus serve prints the URL for MCP clients, which belongs to the same server.
	return strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.String(), "/"), "/mcp"), "/"), nil
}

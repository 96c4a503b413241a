package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/mcptool"
	"linus/internal/oauth"
	"linus/internal/secret"
	"linus/internal/vm"
	"linus/internal/web"
)

// HTTP says where the engine can be reached by HTTP.
type HTTP struct {
	Scheme  string // http, or https
	Addr    string // address listened on
	Browser string // the same, for a browser on this machine
	Token   string // where people find the clients' token: a file or a setting
	Login   string // link that logs a browser in; it contains the token
}

// httpFace serves the engine by HTTP.
type httpFace struct {
	HTTP
	server *web.Server
	mcp    *mcptool.HTTP
	oauth  *oauth.Verifier // nil: no OAuth issuer is trusted
	login  *oauth.Login    // nil: nobody logs in by an issuer
	served chan struct{}
}

// openHTTP listens on HTTP_ADDR; it returns nil if that is not set. failed is called with the error
// if the server fails.
func openHTTP(ctx context.Context, o Options, e *engine, failed func(error)) (*httpFace, error) {
	c, log := o.Config, o.Log
	if c.HTTPAddr == "" {
		return nil, nil
	}
	f := &httpFace{served: make(chan struct{}), HTTP: HTTP{Token: "HTTP_TOKEN"}}
	token := c.HTTPToken.Reveal()
	if token == "" {
		f.Token = filepath.Join(c.StateDir, "http-token")
		var err error
		if token, err = ensureToken(f.Token); err != nil {
			return nil, err
		}
	}
	settings, err := serverTLS(c, log)
	if err != nil {
		return nil, err
	}
	bodies := new(job.Bodies)
	options := web.Options{Engine: e.guarded, API: control.API(e.guarded, control.APIOptions{Version: o.Version, Bodies: bodies, Log: log}), Bodies: bodies, Metrics: e.watch.metrics.Handler(), Hooks: o.Hooks, Token: token, Authenticate: e.Authenticate, Holder: e.Holder, Logouts: filepath.Join(c.StateDir, "http-logouts"), TLS: settings, Hosts: c.HTTPNames(), Origins: c.HTTPOrigins(), URL: func() string { return e.httpURL(c) }, PortDomain: c.PortDomain(), Defaults: defaultsOf(c), Log: log}
	options.Processes = func(ctx context.Context, v vm.VM) []string {
		if s := e.sandboxes.Load(); s != nil {
			return s.Processes(ctx, v)
		}
		return nil
	}
	mcp := MCPOptions(o, e.guarded)
	if c.OAuthIssuer != "" {
		roots, err := readRoots(ctx, "OAUTH_CA_FILE", c.OAuthCAFile)
		if err != nil {
			return nil, err
		}
		f.oauth = oauth.New(oauth.Options{Issuer: c.OAuthIssuer, Audience: c.OAuthAudience, Roots: roots, Log: log}) //nolint:contextcheck // it fetches keys until it is closed
		options.OAuth = &web.OAuth{Issuer: c.OAuthIssuer, Resource: c.OAuthAudience}
		mcp.Challenge = options.OAuth.Insufficient
		options.Authenticate = func(ctx context.Context, bearer string) (job.Principal, error) {
			if job.IsToken(bearer) {
				return e.Authenticate(ctx, bearer)
			}
			return f.oauth.Authenticate(ctx, bearer)
		}
	}
	if c.OIDCIssuer != "" {
		if f.login, err = newLogin(ctx, c, log); err != nil {
			f.oauth.Close()
			return nil, err
		}
		options.Issuer = issuer{login: f.login, tokens: e.tokens, config: c}
		log.Info("people can log in through an issuer", "issuer", c.OIDCIssuer, "redirect_uri", c.HTTPURL+web.ReturnPath)
	}
	f.mcp = mcptool.NewHTTP(mcp)
	options.MCP = f.mcp
	f.server, err = web.Listen(ctx, c.HTTPAddr, options)
	if err != nil {
		f.oauth.Close()
		f.login.Close()
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; set HTTP_ADDR (or --http) to another port, or to port 0 for any free one", err)
		}
		return nil, errors.Join(err, f.mcp.Close(ctx))
	}
	go func() {
		defer close(f.served)
		if err := f.server.Serve(); err != nil {
			failed(err)
		}
	}()
	f.Scheme, f.Addr, f.Browser = "http", f.server.Addr(), browserAddr(f.server.Addr())
	if settings != nil {
		f.Scheme = "https"
		if names := c.HTTPNames(); len(names) > 0 { // the certificate's names, rather than an address
			_, port, _ := net.SplitHostPort(f.Addr)
			f.Browser = net.JoinHostPort(names[0], port)
		}
	} else if host, _, _ := net.SplitHostPort(f.Addr); !job.IsLoopback(host) {
		log.Warn("HTTP is not encrypted, and tokens can be read on the network, unless a proxy in front of it encrypts; set HTTP_TLS_CERT and HTTP_TLS_KEY, or listen on 127.0.0.1", "addr", f.Addr)
	}
	at := f.Scheme + "://" + f.Browser
	e.served.Store(&at)
	f.Login = f.Scheme + "://" + f.Browser + web.LoginPath(token)
	log.Info("HTTP server started", "addr", f.server.Addr())
	return f, nil
}

// httpURL is HTTP_URL, or else the URL at which this engine serves HTTP; empty: none is known here.
func (e *engine) httpURL(c config.Config) string {
	if at := e.served.Load(); c.HTTPURL == "" && at != nil {
		return *at
	}
	return c.HTTPURL
}

// serverTLS returns the TLS settings of the HTTP server; nil: it uses no TLS.
func serverTLS(c config.Config, log *slog.Logger) (*tls.Config, error) {
	if c.HTTPTLSCert == "" {
		return nil, nil
	}
	cert, err := web.OpenCertificate(c.HTTPTLSCert, c.HTTPTLSKey, log)
	if err != nil {
		return nil, fmt.Errorf("HTTP_TLS_CERT: %w", err)
	}
	return cert.Config(), nil
}

// browserAddr returns an address that a browser on this machine can open: the unspecified address
// becomes loopback.
func browserAddr(addr string) string {
	a, err := netip.ParseAddrPort(addr)
	if err != nil || !a.Addr().IsUnspecified() {
		return addr
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port()).String()
}

// close ends streams and requests, and waits for the server.
func (f *httpFace) close(ctx context.Context) error {
	if f == nil {
		return nil
	}
	err := errors.Join(f.server.Close(ctx), f.mcp.Close(ctx))
	f.oauth.Close()
	f.login.Close()
	<-f.served
	return err
}

// MCPOptions returns the options of an engine's MCP server, for stdio and HTTP.
func MCPOptions(o Options, e job.Engine) mcptool.Options {
	c, log := o.Config, o.Log
	return mcptool.Options{
		Engine: e, Version: o.Version, Icon: web.Icon(), Log: log,
		Retention: time.Duration(c.RetentionDays) * 24 * time.Hour,
		Toolsets:  c.Toolsets(), ReadOnly: c.MCPReadOnly, DisableDestructive: c.MCPDisableDestructive,
		SSHCommand: func(v vm.VM) string {
			if c.Server != "" {
				return "linus job exec --vm " + v.Name + " --tty -- bash -l"
			}
			return "linus vm ssh " + v.Name
		},
	}
}

// ensureToken returns the token in a file, which it creates if missing. Like a private key, only
// its owner may have access to it.
func ensureToken(path string) (string, error) {
	data, err := secret.ReadOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		random := make([]byte, 32)
		_, _ = rand.Read(random) // never fails
		token := hex.EncodeToString(random)
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			return "", fmt.Errorf("store a token for HTTP clients: %w", err)
		}
		return token, nil
	}
	token := strings.TrimSpace(string(data))
	if err == nil && len(token) < 16 {
		err = fmt.Errorf("%s has fewer than 16 characters; remove it to get a new one", path)
	}
	if err != nil {
		return "", fmt.Errorf("read the token of HTTP clients: %w", err)
	}
	return token, nil
}

package oauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxBody = 256 << 10
	maxKeys = 100
)

// source is where an issuer publishes its metadata and its keys.
type source struct {
	issuer string
	client *http.Client
}

func newSource(issuer string, roots *x509.CertPool) *source {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &source{issuer: issuer, client: &http.Client{
		Timeout: fetchTime,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != via[0].URL.Scheme || r.URL.Host != via[0].URL.Host || len(via) > 3 {
				return errors.New("a redirect to another host, or too many")
			}
			return nil
		},
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			DialContext:     dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: fetchTime,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		},
	}}
}

// fetch returns the keys that can sign tokens.
func (s *source) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	at, err := s.discover(ctx)
	if err != nil {
		return nil, err
	}
	var published struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := s.get(ctx, at, &published); err != nil {
		return nil, fmt.Errorf("keys at %s: %w", at, err)
	}
	if len(published.Keys) > maxKeys {
		return nil, fmt.Errorf("keys at %s: %d, the limit is %d", at, len(published.Keys), maxKeys)
	}
	var set []jose.JSONWebKey
	for _, data := range published.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(data, &key); err != nil || !key.Valid() || !key.IsPublic() {
			continue // as RFC 7517 says: of a kind that is not known here
		}
		for _, alg := range algorithms {
			if fits(&key, string(alg)) {
				set = append(set, key)
				break
			}
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("keys at %s: none of %d can be used", at, len(published.Keys))
	}
	return set, nil
}

// discover returns the URL of the keys, from the metadata where RFC 8414 or OpenID Connect
// puts it.
func (s *source) discover(ctx context.Context) (string, error) {
	issuer, err := url.Parse(s.issuer)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(issuer.Path, "/")
	var wrong []error
	for _, at := range []string{"/.well-known/oauth-authorization-server" + path, path + "/.well-known/openid-configuration"} {
		u := url.URL{Scheme: issuer.Scheme, Host: issuer.Host, Path: at}
		var metadata struct {
			Issuer  string `json:"issuer"`
			JWKSURI string `json:"jwks_uri"`
		}
		err := s.get(ctx, u.String(), &metadata)
		if err == nil && metadata.Issuer != s.issuer {
			err = fmt.Errorf("it is of the issuer %.200q: OAUTH_ISSUER must be the same text", metadata.Issuer)
		}
		if err == nil && !isSecure(metadata.JWKSURI, issuer) {
			err = fmt.Errorf("jwks_uri %.200q is no https URL", metadata.JWKSURI)
		}
		if err == nil {
			return metadata.JWKSURI, nil
		}
		wrong = append(wrong, fmt.Errorf("metadata at %s: %w", u.String(), err))
	}
	return "", errors.Join(wrong...)
}

// isSecure reports whether keys may be fetched from a URL: by https, or from the issuer's
// own host if that has none.
func isSecure(at string, issuer *url.URL) bool {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	return u.Scheme == "https" || issuer.Scheme == "http" && u.Scheme == "http" && u.Host == issuer.Host
}

// get decodes the JSON at a URL.
func (s *source) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(data) > maxBody {
		err = fmt.Errorf("more than %d bytes", maxBody)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

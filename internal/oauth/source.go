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
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxBody = 256 << 10
	maxKeys = 100
)

type source struct {
	issuer string
	logins bool // true: OIDC_ISSUER, with the metadata of OpenID Connect; false: OAUTH_ISSUER
	client *http.Client
}

func newSource(issuer string, logins bool, roots *x509.CertPool) *source {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &source{issuer: issuer, logins: logins, client: &http.Client{
		Timeout: fetchTime,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if via[0].Method != http.MethodGet {
				return errors.New("a redirect of what is for this address only")
			}
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
	return s.keysAt(ctx, at.JWKSURI)
}

func (s *source) keysAt(ctx context.Context, at string) ([]jose.JSONWebKey, error) {
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
			continue // of an unknown kind, to be ignored as RFC 7517 says
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

// metadata is the part of an issuer's metadata that matters here.
type metadata struct {
	Issuer        string   `json:"issuer"`
	JWKSURI       string   `json:"jwks_uri"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	UserInfo      string   `json:"userinfo_endpoint"`
	EndSession    string   `json:"end_session_endpoint"`
	TokenAuth     []string `json:"token_endpoint_auth_methods_supported"`
	NamesItself   bool     `json:"authorization_response_iss_parameter_supported"`
}

// discover returns the metadata of RFC 8414 or OpenID Connect, with a trusted URL of the keys.
func (s *source) discover(ctx context.Context) (metadata, error) {
	issuer, err := url.Parse(s.issuer)
	if err != nil {
		return metadata{}, err
	}
	path := strings.TrimSuffix(issuer.Path, "/")
	var wrong []error
	setting, places := "OAUTH_ISSUER", []string{"/.well-known/oauth-authorization-server" + path, path + "/.well-known/openid-configuration"}
	if s.logins {
		setting = "OIDC_ISSUER"
		slices.Reverse(places)
	}
	for _, at := range places {
		u := url.URL{Scheme: issuer.Scheme, Host: issuer.Host, Path: at}
		var m metadata
		err := s.get(ctx, u.String(), &m)
		if err == nil && m.Issuer != s.issuer {
			err = fmt.Errorf("it is of the issuer %.200q: %s must be the same text", m.Issuer, setting)
		}
		if err == nil && !isSecure(m.JWKSURI, issuer) {
			err = fmt.Errorf("jwks_uri %.200q is not an https URL", m.JWKSURI)
		}
		if err == nil {
			return m, nil
		}
		wrong = append(wrong, fmt.Errorf("metadata at %s: %w", u.String(), err))
	}
	return metadata{}, errors.Join(wrong...)
}

// isSecure reports whether keys may be fetched from a URL: by https, or by http from the host of an
// issuer that has no https itself.
func isSecure(at string, issuer *url.URL) bool {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	return u.Scheme == "https" || issuer.Scheme == "http" && u.Scheme == "http" && u.Host == issuer.Host
}

func (s *source) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	status, data, err := s.send(req)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("%d %s", status, http.StatusText(status))
	}
	return json.Unmarshal(data, into)
}

func (s *source) send(req *http.Request) (int, []byte, error) {
	req.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(data) > maxBody {
		err = fmt.Errorf("more than %d bytes", maxBody)
	}
	return resp.StatusCode, data, err
}

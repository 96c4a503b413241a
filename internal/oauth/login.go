package oauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// LoginOptions of a Login.
type LoginOptions struct {
	Issuer       string // URL, exactly as in ID tokens and metadata
	ClientID     string
	ClientSecret string // empty: a public client
	Redirect     string // URL to which browsers return
	Scopes       []string
	GroupsClaim  string
	Roles        map[string]job.Role // by group; * is everybody
	Roots        *x509.CertPool      // CAs for the issuer's server; nil: the system's
	Log          *slog.Logger
}

// Login lets people log in at an issuer, by OpenID Connect's authorization code flow with PKCE.
type Login struct {
	o      LoginOptions
	source *source
	keys   *keys
	at     atomic.Pointer[metadata] // stored together with the keys
}

// Person is somebody who has logged in.
type Person struct {
	Name   string // of the principal; the person's access tokens have the same
	Called string // name to show to people
	Role   job.Role
}

// everybody is the group of all people that the issuer lets in.
const everybody = "*"

// NewLogin returns a Login, and begins to fetch the issuer's metadata and keys. Close stops that.
func NewLogin(o LoginOptions) *Login {
	l := &Login{o: o, source: newSource(o.Issuer, true, o.Roots)}
	l.keys = newKeys(l.fetch, o.Log.With("issuer", o.Issuer))
	l.keys.refresh()
	return l
}

// Close stops background work. It may be called on a nil Login.
func (l *Login) Close() {
	if l != nil {
		l.keys.close()
	}
}

// fetch returns the keys, and stores the metadata that has their URL.
func (l *Login) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	m, err := l.source.discover(ctx)
	if err != nil {
		return nil, err
	}
	issuer, err := url.Parse(l.o.Issuer)
	if err != nil {
		return nil, err
	}
	for name, at := range map[string]string{"authorization_endpoint": m.Authorization, "token_endpoint": m.Token} {
		if !isSecure(at, issuer) {
			return nil, fmt.Errorf("metadata of %s: %s %.200q is not an https URL", l.o.Issuer, name, at)
		}
	}
	for _, optional := range []*string{&m.UserInfo, &m.EndSession} {
		if !isSecure(*optional, issuer) {
			*optional = ""
		}
	}
	set, err := l.source.keysAt(ctx, m.JWKSURI)
	if err == nil {
		l.at.Store(&m)
	}
	return set, err
}

// URL returns the URL to which a browser is sent to log in. state comes back with the browser,
// nonce in the issuer's ID token. The code that comes back is worthless without the verifier. URL
// returns job.ErrUnchecked while the issuer cannot be reached.
func (l *Login) URL(ctx context.Context, state, nonce, verifier string) (string, error) {
	if err := l.keys.ready(ctx); err != nil {
		return "", err
	}
	u, err := url.Parse(l.at.Load().Authorization)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(verifier))
	q := u.Query()
	for name, value := range map[string]string{
		"response_type": "code", "client_id": l.o.ClientID, "redirect_uri": l.o.Redirect, "scope": strings.Join(l.o.Scopes, " "),
		"state": state, "nonce": nonce, "code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
	} {
		q.Set(name, value)
	}
	u.RawQuery, u.Fragment = q.Encode(), ""
	return u.String(), nil
}

// LogoutURL returns where people log out at the issuer itself, after a question; empty: unknown.
func (l *Login) LogoutURL() string {
	at := l.at.Load()
	if at == nil || at.EndSession == "" {
		return ""
	}
	u, err := url.Parse(at.EndSession)
	if err != nil {
		return ""
	}
	q := u.Query()
	q.Set("client_id", l.o.ClientID)
	u.RawQuery = q.Encode()
	return u.String()
}

var idTypes = []string{"", "jwt"}

type idClaims struct {
	jwt.Claims
	Nonce string `json:"nonce"`
	Party string `json:"azp"`
}

// Finish returns who has logged in, from the query that the browser has brought back. Errors:
// *job.RefusedError, with a reason for people, and with the Person if that is known;
// job.ErrUnchecked; others if the issuer cannot be asked.
func (l *Login) Finish(ctx context.Context, back url.Values, nonce, verifier string) (Person, error) {
	if err := l.keys.ready(ctx); err != nil {
		return Person{}, err
	}
	at := *l.at.Load()
	if iss := back.Get("iss"); (iss != "" || at.NamesItself) && iss != l.o.Issuer {
		return Person{}, &job.RefusedError{Why: "the answer is from another issuer"}
	}
	if back.Get("error") != "" {
		return Person{}, said(back.Get("error"), back.Get("error_description"))
	}
	code := back.Get("code")
	if code == "" {
		return Person{}, &job.RefusedError{Why: "the issuer's answer has no code"}
	}
	idToken, access, err := l.exchange(ctx, at, code, verifier)
	if err != nil {
		return Person{}, err
	}
	var id idClaims
	all := map[string]json.RawMessage{}
	if err := signed(ctx, l.keys, idToken, idTypes, func() string { return l.problem(id, nonce, time.Now()) }, &id, &all); err != nil {
		return Person{}, about("ID token", err)
	}
	if _, ok := all[l.o.GroupsClaim]; !ok && at.UserInfo != "" && access != "" {
		more, err := l.userInfo(ctx, at.UserInfo, access, id.Subject)
		if err != nil {
			return Person{}, fmt.Errorf("userinfo at %s: %w", at.UserInfo, err)
		}
		maps.Copy(more, all)
		all = more
	}
	groups := groupsIn(all[l.o.GroupsClaim])
	p := Person{Name: nameOf(l.o.Issuer, id.Subject), Role: l.roleOf(groups)}
	p.Called = cmp.Or(nameIn(all["preferred_username"]), nameIn(all["email"]), nameIn(all["name"]), p.Name)
	if p.Role == "" {
		l.o.Log.Warn("a person of the issuer is in no group of OIDC_ROLES", "principal", p.Name, "claim", l.o.GroupsClaim, "groups", fmt.Sprintf("%.500s", strings.Join(groups, ", ")))
		return p, &job.RefusedError{Why: fmt.Sprintf("%s (%s) is in none of the groups that may log in: %s", p.Called, p.Name, strings.Join(slices.Sorted(maps.Keys(l.o.Roles)), ", "))}
	}
	return p, nil
}

// problem returns why an ID token is refused; empty: it is accepted.
func (l *Login) problem(c idClaims, nonce string, now time.Time) string {
	if why := unfit(c.Claims, l.o.Issuer, jwt.Audience{l.o.ClientID}, now); why != "" {
		return why
	}
	switch {
	case c.Nonce == "" || c.Nonce != nonce:
		return "the token is from another login"
	case c.Party != "" && c.Party != l.o.ClientID, c.Party == "" && len(c.Audience) > 1:
		return "the token was issued to another client"
	}
	return ""
}

// exchange returns the ID token and the access token for a code.
func (l *Login) exchange(ctx context.Context, at metadata, code, verifier string) (id, access string, err error) {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {l.o.Redirect}, "code_verifier": {verifier}}
	basic := l.o.ClientSecret != "" && (len(at.TokenAuth) == 0 || slices.Contains(at.TokenAuth, "client_secret_basic"))
	if !basic { // some issuers refuse a client ID in both places
		form.Set("client_id", l.o.ClientID)
		if l.o.ClientSecret != "" {
			form.Set("client_secret", l.o.ClientSecret)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if basic {
		req.SetBasicAuth(url.QueryEscape(l.o.ClientID), url.QueryEscape(l.o.ClientSecret)) // as RFC 6749 says
	}
	status, data, err := l.source.send(req)
	if err != nil {
		return "", "", fmt.Errorf("exchange the code: %w", err)
	}
	var got struct {
		ID     string `json:"id_token"`
		Access string `json:"access_token"`
		Error  string `json:"error"`
		About  string `json:"error_description"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return "", "", fmt.Errorf("exchange the code at %s: %d %s, and not JSON", at.Token, status, http.StatusText(status)) // the body may have secrets
	}
	switch {
	case got.Error != "":
		return "", "", said(got.Error, got.About)
	case status != http.StatusOK:
		return "", "", fmt.Errorf("exchange the code at %s: %d %s", at.Token, status, http.StatusText(status))
	case got.ID == "":
		return "", "", &job.RefusedError{Why: "the issuer gives no ID token: OIDC_SCOPES must have openid, and the client must be an OpenID Connect client"}
	}
	return got.ID, got.Access, nil
}

// userInfo returns more claims of a subject.
func (l *Login) userInfo(ctx context.Context, at, access, subject string) (map[string]json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+access)
	status, data, err := l.source.send(req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s", status, http.StatusText(status))
	}
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, errors.New("it is not a JSON object")
	}
	var sub string
	if err := json.Unmarshal(all["sub"], &sub); err != nil || sub != subject {
		return nil, &job.RefusedError{Why: "the userinfo is about somebody else"}
	}
	return all, nil
}

// roleOf returns the greatest role of groups; empty: they have none.
func (l *Login) roleOf(groups []string) job.Role {
	groups = append(groups, everybody)
	for _, role := range slices.Backward(job.Roles) {
		if slices.ContainsFunc(groups, func(g string) bool { return l.o.Roles[g] == role }) {
			return role
		}
	}
	return ""
}

// groupsIn returns the groups of a claim, which is a list of texts or a single text.
func groupsIn(claim json.RawMessage) []string {
	var one string
	var list []string
	if json.Unmarshal(claim, &one) == nil {
		list = []string{one}
	} else if json.Unmarshal(claim, &list) != nil {
		return nil
	}
	return list
}

// plainName matches names that can be shown anywhere, to people and programs.
var plainName = lazyregexp.New(`^[\p{L}\p{N}._@+'-]([\p{L}\p{N} ._@+'-]{0,62}[\p{L}\p{N}._@+'-])?$`)

// nameIn returns a claim's text if it can be shown, or an empty text.
func nameIn(claim json.RawMessage) string {
	var text string
	if json.Unmarshal(claim, &text) != nil || !plainName.MatchString(text) {
		return ""
	}
	return text
}

// said returns the error for an issuer's refusal.
func said(code, about string) error {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return ' '
		}
		return r
	}, code+": "+about)
	return &job.RefusedError{Why: "the issuer says " + strings.TrimRight(text[:min(len(text), 300)], ": ")}
}

// about adds to a RefusedError which token it is about.
func about(what string, err error) error {
	var refused *job.RefusedError
	if errors.As(err, &refused) {
		return &job.RefusedError{Why: "the issuer's " + what + " is not accepted: " + refused.Why}
	}
	return err
}

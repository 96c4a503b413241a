// Package oauth makes principals of the access tokens of one OAuth issuer, and of the people
// who log in at one of OpenID Connect: by JWTs, whose signatures it checks with the issuer's
// published keys. It knows nothing of HTTP requests to this server, and is no authorization
// server.
package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// Options of a Verifier.
type Options struct {
	Issuer   string         // URL, exactly as in tokens and metadata
	Audience string         // what tokens must be for; if it is a URL without a path, also with one of /
	Roots    *x509.CertPool // that may vouch for the issuer's server; nil: the system's
	Log      *slog.Logger
}

// Verifier checks access tokens.
type Verifier struct {
	o         Options
	audiences jwt.Audience
	keys      *keys
}

const (
	maxToken = 16 << 10
	leeway   = 30 * time.Second // that clocks may differ
)

// algorithms are those with a private key, which only the issuer has. With any other, what
// the issuer publishes would be enough to make tokens.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// types are those of access tokens: RFC 9068's, and none in particular, as most issuers
// have it.
var types = []string{"", "jwt", "at+jwt", "application/at+jwt"}

// New returns a Verifier, which begins to fetch the issuer's keys. Close stops that.
func New(o Options) *Verifier {
	v := &Verifier{o: o, audiences: jwt.Audience{o.Audience}}
	if u, err := url.Parse(o.Audience); err == nil && u.Host != "" && u.Path == "" {
		v.audiences = append(v.audiences, o.Audience+"/") // clients' libraries write it so
	}
	source := newSource(o.Issuer, false, o.Roots)
	v.keys = newKeys(source.fetch, o.Log.With("issuer", o.Issuer))
	v.keys.refresh()
	return v
}

// Close stops what Authenticate has running. A nil Verifier has nothing.
func (v *Verifier) Close() {
	if v != nil {
		v.keys.close()
	}
}

// claims are those of RFC 9068 that decide here.
type claims struct {
	jwt.Claims
	Scope scopes          `json:"scope"`
	Scp   scopes          `json:"scp"` // the same, of some issuers
	Cnf   json.RawMessage `json:"cnf"`
}

// Authenticate returns the principal of a token. Errors: job.ErrUnauthorized, with a
// *job.RefusedError that says why; job.ErrNoScope for a valid token that allows nothing
// here; job.ErrUnchecked as long as the issuer's keys are not known.
func (v *Verifier) Authenticate(ctx context.Context, token string) (job.Principal, error) {
	p, err := v.authenticate(ctx, token)
	if err != nil {
		v.o.Log.Debug("an OAuth token is not accepted", "err", err)
	}
	return p, err
}

func (v *Verifier) authenticate(ctx context.Context, token string) (job.Principal, error) {
	var c claims
	err := signed(ctx, v.keys, token, types, func() string { return v.problem(c, time.Now()) }, &c)
	if err != nil {
		return job.Principal{}, err
	}
	role := roleOf(append(c.Scope, c.Scp...))
	if role == "" {
		return job.Principal{}, job.ErrNoScope
	}
	return job.Principal{Name: nameOf(v.o.Issuer, c.Subject), Token: tokenID(c.ID, token), Role: role, OAuth: true, Until: c.Expiry.Time().Add(leeway)}, nil
}

// signed decodes the claims of a token of one of some types that the issuer has signed, once
// problem finds nothing wrong with them.
func signed(ctx context.Context, k *keys, token string, types []string, problem func() string, into ...any) error {
	if len(token) > maxToken {
		return &job.RefusedError{Why: "the token is too long"}
	}
	t, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(t.Headers) != 1 {
		return &job.RefusedError{Why: "this is no JWT signed with a private key"}
	}
	head := t.Headers[0]
	if typ, _ := head.ExtraHeaders[jose.HeaderType].(string); !slices.Contains(types, strings.ToLower(typ)) {
		return &job.RefusedError{Why: "the token's type is not accepted here"}
	}
	if err := t.UnsafeClaimsWithoutVerification(into...); err != nil { // before its issuer is asked for anything
		return &job.RefusedError{Why: "the token's claims cannot be read"}
	}
	if why := problem(); why != "" {
		return &job.RefusedError{Why: why}
	}
	key, err := k.find(ctx, head.KeyID, head.Algorithm)
	if err != nil {
		return err
	}
	if err := t.Claims(key.Key, into...); err != nil { // the same text as before
		return &job.RefusedError{Why: "the token's signature is not the issuer's"}
	}
	return nil
}

// problem returns why a token with these claims is refused; empty: it is not.
func (v *Verifier) problem(c claims, now time.Time) string {
	if why := unfit(c.Claims, v.o.Issuer, v.audiences, now); why != "" {
		return why
	}
	if len(c.Cnf) > 0 && string(c.Cnf) != "null" {
		return "the token is bound to a key, which cannot be checked here"
	}
	return ""
}

// unfit is problem for the claims that every token has.
func unfit(c jwt.Claims, issuer string, audiences jwt.Audience, now time.Time) string {
	switch err := c.ValidateWithLeeway(jwt.Expected{Issuer: issuer, AnyAudience: audiences, Time: now}, leeway); {
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return "the token is of another issuer"
	case errors.Is(err, jwt.ErrInvalidAudience):
		return "the token is for another audience"
	case errors.Is(err, jwt.ErrExpired):
		return "the token has expired"
	case err != nil:
		return "the token is not valid yet"
	case c.Expiry == nil:
		return "the token has no expiry"
	case c.Subject == "":
		return "the token has no subject"
	}
	return ""
}

var plain = lazyregexp.New(`^[a-z0-9][a-z0-9._@-]*$`) // of at most 40 bytes

// nameOf returns the name of a subject's principal: oauth, the issuer's and the subject's
// own, or for one that is no plain name ~ and its hash. No name of a token has a colon.
func nameOf(issuer, subject string) string {
	if len(subject) > 40 || !plain.MatchString(subject) {
		subject = "~" + hash(subject, 32)
	}
	return "oauth:" + hash(issuer, 8) + ":" + subject
}

// An ID that an issuer gives a token, if it can be quoted anywhere: of at most 64 bytes.
var plainID = lazyregexp.New(`^[A-Za-z0-9._~:-]+$`)

// tokenID names a token in records: by the issuer's ID for it (jti), or if it has none
// that is plain, by the beginning of its hash.
func tokenID(jti, token string) string {
	if len(jti) <= 64 && plainID.MatchString(jti) {
		return "jti:" + jti
	}
	return hash(token, 16)
}

// hash returns the first hex digits of a text's sha256.
func hash(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// roleOf returns the greatest role among scopes; empty: there is none.
func roleOf(scopes []string) job.Role {
	for _, role := range slices.Backward(job.Roles) {
		if slices.Contains(scopes, role.Scope()) {
			return role
		}
	}
	return ""
}

// scopes are separated by spaces, or a list.
type scopes []string

// UnmarshalJSON decodes both forms.
func (s *scopes) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil {
		*s = strings.Fields(text)
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}

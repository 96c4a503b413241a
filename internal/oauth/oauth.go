// Package oauth returns principals for the access tokens of one OAuth issuer, and for people who
// log in at an OpenID Connect issuer. Both use JWTs, whose signatures it verifies with the issuer's
// published keys. It knows nothing of HTTP requests to this server, and is no authorization server.
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
	Audience string         // of tokens; if it is a URL without a path, the URL with path / is accepted, too
	Roots    *x509.CertPool // CAs for the issuer's server; nil: the system's
	Log      *slog.Logger
}

// Verifier verifies access tokens.
type Verifier struct {
	o         Options
	audiences jwt.Audience
	keys      *keys
}

const (
	maxToken = 16 << 10
	leeway   = 30 * time.Second // between clocks
)

// algorithms are the signature algorithms with a private key, which only the issuer has. With any
// other, the issuer's published keys would be enough to make tokens.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// types are the accepted types of access tokens: RFC 9068's, and none, as with most issuers.
var types = []string{"", "jwt", "at+jwt", "application/at+jwt"}

// New returns a Verifier, and begins to fetch the issuer's keys. Close stops that.
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

// Close stops background work. It may be called on a nil Verifier.
func (v *Verifier) Close() {
	if v != nil {
		v.keys.close()
	}
}

// claims are the claims of RFC 9068 that matter here.
type claims struct {
	jwt.Claims
	Scope scopes          `json:"scope"`
	Scp   scopes          `json:"scp"` // scope of some issuers
	Cnf   json.RawMessage `json:"cnf"`
}

// Authenticate returns the principal of a token. Errors: job.ErrUnauthorized, with a
// *job.RefusedError that has the reason; job.ErrNoScope for a valid token without a scope of linus;
// job.ErrUnchecked while the issuer's keys are unknown.
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

// signed decodes the claims of a token that has one of types and the issuer's signature. It
// verifies the signature only after problem has found nothing wrong with the claims.
func signed(ctx context.Context, k *keys, token string, types []string, problem func() string, into ...any) error {
	if len(token) > maxToken {
		return &job.RefusedError{Why: "the token is too long"}
	}
	t, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(t.Headers) != 1 {
		return &job.RefusedError{Why: "this is not a JWT signed with a private key"}
	}
	head := t.Headers[0]
	if typ, _ := head.ExtraHeaders[jose.HeaderType].(string); !slices.Contains(types, strings.ToLower(typ)) {
		return &job.RefusedError{Why: "the token's type is not accepted here"}
	}
	if err := t.UnsafeClaimsWithoutVerification(into...); err != nil { // before asking the issuer for keys
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

// problem returns why a token with these claims is refused; empty: it is accepted.
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
		return "the token is from another issuer"
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

// nameOf returns the name of a subject's principal: oauth, the issuer's hash, and the subject, or ~
// and the subject's hash if the subject is not plain. Names of linus's own tokens have no colon.
func nameOf(issuer, subject string) string {
	if len(subject) > 40 || !plain.MatchString(subject) {
		subject = "~" + hash(subject, 32)
	}
	return "oauth:" + hash(issuer, 8) + ":" + subject
}

// plainID matches IDs of tokens that can be quoted anywhere, if they have at most 64 bytes.
var plainID = lazyregexp.New(`^[A-Za-z0-9._~:-]+$`)

// tokenID names a token in records: by the issuer's ID for it (jti) or, without a plain one, by the
// beginning of its hash.
func tokenID(jti, token string) string {
	if len(jti) <= 64 && plainID.MatchString(jti) {
		return "jti:" + jti
	}
	return hash(token, 16)
}

// hash returns the first hex digits of a text's SHA-256.
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

// scopes are a list, or one text with spaces between scopes.
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

package actions

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"linus/internal/dispatch"
)

// Key authorizes requests to GitHub: a token, or a GitHub App's key. It does not leave this package.
type Key struct {
	Token string
	App   *App
}

// App is a GitHub App that is installed at the queue's owner.
type App struct {
	ID           int64
	Key          *rsa.PrivateKey
	Installation int64 // 0: that of the queue's owner, which GitHub is asked for
}

// String and LogValue hide the key.
func (Key) String() string       { return "[redacted]" }
func (Key) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// ParseAppKey reads an App's private key in the format that GitHub provides: RSA in PEM.
func ParseAppKey(data []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("is not in PEM format: give the file that GitHub has generated, which begins with -----BEGIN RSA PRIVATE KEY-----")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if key, is := parsed.(*rsa.PrivateKey); err == nil && is {
		return key, nil
	}
	return nil, fmt.Errorf("has no RSA private key but a %q: give the file that GitHub has generated for the App", block.Type)
}

// appTime is the lifetime of the App's own tokens. GitHub accepts at most 10 minutes.
const appTime = 9 * time.Minute

// itself returns the App's own token: "Generating a JSON Web Token (JWT) for a GitHub App".
func (p *App) itself() (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: p.Key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	now := time.Now()
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: strconv.FormatInt(p.ID, 10), IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), Expiry: jwt.NewNumericDate(now.Add(appTime)),
	}).Serialize()
}

// auth returns the Authorization header. fresh forces a new token, after the previous one was refused.
func (q *Queue) auth(ctx context.Context, fresh bool) (string, error) {
	if q.Key.App == nil {
		return "Bearer " + q.Key.Token, nil
	}
	q.keyed.Lock()
	defer q.keyed.Unlock()
	if !fresh && time.Until(q.expires) > 5*time.Minute {
		return q.bearer, nil
	}
	own, err := q.Key.App.itself()
	if err != nil {
		return "", fmt.Errorf("sign with the App's key: %w", err)
	}
	id := q.Key.App.Installation
	if id == 0 {
		var found struct {
			ID int64 `json:"id"`
		}
		if _, _, err := q.api.do(ctx, request{method: http.MethodGet, path: q.scopes()[0] + "/installation", auth: "Bearer " + own}, &found); err != nil {
			return "", fmt.Errorf("look for the installation of App %d at %s (is it installed there?): %w", q.Key.App.ID, q.scopes()[0], err)
		}
		id = found.ID
	}
	var got struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	path := fmt.Sprintf("/app/installations/%d/access_tokens", id)
	if _, _, err := q.api.do(ctx, request{method: http.MethodPost, path: path, auth: "Bearer " + own}, &got); err != nil {
		return "", fmt.Errorf("ask for a token of App %d, installation %d: %w", q.Key.App.ID, id, err)
	}
	if got.Token == "" {
		return "", fmt.Errorf("installation %d of App %d: GitHub gave no token", id, q.Key.App.ID)
	}
	q.bearer, q.expires = "Bearer "+got.Token, got.Expires
	return q.bearer, nil
}

// call makes a request with the queue's key. If an App's token is refused, for instance because it was
// revoked, call retries once with a new one.
func (q *Queue) call(ctx context.Context, r request, answer any) (etag string, changed bool, err error) {
	for _, fresh := range []bool{false, true} {
		if r.auth, err = q.auth(ctx, fresh); err != nil {
			return "", false, err
		}
		etag, changed, err = q.api.do(ctx, r, answer)
		if dispatch.Code(err) != http.StatusUnauthorized || q.Key.App == nil {
			break
		}
	}
	return etag, changed, err
}

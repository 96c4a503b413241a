package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"linus/internal/config"
	"linus/internal/oauth"
	"linus/internal/token"
	"linus/internal/web"
)

// newLogin returns the login by OIDC_ISSUER.
func newLogin(ctx context.Context, c config.Config, log *slog.Logger) (*oauth.Login, error) {
	roots, err := readRoots(ctx, "OIDC_CA_FILE", c.OIDCCAFile)
	if err != nil {
		return nil, err
	}
	return oauth.NewLogin(oauth.LoginOptions{
		Issuer: c.OIDCIssuer, ClientID: c.OIDCClientID, ClientSecret: c.OIDCClientSecret.Reveal(), Redirect: c.HTTPURL + web.ReturnPath,
		Scopes: c.LoginScopes(), GroupsClaim: c.OIDCGroupsClaim, Roles: c.LoginRoles(), Roots: roots, Log: log,
	}), nil
}

// issuer makes a token for each login, which is that of the page's session: revoking it logs the
// person out.
type issuer struct {
	login  *oauth.Login
	tokens *token.Keeper
	config config.Config
}

// Host implements web.Issuer, as do the other methods.
func (i issuer) Host() string {
	u, err := url.Parse(i.config.OIDCIssuer)
	if err != nil {
		return i.config.OIDCIssuer
	}
	return u.Host
}

func (i issuer) LogoutURL() string { return i.login.LogoutURL() }

func (i issuer) Begin(ctx context.Context, state, nonce, verifier string) (string, error) {
	return i.login.URL(ctx, state, nonce, verifier)
}

func (i issuer) Finish(ctx context.Context, back url.Values, nonce, verifier string) (string, error) {
	person, err := i.login.Finish(ctx, back, nonce, verifier)
	if err != nil {
		if person.Name == "" {
			return "", err
		}
		return "", errors.Join(err, i.tokens.EndLogins(ctx, person.Name)) // the issuer no longer lets the person in
	}
	t, err := i.tokens.Login(ctx, person.Name, person.Called, person.Role, time.Duration(i.config.OIDCSessionHours)*time.Hour)
	return t.ID, err
}

func (i issuer) End(ctx context.Context, token string) error {
	_, err := i.tokens.RevokeToken(ctx, token)
	return err
}

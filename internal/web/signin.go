package web

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
)

// Issuer lets people log in with OpenID Connect, at another server.
type Issuer interface {
	// Host returns the issuer's name for people.
	Host() string
	// Begin returns where to send a browser. The issuer sends it back to ReturnPath, with state.
	Begin(ctx context.Context, state, nonce, verifier string) (string, error)
	// Finish returns the ID of a token, as in Options.Holder, for the user who has logged in, from
	// what the browser has brought back. A *job.RefusedError is for people to read; any other error
	// means that the login cannot be checked.
	Finish(ctx context.Context, back url.Values, nonce, verifier string) (token string, err error)
	// LogoutURL returns where users log out at the issuer, or "" if that is not known.
	LogoutURL() string
	// End ends the token.
	End(ctx context.Context, token string) error
}

// ReturnPath is where issuers send browsers back to.
const ReturnPath = "/login/issuer"

const (
	beginPath  = "/login/begin"
	signInTime = 10 * time.Minute // to log in at the issuer
	signIns    = 32               // logins that wait for the issuer at a time
)

// signIn is a login at an issuer that a browser has begun. It is the text of the browser's cookie
// without the MAC: an expiry, a random part and where to go afterwards. Whatever proves that the
// same browser returns is derived from this text with the server's key, so the server stores
// nothing.
type signIn string

func (p *pages) state(s signIn) string    { return p.sessions.mac("login state", string(s)) }
func (p *pages) nonce(s signIn) string    { return p.sessions.mac("login nonce", string(s)) }
func (p *pages) verifier(s signIn) string { return p.sessions.mac("login verifier", string(s)) }

func (s signIn) next() string {
	path, _ := base64.RawURLEncoding.DecodeString(string(s[strings.LastIndexByte(string(s), '.')+1:]))
	return ownPath(string(path))
}

// signInCookie returns the cookie of a login at an issuer. It is not strict, because the way back
// begins at another site.
func (p *pages) signInCookie(r *http.Request, value string, age time.Duration) *http.Cookie {
	c := p.sessions.cookie(r, value, age)
	c.Name, c.SameSite = secureName(c.Secure, p.sessions.name+"-login"), http.SameSiteLaxMode
	return c
}

// begunWith returns the login that the request's browser has begun with a state, if there is one.
func (p *pages) begunWith(r *http.Request, state string) (signIn, bool) {
	for _, c := range r.CookiesNamed(p.signInCookie(r, "", 0).Name) {
		text, ok := p.sessions.signed("login", c.Value)
		expiry, err := expiryOf(text)
		if ok && err == nil && time.Now().Unix() < expiry && subtle.ConstantTimeCompare([]byte(p.state(signIn(text))), []byte(state)) == 1 {
			return signIn(text), true
		}
	}
	return "", false
}

// beginSignIn sends a browser to the issuer. A request from another site gets the login page
// instead.
func (p *pages) beginSignIn(w http.ResponseWriter, r *http.Request) {
	next := ownPath(r.URL.Query().Get("next"))
	if len(next) > 1000 {
		next = ownPath("")
	}
	if fromElsewhere(r) {
		p.render(w, r, http.StatusOK, "login", p.loginView(next))
		return
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	s := signIn(strconv.FormatInt(time.Now().Add(signInTime).Unix(), 10) + "." + hex.EncodeToString(random) + "." + base64.RawURLEncoding.EncodeToString([]byte(next)))
	at, err := p.Issuer.Begin(r.Context(), p.state(s), p.nonce(s), p.verifier(s))
	if err != nil {
		p.notSignedIn(w, r, next, err)
		return
	}
	http.SetCookie(w, p.signInCookie(r, p.sessions.sign("login", string(s)), signInTime))
	http.Redirect(w, r, at, http.StatusSeeOther) //nolint:gosec // the issuer's, by its metadata
}

// endSignIn starts a session for a browser that comes back from the issuer.
func (p *pages) endSignIn(w http.ResponseWriter, r *http.Request) {
	back := r.URL.Query()
	s, ok := p.begunWith(r, back.Get("state"))
	if !ok {
		v := p.loginView(ownPath(""))
		v.Problem = "This login was not begun in this browser, or is more than 10 minutes old, or another one was begun since. Log in again."
		p.render(w, r, http.StatusBadRequest, "login", v)
		return
	}
	http.SetCookie(w, p.signInCookie(r, "", -time.Second))
	leave, ok := p.asking.Enter(":login", signIns) // no principal has that name
	if !ok {
		p.notSignedIn(w, r, s.next(), fmt.Errorf("%d logins wait for it", signIns))
		return
	}
	defer leave()
	token, err := p.Issuer.Finish(r.Context(), back, p.nonce(s), p.verifier(s))
	if err != nil {
		p.notSignedIn(w, r, s.next(), err)
		return
	}
	http.SetCookie(w, p.sessions.begin(r, token))
	// As in login: from a page of this server, the browser sends the strict cookie.
	w.Header().Set("Refresh", "0; url="+s.next())
	p.render(w, r, http.StatusOK, "welcome", s.next())
}

// notSignedIn shows the login page with the reason for the failure.
func (p *pages) notSignedIn(w http.ResponseWriter, r *http.Request, next string, err error) {
	p.Log.Warn("a login by the issuer has failed", "err", err)
	v, code := p.loginView(next), http.StatusBadGateway
	v.Problem = fmt.Sprintf("%s cannot be asked at the moment: try again. The server's log says why.", p.Issuer.Host())
	var refused *job.RefusedError
	if errors.As(err, &refused) {
		v.Problem, code = "You are not logged in: "+refused.Why+".", http.StatusForbidden
	}
	p.render(w, r, code, "login", v)
}

// loginView returns the login page that leads to next.
func (p *pages) loginView(next string) loginView {
	v := loginView{Next: next}
	if p.Issuer != nil {
		v.Issuer, v.Begin = p.Issuer.Host(), beginPath+"?next="+url.QueryEscape(next)
		if p.URL != nil { // where the issuer sends browsers back to, so the cookie must be set there
			v.Begin = p.URL() + v.Begin
		}
	}
	return v
}

package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
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

	"linus/internal/gate"
	"linus/internal/job"
)

// sessionTime is how long a browser stays logged in.
const sessionTime = 7 * 24 * time.Hour

// maxForm is the maximum size of a form in bytes. It suffices for an input of 1 MiB,
// percent-encoded.
const maxForm = 4 << 20

// LoginPath returns the path that logs a browser in with the token: the link to print.
func LoginPath(token string) string { return "/login?token=" + url.QueryEscape(token) }

// sessions makes and checks the cookies that prove a login: an expiry, a random part and a MAC of
// both, under a key derived from the token and from what distinguishes this server from others.
// Sessions survive a restart of the server. They become invalid with the token, or when they are
// ended.
type sessions struct {
	token [sha256.Size]byte // hash of the operator's token
	key   []byte
	name  string // of the cookie; unique, since servers on other ports of this machine read and set its cookies, too
	ended *logouts

	secure func(*http.Request) bool // whether the request came by TLS
}

func newSessions(o Options, ended *logouts) sessions {
	mac := hmac.New(sha256.New, []byte(o.Token))
	mac.Write([]byte("linus web session\n" + o.Scope))
	key := mac.Sum(nil)
	name := sha256.Sum256(key)
	return sessions{token: sha256.Sum256([]byte(o.Token)), key: key, name: "linus-" + hex.EncodeToString(name[:8]), ended: ended, secure: o.secure}
}

// isToken reports whether token is the operator's. It compares hashes, so that its timing does not
// reveal the length either.
func (s sessions) isToken(token string) bool {
	got := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(s.token[:], got[:]) == 1
}

func (s sessions) mac(what, text string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(what + "\n" + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// begin returns the cookie of a new session for the token with an ID. An empty ID stands for the
// operator's token.
func (s sessions) begin(r *http.Request, token string) *http.Cookie {
	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails
	value := strconv.FormatInt(time.Now().Add(sessionTime).Unix(), 10) + "." + hex.EncodeToString(random)
	if token != "" {
		value += "." + token
	}
	return s.cookie(r, s.sign("session", value), sessionTime)
}

// end ends the request's session, including all copies of its cookie, and returns the cookie that
// replaces it.
func (s sessions) end(r *http.Request) (*http.Cookie, error) {
	var err error
	if session := s.of(r); session != "" {
		value := bare(session)
		expiry, _ := expiryOf(value) // the session is valid, so it has an expiry
		err = s.ended.add(value, expiry)
	}
	return s.cookie(r, "", -time.Second), err
}

func (s sessions) cookie(r *http.Request, value string, age time.Duration) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // plain HTTP on this machine would lose a Secure one
		Name: secureName(s.secure(r), s.name), Value: value, Path: "/", MaxAge: int(age.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.secure(r),
	}
}

// of returns the request's session, or "" if it has no valid one: an expiry, a random part, the ID
// of the token it began with unless that is the operator's, and the MAC. It tries all cookies of
// that name, since pages of other hosts in this domain may have added some.
func (s sessions) of(r *http.Request) string {
	for _, c := range r.CookiesNamed(secureName(s.secure(r), s.name)) {
		if session, ok := s.signed("session", c.Value); ok && s.goesOn(session) {
			return c.Value
		}
	}
	return ""
}

// sign returns a text with its MAC. signed checks the MAC and returns the text without it.
func (s sessions) sign(what, text string) string { return text + "." + s.mac(what, text) }

func (s sessions) signed(what, text string) (string, bool) {
	end := strings.LastIndexByte(text, '.')
	if end < 0 || !hmac.Equal([]byte(text[end+1:]), []byte(s.mac(what, text[:end]))) {
		return "", false
	}
	return text[:end], true
}

// goesOn reports whether a session, without its MAC, has neither expired nor been ended.
func (s sessions) goesOn(session string) bool {
	if parts := strings.Count(session, ".") + 1; parts != 2 && parts != 3 {
		return false // the token's ID contains a dot
	}
	expiry, err := expiryOf(session)
	return err == nil && time.Now().Unix() < expiry && !s.ended.has(session, expiry)
}

// bare removes the MAC from a session, as returned by sessions.of.
func bare(session string) string { return session[:max(0, strings.LastIndexByte(session, '.'))] }

// secureName returns the name of a cookie. Over TLS, no other host can set a cookie of that name.
func secureName(secure bool, name string) string {
	if secure {
		return "__Host-" + name
	}
	return name
}

// tokenOf returns the ID of the token that a session, without its MAC, began with, or "" for the
// operator's token.
func tokenOf(session string) string {
	if parts := strings.Split(session, "."); len(parts) == 3 {
		return parts[2]
	}
	return ""
}

// formToken returns the token in the forms of a session, which no other site can know.
func (s sessions) formToken(session string) string { return s.mac("form", session) }

// loggedIn passes requests with a session to next. Other requests get the login page.
func (p *pages) loggedIn(next http.HandlerFunc) http.Handler {
	return p.secured(func(w http.ResponseWriter, r *http.Request) {
		who, err := p.principal(r)
		switch {
		case errors.Is(err, job.ErrUnauthorized):
			p.render(w, r, http.StatusUnauthorized, "login", p.loginView(r.URL.RequestURI()))
		case err != nil:
			p.failed(w, r, err)
		default:
			p.serveFor(who, next, w, r)
		}
	})
}

// serveFor lets next serve a request of a principal, unless too many of the principal's requests
// are being served. Meanwhile the gate does not close the connection in favour of others.
func (p *pages) serveFor(who job.Principal, next http.Handler, w http.ResponseWriter, r *http.Request) {
	leave, ok := p.asking.Enter(who.Name, p.bounds.each)
	if !ok {
		w.Header().Set("Retry-After", "5")
		refuse(w, r, http.StatusTooManyRequests, fmt.Sprintf("Too many requests: %d of %s are being served, streams and terminals included; try again when some have ended", p.bounds.each, who.Name))
		return
	}
	defer leave()
	gate.Serves(r.Context())
	ctx, end := job.ForPrincipal(r.Context(), who)
	defer end()
	if body, ok := r.Body.(*pacedBody); ok {
		defer context.AfterFunc(ctx, body.cut)() // when the principal loses its permission
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// principal returns the principal of the request's session. It returns job.ErrUnauthorized if there
// is no session, or if its token is no longer valid.
func (p *pages) principal(r *http.Request) (job.Principal, error) {
	return p.holder(r.Context(), bare(p.sessions.of(r)))
}

// holder returns the principal of a session, given without its MAC. An empty session is nobody's.
func (p *pages) holder(ctx context.Context, session string) (job.Principal, error) {
	token := tokenOf(session)
	switch {
	case session == "" || token != "" && p.Holder == nil:
		return job.Principal{}, job.ErrUnauthorized
	case token == "":
		return job.Operator(), nil
	}
	return p.Holder(ctx, token)
}

// changing passes forms of this server's own pages to next.
func (p *pages) changing(next http.HandlerFunc) http.Handler {
	return p.loggedIn(p.sent(maxForm, func(r *http.Request) ([]upload, error) { return nil, r.ParseForm() }, func(w http.ResponseWriter, r *http.Request, _ []upload) {
		next(w, r)
	}))
}

// sent reads forms of at most so many bytes and passes this server's own to next: those sent by one
// of its pages (sameSite has compared the Origin, so its presence suffices) with the session's form
// token.
func (p *pages) sent(most int64, read func(*http.Request) ([]upload, error), next func(http.ResponseWriter, *http.Request, []upload)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") == "" {
			p.notOurs(w, r)
			return
		}
		leave, err := p.Bodies.Take(r.Context(), min(r.ContentLength, most))
		if err != nil {
			return
		}
		defer leave()
		giveTime(w, r, uploadTime)
		r.Body = http.MaxBytesReader(w, r.Body, most)
		files, err := read(r)
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			p.problem(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("The form is larger than %s. Fetch large inputs from inside the job.", bytesText(most)))
		case err != nil:
			p.problem(w, r, http.StatusBadRequest, "The form cannot be read: "+err.Error())
		case !p.isOurs(r):
			p.notOurs(w, r)
		default:
			next(w, r, files)
		}
	}
}

// isOurs reports whether a parsed form has its session's form token.
func (p *pages) isOurs(r *http.Request) bool {
	want := p.sessions.formToken(p.sessions.of(r))
	return hmac.Equal([]byte(r.PostForm.Get("form_token")), []byte(want))
}

func (p *pages) notOurs(w http.ResponseWriter, r *http.Request) {
	p.problem(w, r, http.StatusForbidden, "This form does not belong to this session. Go back, reload the page and try again.")
}

// policy returns the Content-Security-Policy of a page, with the given directive for styles.
func policy(styles string) string {
	return "default-src 'none'; script-src 'self'; " + styles + "; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}

// secured sets headers that restrict what a page may do.
func (p *pages) secured(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy("style-src 'self'"))
		h.Set("X-Frame-Options", "DENY")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // no-referrer would remove the Origin from the forms
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next(w, r)
	})
}

type loginView struct {
	Next    string // where to go after the login
	Problem string // why somebody is not logged in
	Issuer  string // where users can log in, too; empty: nowhere
	Begin   string // address that leads to the issuer
	Leave   string // address at which users log out at the issuer; empty: they did not log in there
}

func (loginView) title() string { return "Log in" }

// login starts a session for a client with a token: by the form of the login page or, for the
// operator's token only, by the printed link.
func (p *pages) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		p.problem(w, r, http.StatusBadRequest, "The form cannot be read: "+err.Error())
		return
	}
	next, token := ownPath(r.Form.Get("next")), strings.TrimSpace(r.Form.Get("token"))
	who, err := job.Operator(), error(nil)
	switch {
	case p.sessions.isToken(token):
	case r.Method == http.MethodPost && token != "" && p.Authenticate != nil:
		if who, err = p.Authenticate(r.Context(), token); err == nil && (who.OAuth || who.Token == "") {
			err = job.ErrUnauthorized // its validity could not be checked later
		}
	default:
		err = job.ErrUnauthorized
	}
	_, loggedOut := p.principal(r)
	switch {
	case token == "" && loggedOut == nil:
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // ownPath
	case errors.Is(err, job.ErrUnauthorized):
		v := p.loginView(next)
		if p.Issuer != nil && r.Form.Has("left") {
			v.Leave = p.Issuer.LogoutURL()
		}
		if token != "" {
			v.Problem = "That is not a token of this server."
		}
		p.render(w, r, http.StatusUnauthorized, "login", v)
	case err != nil:
		p.failed(w, r, err)
	default:
		http.SetCookie(w, p.sessions.begin(r, who.Token))
		if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
			// After a link on another page (a terminal in the browser), a redirect would not send
			// the strict cookie; a page of this server does.
			w.Header().Set("Refresh", "0; url="+next)
			p.render(w, r, http.StatusOK, "welcome", next)
			return
		}
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // ownPath
	}
}

// ownPath returns text if it is a path of this server, or else the path of the first page.
func ownPath(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") ||
		strings.ContainsAny(text, "\\\r\n") || u.Path == "/login" || strings.HasPrefix(u.Path, "/login/") || u.Path == "/logout" {
		return "/jobs"
	}
	return u.RequestURI()
}

func (p *pages) logout(w http.ResponseWriter, r *http.Request) {
	to := "/login"
	if who := p.viewer(r).Who; who.Login != "" && p.Issuer != nil {
		to += "?left"
		if err := p.Issuer.End(r.Context(), who.Token); err != nil {
			p.Log.Error("the token of a login could not be removed and stays until it expires; its session has ended", "token", who.Token, "err", err)
		}
	}
	cookie, err := p.sessions.end(r)
	if err != nil {
		p.Log.Error("the end of a session could not be saved; only this process knows it", "err", err)
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
	"linus/internal/vmpage"
)

// Exposed ports of VMs. Their pages are hostile: the origin of each differs from this server's and
// from those of other ports, and none of this server's cookies or tokens reaches a VM.
//
// With Options.PortDomain each port has its own host name and its own cookie there. To get the
// cookie, a browser goes to this server, where its session is, and returns with a single-use code
// for that port and that browser. Without PortDomain, ports are at paths of this server and their
// pages are sandboxed: they have no origin at all, and so no cookies. What such a page loads is
// requested without the session, so a grant in the path stands for it.
const (
	portsPrefix = "/ports/"
	portLogin   = "/.linus/login"
	stateTime   = 10 * time.Minute // for somebody to log in
)

// Names of the cookies of a port's host.
const (
	grantCookie = vmpage.OwnCookies + "port"
	stateCookie = vmpage.OwnCookies + "state"
)

// ports is the state that requests to all ports share.
type ports struct {
	transport *http.Transport

	mu   sync.Mutex
	used map[string]int64 // when each redeemed code expires, by its random part
}

func newPorts(e job.Engine) *ports {
	return &ports{transport: portTransport(e), used: map[string]int64{}}
}

// PortURL returns the URL of the exposed port with an ID, on the server at base whose PortDomain is
// domain. It returns "" if base is empty or no URL.
func PortURL(base, domain, id string) string {
	u, err := url.Parse(base)
	switch {
	case base == "" || err != nil:
		return ""
	case domain == "":
		return base + portsPrefix + id + "/"
	}
	port := u.Port()
	if u.Host = id + "." + domain; port != "" {
		u.Host += ":" + port
	}
	return u.String() + "/"
}

// portRequest is a port and how a browser addresses it.
type portRequest struct {
	id     string // of the port
	prefix string // of its paths; empty: it has a host name of its own
	origin string // of its page, as the browser sends it; "null": it has none
	secure bool   // the browser uses TLS
}

// exposed serves the hosts of ports, and the paths of sandboxed ports. Other requests go to next,
// which has its own rules about where a request may come from.
func (a *api) exposed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, ok := a.portHost(r.Host); ok {
			secure := r.TLS != nil || strings.HasPrefix(a.base(r), "https://")
			a.hosted(w, r, portRequest{id: id, origin: schemeOf(secure) + "://" + strings.ToLower(r.Host), secure: secure})
			return
		}
		if id, grant, ok := grantOf(r.URL.EscapedPath()); ok && a.PortDomain == "" && a.isHost(r.Host) {
			a.sandboxed(w, r, portRequest{id: id, prefix: portsPrefix + id + "/~" + grant, origin: "null"}, grant)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func schemeOf(secure bool) string {
	if secure {
		return "https"
	}
	return "http"
}

// portHost returns the ID of the port that a host name belongs to.
func (a *api) portHost(host string) (id string, ok bool) {
	if a.PortDomain == "" {
		return "", false
	}
	host, _, _ = strings.Cut(host, ":") // a name, so no IPv6 address
	id, ok = strings.CutSuffix(strings.ToLower(host), "."+a.PortDomain)
	return id, ok && id != "" && !strings.Contains(id, ".")
}

// grantOf splits the path of a sandboxed port: /ports/ID/~GRANT and what follows.
func grantOf(path string) (id, grant string, ok bool) {
	rest, ok := strings.CutPrefix(path, portsPrefix)
	id, rest, found := strings.Cut(rest, "/")
	grant, _, _ = strings.Cut(strings.TrimPrefix(rest, "~"), "/")
	return id, grant, ok && found && strings.HasPrefix(rest, "~")
}

// base returns this server's URL as browsers reach it.
func (a *api) base(r *http.Request) string {
	if a.URL != nil {
		if base := a.URL(); base != "" {
			return base
		}
	}
	return schemeOf(r.TLS != nil) + "://" + r.Host
}

// port leads logged-in browsers to a port. If the port has no host name of its own, it also serves
// the port to programs, which send a token.
func (a *api) port(w http.ResponseWriter, r *http.Request) {
	id := mux.Vars(r)["port"]
	if r.Header.Get("Authorization") != "" && a.PortDomain == "" {
		a.authorized(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, _ := job.PrincipalFrom(r.Context())
			a.reach(w, r, portRequest{id: id, prefix: portsPrefix + id, origin: "null"}, who, nil)
		})).ServeHTTP(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, r, http.StatusMethodNotAllowed, "Method not allowed: open the port's page first, or send Authorization: Bearer")
		return
	}
	if !isBrowser(r) { // this also stops pages of other ports on this host, if the browser sends no Sec-Fetch-Site
		refuse(w, r, http.StatusUnauthorized, "Unauthorized: open this in a browser, or send Authorization: Bearer and a token of linus")
		return
	}
	if _, err := a.pages.principal(r); errors.Is(err, job.ErrUnauthorized) && fromElsewhere(r) {
		a.pages.goOn(w, r, ownPath(r.URL.RequestURI())) // only links on our own pages send a strict cookie
		return
	}
	a.pages.loggedIn(func(w http.ResponseWriter, r *http.Request) {
		who, _ := job.PrincipalFrom(r.Context())
		switch _, err := a.portOf(r.Context(), who, id); {
		case err == nil:
		case isUnknown(err) && !errors.Is(err, job.ErrNotAllowed):
			a.pages.problem(w, r, http.StatusNotFound, noPort)
			return
		default:
			a.pages.failed(w, r, err)
			return
		}
		session := bare(a.pages.sessions.of(r))
		if a.PortDomain == "" {
			rest := strings.TrimPrefix(r.URL.EscapedPath(), portsPrefix+id)
			to := portsPrefix + id + "/~" + a.pages.sessions.grant(id, session)
			http.Redirect(w, r, to+below(rest, r.URL), http.StatusSeeOther) //nolint:gosec // of this server
			return
		}
		to := strings.TrimSuffix(PortURL(a.base(r), a.PortDomain, id), "/")
		if state := r.URL.Query().Get("state"); isState(state) {
			to += portLogin + "?" + url.Values{"code": {a.pages.sessions.code(id, state, session)}, "to": {r.URL.Query().Get("to")}}.Encode()
		}
		a.pages.goOn(w, r, to) // not a redirect: the form-action policy stops forms at other hosts
	}).ServeHTTP(w, r)
}

// below returns a path that stays on this host, with the query of a URL.
func below(path string, of *url.URL) string {
	path = "/" + strings.TrimLeft(path, "/\\")
	if of.RawQuery == "" {
		return path
	}
	return path + "?" + of.RawQuery
}

// goOn sends a page that leads to another address at once.
func (p *pages) goOn(w http.ResponseWriter, r *http.Request, to string) {
	p.secured(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Refresh", "0; url="+to)
		p.render(w, r, http.StatusOK, "welcome", to)
	}).ServeHTTP(w, r)
}

// portOf returns an exposed port if the principal may reach it.
func (a *api) portOf(ctx context.Context, who job.Principal, id string) (job.ExposedPort, error) {
	if err := who.Refusal(job.VerbDialVM); err != nil {
		return job.ExposedPort{}, err
	}
	all, err := a.Engine.ListPorts(job.WithPrincipal(ctx, who), job.PortRef+id)
	at := slices.IndexFunc(all, func(p job.ExposedPort) bool { return p.ID == id })
	if err == nil && at < 0 {
		err = job.ErrNotFound
	}
	if err != nil {
		return job.ExposedPort{}, err
	}
	return all[at], nil
}

func (a *api) hosted(w http.ResponseWriter, r *http.Request, v portRequest) {
	if r.URL.Path == portLogin {
		a.enter(w, r, v)
		return
	}
	if !v.mayAsk(r) {
		v.fail(w, http.StatusForbidden, "A page of another site cannot load this")
		return
	}
	for _, c := range r.CookiesNamed(secureName(v.secure, grantCookie)) {
		who, still, err := a.granted(r.Context(), v.id, c.Value)
		switch {
		case errors.Is(err, job.ErrUnauthorized):
			continue
		case err != nil:
			a.portFailed(w, r, v, err)
		case !v.provesOrigin(r):
			v.fail(w, http.StatusForbidden, "A page of another site cannot load this, nor can one that hides its referrer, without HTTPS")
		default:
			a.reach(w, r, v, who, still)
		}
		return
	}
	if bearer := bearerOf(r); bearer != "" {
		who, err := a.authenticate(r.Context(), bearer)
		if err != nil {
			a.portFailed(w, r, v, err)
			return
		}
		a.reach(w, r, v, who, nil)
		return
	}
	if !isLink(r) || !isBrowser(r) {
		v.fail(w, http.StatusUnauthorized, "Not logged in: open "+v.origin+"/ in a browser, or send Authorization: Bearer and a token of linus")
		return
	}
	state := ""
	if c, err := r.Cookie(secureName(v.secure, stateCookie)); err == nil && isState(c.Value) {
		state = c.Value // of another tab
	} else {
		random := make([]byte, 16)
		_, _ = rand.Read(random) // never fails
		state = hex.EncodeToString(random)
	}
	v.setCookie(w, stateCookie, state, stateTime)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, a.base(r)+portsPrefix+v.id+"?"+url.Values{"state": {state}, "to": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
}

// enter gives a grant to a browser that comes back with a code.
func (a *api) enter(w http.ResponseWriter, r *http.Request, v portRequest) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	to, err := url.Parse(r.URL.Query().Get("to"))
	if err != nil || !strings.HasPrefix(to.Path, "/") || to.Path == portLogin {
		to = &url.URL{Path: "/"}
	}
	for _, c := range r.CookiesNamed(secureName(v.secure, stateCookie)) {
		if session, ok := a.ports.redeem(a.pages.sessions, v.id, c.Value, r.URL.Query().Get("code")); ok && r.Method == http.MethodGet {
			v.setCookie(w, grantCookie, a.pages.sessions.grant(v.id, session), grantTime)
			w.Header().Set("Location", below(to.EscapedPath(), to))
			w.WriteHeader(http.StatusSeeOther)
			return
		}
	}
	v.fail(w, http.StatusForbidden, "This login link is not valid, or was used already: open "+v.origin+"/")
}

func (v portRequest) setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // plain HTTP on this machine would lose a Secure one
		Name: secureName(v.secure, name), Value: value, Path: "/", MaxAge: int(age.Seconds()), HttpOnly: true,
		SameSite: http.SameSiteLaxMode, Secure: v.secure, // so that links from elsewhere work
	})
}

// mayAsk reports whether a request comes from the port's own page or follows a link to it. Pages of
// other ports belong to the same site, so their requests carry the grant, too.
func (v portRequest) mayAsk(r *http.Request) bool {
	origin := strings.ToLower(r.Header.Get("Origin"))
	own := origin == "" || origin == v.origin || origin == "null" && r.Header.Get("Sec-Fetch-Site") == "same-origin"
	return own && (!fromElsewhere(r) || isLink(r))
}

// provesOrigin reports whether the browser says that the port's own page loads something, or that
// it shows a page. Sec-Fetch-Site exists only with TLS; without it, the Referer has to say so.
func (v portRequest) provesOrigin(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Site")+r.Header.Get("Origin") != "" || isBrowser(r) || strings.HasPrefix(r.Header.Get("Referer"), v.origin+"/")
}

// sandboxed serves the paths of a port whose page has no origin. Pages of this server's own origin
// may load nothing there, because their policy allows scripts of this host.
func (a *api) sandboxed(w http.ResponseWriter, r *http.Request, v portRequest, grant string) {
	ours := r.Header.Get("Sec-Fetch-Site") == "same-origin" && !isLink(r)
	if origin := r.Header.Get("Origin"); ours || origin != "" && origin != "null" || r.Header.Get("Service-Worker") != "" {
		v.fail(w, http.StatusForbidden, "A page of another site cannot load this")
		return
	}
	who, still, err := a.granted(r.Context(), v.id, grant)
	switch {
	case errors.Is(err, job.ErrUnauthorized) && isLink(r) && isBrowser(r):
		rest := strings.TrimPrefix(r.URL.EscapedPath(), v.prefix)
		http.Redirect(w, r, portsPrefix+v.id+below(rest, r.URL), http.StatusSeeOther) //nolint:gosec // of this server
	case err != nil:
		a.portFailed(w, r, v, err)
	case r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "":
		v.allow(w.Header())
		w.Header().Set("Access-Control-Allow-Methods", r.Header.Get("Access-Control-Request-Method"))
		w.Header().Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
		w.WriteHeader(http.StatusNoContent)
	case r.URL.EscapedPath() == v.prefix: // relative links of the page need the slash at the end
		http.Redirect(w, r, v.prefix+below("", r.URL), http.StatusSeeOther) //nolint:gosec // of this server
	default:
		a.reach(w, r, v, who, still)
	}
}

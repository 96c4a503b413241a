package web

import (
	"net/http"
	"slices"
	"strings"
)

// What a page of another origin may send to /mcp, and which response headers it may read: those of
// both versions of the protocol. Cookies are not included; the page sends the token, as any program
// does.
const (
	corsMethods = "GET, POST, DELETE"
	corsHeaders = "Authorization, Content-Type, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
	corsExposed = "Mcp-Session-Id, WWW-Authenticate"
	corsMaxAge  = "600" // seconds for which a browser may cache this
)

// mayCall reports whether a page of the request's origin may make this request.
func (a *api) mayCall(r *http.Request) bool {
	return (strings.TrimSuffix(r.URL.Path, "/") == mcpPath || a.OAuth != nil && slices.Contains(metadataPaths, r.URL.Path)) && slices.Contains(a.Origins, r.Header.Get("Origin"))
}

// cors tells browsers that pages of Options.Origins may call next. A browser sends a preflight
// request before the token, so preflights are answered without one.
func (a *api) cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if len(a.Origins) > 0 {
			h.Add("Vary", "Origin")
		}
		if !a.mayCall(r) {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", corsMethods)
			h.Set("Access-Control-Allow-Headers", corsHeaders)
			h.Set("Access-Control-Max-Age", corsMaxAge)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.Set("Access-Control-Expose-Headers", corsExposed)
		next.ServeHTTP(w, r)
	})
}

package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"linus/internal/job"
)

// OAuth describes the authorization server whose tokens this server accepts. This server never
// issues tokens itself.
type OAuth struct {
	Issuer   string // URL of the authorization server
	Resource string // URL of this server as clients reach it, without a path or with that of MCP: the tokens' audience
}

// metadataPaths are where RFC 9728 puts resource metadata: for this server, and for its /mcp.
var metadataPaths = []string{metadataPath, metadataPath + mcpPath}

const metadataPath = "/.well-known/oauth-protected-resource"

// metadataURL returns the address of the metadata of Resource, or "" if Resource is not a URL.
func (o *OAuth) metadataURL() string {
	u, err := url.Parse(o.Resource)
	if err != nil {
		return ""
	}
	u.Path = metadataPath + u.Path
	return u.String()
}

// metadata serves the protected resource metadata of RFC 9728.
func (a *api) metadata(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, "Method not allowed")
		return
	}
	scopes := make([]string, len(job.Roles))
	for i, role := range job.Roles {
		scopes[i] = role.Scope()
	}
	w.Header().Set("Cache-Control", "max-age=300")
	respond(w, http.StatusOK, map[string]any{
		"resource": a.OAuth.Resource, "authorization_servers": []string{a.OAuth.Issuer},
		"scopes_supported": scopes, "bearer_methods_supported": []string{"header"}, "resource_name": "linus",
	})
}

// Insufficient returns the WWW-Authenticate header for a request that needs a greater role than its
// token's scopes give.
func (o *OAuth) Insufficient(need job.Role) string {
	return o.challenge(need, "insufficient_scope", "")
}

// challenge returns a WWW-Authenticate header that says which scope to ask for, and where. problem
// is an error of RFC 6750, or empty. A nil OAuth yields only the realm.
func (o *OAuth) challenge(need job.Role, problem, reason string) string {
	if o == nil {
		return `Bearer realm="linus"`
	}
	text := `Bearer realm="linus", resource_metadata="` + o.metadataURL() + `", scope="` + need.Scope() + `"`
	if problem != "" {
		text += `, error="` + problem + `"`
	}
	if reason != "" {
		text += `, error_description="` + reason + `"`
	}
	return text
}

// reason returns why a token was refused, or "" if err is not a RefusedError.
func reason(err error) string {
	var refused *job.RefusedError
	if !errors.As(err, &refused) {
		return ""
	}
	return strings.ReplaceAll(refused.Why, `"`, "'")
}

package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"linus/internal/job"
)

// OAuth is what clients are told of the authorization server whose tokens this server
// takes. It is never one itself.
type OAuth struct {
	Issuer   string // URL of the authorization server
	Resource string // URL of this server as clients reach it, without a path or with that of MCP: the tokens' audience
}

// metadataPaths are where RFC 9728 puts the metadata of a resource: of this server, and
// of its /mcp.
var metadataPaths = []string{metadataPath, metadataPath + mcpPath}

const metadataPath = "/.well-known/oauth-protected-resource"

// metadataURL is where the metadata is, of a resource with that path.
func (o *OAuth) metadataURL() string {
	u, err := url.Parse(o.Resource)
	if err != nil {
		return ""
	}
	u.Path = metadataPath + u.Path
	return u.String()
}

// metadata is the protected resource's, as RFC 9728 describes it.
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

// Insufficient is the WWW-Authenticate header of a request that needs a greater role than
// that of its token's scopes.
func (o *OAuth) Insufficient(need job.Role) string {
	return o.challenge(need, "insufficient_scope", "")
}

// challenge is a WWW-Authenticate header: which scope to ask for, and of whom. problem is
// an error of RFC 6750, or empty. A nil OAuth has neither.
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

// reason is why a token was refused, if the error says so in words of ours.
func reason(err error) string {
	var refused *job.RefusedError
	if !errors.As(err, &refused) {
		return ""
	}
	return strings.ReplaceAll(refused.Why, `"`, "'")
}

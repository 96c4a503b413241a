package web

import (
	"net/http"
	"strings"
	"time"

	"linus/internal/field"
	"linus/internal/job"
)

type tokensView struct {
	viewer

	Tokens []tokenRow
	New    *job.NewToken // the only time that its secret is shown
}

func (tokensView) title() string { return "Tokens" }

type tokenRow struct{ job.Token }

// Expiry returns when the token expires, as text.
func (t tokenRow) Expiry() string {
	switch {
	case t.ExpiresAt.IsZero():
		return "never"
	case t.Expired(time.Now()):
		return "expired"
	}
	return "in " + age(time.Until(t.ExpiresAt))
}

func tokenGroups() []group {
	const runs = `role=^(run|admin)$`
	toRun := []field.Need{{Where: runs}}
	return []group{
		{Title: "Token", fields: []field.Field{
			{Name: "name", Label: "Name", Hint: "whom it is for; tokens with the same name see the same jobs"},
			{Name: "role", Label: "Role", Values: []string{"run", "read", "admin"}, Preset: "run", Required: true, Hint: "read: see its own jobs and VMs; run: also start, control and end them; admin: everything of every owner"},
			{Zero: true, Seconds: true, Name: "ttl", Label: "Valid for", Hint: "as in 12h or 30d; empty: 90 days; 0: until it is revoked"},
		}},
		{Title: "What it may use", Rare: true, fields: []field.Field{
			{Name: "toolsets", Label: "Toolsets", Hint: "some of " + strings.Join(job.TokenToolsets, ", ") + "; empty: all but dispatch, which only dispatchers need"},
			{Name: "secrets", Needs: toRun, Label: "Secrets", Hint: "names its jobs may use, with * and ?; empty: none, for admin all"},
			{Name: "credentials", Needs: toRun, Label: "Credentials", Hint: "names its jobs may use, with * and ?; empty: none, for admin all"},
			{Name: "networks", Needs: toRun, Label: "Networks", Hint: "bridges and VLAN tags, as in vmbr1 20-29; empty: as the settings allow"},
			{Name: "storages", Needs: toRun, Label: "Storages", Hint: "of its volumes, with * and ?; empty: as the settings allow"},
			{Name: "templates", Needs: toRun, Label: "Templates", Hint: "and operating systems, with * and ?; empty: as the settings allow"},
		}},
		{Title: "Limits (0, and for an admin empty: no limit)", Rare: true, When: runs, fields: []field.Field{
			{Name: "jobs", Label: "Unfinished jobs at a time", Hint: "empty: 4 × MAX_JOBS", Nothing: job.NoLimit},
			{Name: "vms", Label: "VMs at a time", Hint: "with those that its jobs wait for; empty: 4 × MAX_JOBS", Nothing: job.NoLimit},
			{Name: "memory_mb", Label: "Memory of its VMs", Hint: "MiB, together; empty: 4 × MAX_JOBS × DEFAULT_MEMORY", Nothing: job.NoLimit},
			{Name: "disk_mb", Label: "Disks of its VMs", Hint: "MiB they may grow to, together; empty: 4 × MAX_JOBS × DEFAULT_DISK", Nothing: job.NoLimit},
			{Name: "stored_mb", Label: "Stored for its jobs", Hint: "MiB of files, output and artifacts, until the jobs are removed; empty: 10240", Nothing: job.NoLimit},
			{Name: "jobs_per_hour", Label: "Jobs an hour", Hint: "empty: no limit", Nothing: job.NoLimit},
		}},
	}
}

// tokenTTL is the default validity of a token, in seconds.
const tokenTTL = 90 * 24 * 3600

func (p *pages) tokens(w http.ResponseWriter, r *http.Request) { p.showTokens(w, r, nil) }

func (p *pages) showTokens(w http.ResponseWriter, r *http.Request, made *job.NewToken) {
	all, err := p.Engine.Tokens(r.Context())
	if err != nil && made == nil {
		p.failed(w, r, err)
		return
	}
	v := tokensView{viewer: p.viewer(r), New: made}
	for _, t := range all {
		v.Tokens = append(v.Tokens, tokenRow{t})
	}
	p.render(w, r, http.StatusOK, "tokens", v)
}

var tokenForm = form{tokenGroups, "New token", "Tokens", "/tokens", "Create the token", false}

func newTokenDraft() job.TokenSpec { return job.TokenSpec{TTL: tokenTTL} }

func (p *pages) newToken(w http.ResponseWriter, r *http.Request) {
	v := tokenForm.view(p, r)
	v.show(newTokenDraft(), nil)
	p.render(w, r, http.StatusOK, "form", v)
}

// createToken responds with the secret itself, so the secret is in no address and is not shown
// again.
func (p *pages) createToken(w http.ResponseWriter, r *http.Request, _ []upload) {
	d := newTokenDraft()
	var made job.NewToken
	err := faulty(typed(&d, tokenGroups(), r.PostForm.Get))
	if err == nil {
		made, err = p.Engine.CreateToken(r.Context(), d)
	}
	if err == nil {
		p.showTokens(w, r, &made)
		return
	}
	v := tokenForm.view(p, r)
	v.show(d, r.PostForm.Get)
	p.refused(w, r, v, err)
}

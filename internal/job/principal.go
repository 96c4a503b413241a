package job

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"time"
)

// Principal is the identity on whose behalf a request is made. Jobs, VMs and idempotency keys belong
// to its Name.
type Principal struct {
	Name  string
	Token string // ID of the token it presented, for the audit log; empty: none
	Login string // display name of a person logged in through an issuer; empty: a token was presented
	Role  Role
	OAuth bool // the token is from an OAuth issuer, and the role from its scopes

	// Restrictions on what the settings allow. All but Toolsets are patterns with * and ?. A network
	// is a bridge's name, or a VLAN tag or range of tags, such as 20-29; a storage is one for
	// volumes. An empty list means no secrets or credentials, unless the principal is an admin, and
	// no restriction of the others.
	Toolsets, Secrets, Credentials, Networks, Storages, Templates []string

	Limits Limits

	// Life ends when the principal may do nothing more: its token was revoked or has expired. Nil:
	// it never ends.
	Life context.Context //nolint:containedctx // one for each token, not for a request

	// Until is when the principal loses its rights; zero if that is unknown.
	Until time.Time
}

// NoLimit says that a new token does not get a limit it would otherwise have.
const NoLimit = -1

// Limits bound what a principal has at the same time, or starts. Zero is no limit, and so is NoLimit.
type Limits struct {
	Jobs     int `json:"jobs,omitempty"`          // unfinished jobs
	VMs      int `json:"vms,omitempty"`           // VMs that exist, including those left alone, or that unfinished jobs will have
	MemoryMB int `json:"memory_mb,omitempty"`     // of those VMs together
	DiskMB   int `json:"disk_mb,omitempty"`       // of those VMs together, fully grown, and of its volumes, checkpoints and saved templates
	StoredMB int `json:"stored_mb,omitempty"`     // stored by the engine for all its jobs: manifests, files, output and artifacts
	PerHour  int `json:"jobs_per_hour,omitempty"` // jobs submitted in the last hour
}

// WithDefaults returns l with zero limits replaced by those of d.
func (l Limits) WithDefaults(d Limits) Limits {
	orDefault(&l.Jobs, d.Jobs)
	orDefault(&l.VMs, d.VMs)
	orDefault(&l.MemoryMB, d.MemoryMB)
	orDefault(&l.DiskMB, d.DiskMB)
	orDefault(&l.StoredMB, d.StoredMB)
	orDefault(&l.PerHour, d.PerHour)
	return l
}

// TokenLimits returns the limits of a new token with role run that sets none, for an engine that
// runs maxJobs jobs at a time.
func (d Defaults) TokenLimits(maxJobs int) Limits {
	n := 4 * maxJobs // waiting jobs count, too
	return Limits{Jobs: n, VMs: n, MemoryMB: n * SizeMB(d.Memory), DiskMB: n * SizeMB(d.Disk), StoredMB: 10 << 10}
}

// Role is what a principal may do. Each role includes the lower ones.
type Role string

// The roles.
const (
	RoleRead  Role = "read"  // see the principal's own jobs and VMs
	RoleRun   Role = "run"   // also start, control and end them
	RoleAdmin Role = "admin" // everything, also for others' jobs and VMs
)

// Roles are all roles, the lowest first.
var Roles = []Role{RoleRead, RoleRun, RoleAdmin}

// Scope returns the OAuth scope that stands for the role.
func (r Role) Scope() string { return "linus:" + string(r) }

// Includes reports whether the role may do what role least may. Unknown roles may do nothing.
func (r Role) Includes(least Role) bool {
	at := slices.Index(Roles, r)
	return at >= 0 && at >= slices.Index(Roles, least) && slices.Contains(Roles, least)
}

// OperatorName is the name of the principal that owns what the engine does for itself.
const OperatorName = "operator"

// Operator is the user that the engine runs as: anyone who can open its socket, start linus mcp, or
// present HTTP_TOKEN.
func Operator() Principal { return Principal{Name: OperatorName, Role: RoleAdmin} }

// Admin reports whether the principal sees and may do everything.
func (p Principal) Admin() bool { return p.Role == RoleAdmin }

// Owner returns the principal's name as stored with what it owns: empty for the operator.
func (p Principal) Owner() string {
	if p.Name == OperatorName {
		return ""
	}
	return p.Name
}

// Sees reports whether the principal may see what belongs to owner, a principal's name; empty: the operator.
func (p Principal) Sees(owner string) bool {
	return p.Admin() || p.Role.Includes(RoleRead) && p.Name == cmp.Or(owner, OperatorName)
}

// Key returns an idempotency key in its stored form: each owner has its own keys.
func (p Principal) Key(key string) string {
	if key == "" || p.Owner() == "" {
		return key
	}
	return p.Owner() + "\x1f" + key // no name contains that character
}

// MayName reports whether the principal's token lets its jobs name a secret.
func (p Principal) MayName(secret string) bool { return p.may(p.Secrets, secret) }

// MayUse is MayName for a credential.
func (p Principal) MayUse(credential string) bool { return p.may(p.Credentials, credential) }

func (p Principal) may(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return p.Admin()
	}
	return Among(patterns, name)
}

// Among reports whether a name matches one of the patterns, in which * and ? are wildcards.
func Among(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return err == nil && ok
	})
}

type principalKey struct{}

// WithPrincipal records in ctx who makes the request.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// ForPrincipal is WithPrincipal for a request. Its context also ends with the principal's life. The
// caller must call end when the request is done.
func ForPrincipal(ctx context.Context, p Principal) (limited context.Context, end func()) {
	ctx = WithPrincipal(ctx, p)
	over := func() {}
	if !p.Until.IsZero() {
		ctx, over = context.WithDeadlineCause(ctx, p.Until, ErrUnauthorized)
	}
	if p.Life == nil {
		return ctx, over
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.Life, func() { cancel(context.Cause(p.Life)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
		over()
	}
}

// Ended reports whether the principal may do nothing more.
func (p Principal) Ended() bool {
	return p.Life != nil && p.Life.Err() != nil || !p.Until.IsZero() && !time.Now().Before(p.Until)
}

// PrincipalFrom returns the principal recorded in ctx. It returns false if there is none; the engine
// then refuses the request.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Visible reports whether the caller may see what belongs to owner. The engine's own work has no
// principal and sees everything.
func Visible(ctx context.Context, owner string) bool {
	p, ok := PrincipalFrom(ctx)
	return !ok || p.Sees(owner)
}

// ErrNoPrincipal is returned for a request whose context has no principal.
var ErrNoPrincipal = errors.New("not allowed: the request has no principal")

// ErrUnauthorized is returned for a token that is unknown, revoked or expired.
var ErrUnauthorized = errors.New("unauthorized")

// RefusedError is an ErrUnauthorized with linus's reason.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "unauthorized: " + e.Why }

// Unwrap returns ErrUnauthorized.
func (e *RefusedError) Unwrap() error { return ErrUnauthorized }

// ErrNoScope is returned for a valid OAuth token that allows nothing here.
var ErrNoScope = errors.New("the token has no scope of linus")

// ErrUnchecked is returned for a token whose validity cannot be determined at the moment. The
// function that returns it has logged why.
var ErrUnchecked = errors.New("the token cannot be checked at the moment")

package job

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"time"
)

// Principal is on whose behalf a request is made. Jobs, VMs and idempotency keys
// belong to its Name.
type Principal struct {
	Name  string
	Token string // ID of the token it has shown, for the audit log; empty: none
	Login string // what people call whom an issuer of logins has let in; empty: it is a token that was shown
	Role  Role
	OAuth bool // the token is one of an OAuth issuer, and its role that of its scopes

	// What it may use of what the settings allow. All but Toolsets are
	// patterns with * and ?. A network is a bridge's name, or a VLAN tag or range of tags,
	// such as 20-29; a storage one of volumes. Empty: no secrets and credentials, unless it is an admin, and all of the
	// others.
	Toolsets, Secrets, Credentials, Networks, Storages, Templates []string

	Limits Limits

	// Life ends when the principal may do nothing more: its token was revoked or has
	// expired. Nil: it never does.
	Life context.Context //nolint:containedctx // one for each token, not for a request

	// Until is when it may do nothing more, if that is known. Zero: it is not.
	Until time.Time
}

// NoLimit says that a new token is not to have a limit that it would otherwise have.
const NoLimit = -1

// Limits bound what a principal has at the same time, or begins. Zero is no limit, and
// NoLimit is another way to say so.
type Limits struct {
	Jobs     int `json:"jobs,omitempty"`          // unfinished jobs
	VMs      int `json:"vms,omitempty"`           // VMs that exist, those that are left alone included, or that unfinished jobs will have
	MemoryMB int `json:"memory_mb,omitempty"`     // of those VMs together
	DiskMB   int `json:"disk_mb,omitempty"`       // of those VMs together, as their disks may grow, and of its volumes, checkpoints and saved templates
	StoredMB int `json:"stored_mb,omitempty"`     // that the engine stores of all its jobs: manifests, files, output and artifacts
	PerHour  int `json:"jobs_per_hour,omitempty"` // jobs submitted in the last hour
}

// WithDefaults returns l with those of d for all that are zero.
func (l Limits) WithDefaults(d Limits) Limits {
	orDefault(&l.Jobs, d.Jobs)
	orDefault(&l.VMs, d.VMs)
	orDefault(&l.MemoryMB, d.MemoryMB)
	orDefault(&l.DiskMB, d.DiskMB)
	orDefault(&l.StoredMB, d.StoredMB)
	orDefault(&l.PerHour, d.PerHour)
	return l
}

// TokenLimits are the limits of a new token with the role run that says nothing else, at
// an engine for so many jobs at a time.
func (d Defaults) TokenLimits(maxJobs int) Limits {
	n := 4 * maxJobs // those that wait count, too
	return Limits{Jobs: n, VMs: n, MemoryMB: n * SizeMB(d.Memory), DiskMB: n * SizeMB(d.Disk), StoredMB: 10 << 10}
}

// Role is what a principal may do: each role includes those before it.
type Role string

// The roles.
const (
	RoleRead  Role = "read"  // see its own jobs and VMs
	RoleRun   Role = "run"   // and begin, steer and end them
	RoleAdmin Role = "admin" // everything, and what belongs to others
)

// Roles are all of them, the least first.
var Roles = []Role{RoleRead, RoleRun, RoleAdmin}

// Scope is the OAuth scope that stands for the role.
func (r Role) Scope() string { return "linus:" + string(r) }

// Includes reports whether the role may do what least may. No unknown role may do
// anything.
func (r Role) Includes(least Role) bool {
	at := slices.Index(Roles, r)
	return at >= 0 && at >= slices.Index(Roles, least) && slices.Contains(Roles, least)
}

// OperatorName is the name of the principal to which belongs what the engine does for
// itself.
const OperatorName = "operator"

// Operator is the user that the engine runs as: whoever can open its socket, start
// linus mcp, or show HTTP_TOKEN.
func Operator() Principal { return Principal{Name: OperatorName, Role: RoleAdmin} }

// Admin reports whether the principal sees and may do everything.
func (p Principal) Admin() bool { return p.Role == RoleAdmin }

// Owner is the principal's name as what belongs to it has it: empty for the operator.
func (p Principal) Owner() string {
	if p.Name == OperatorName {
		return ""
	}
	return p.Name
}

// Sees reports whether the principal may see what belongs to owner, the name of a
// principal; empty: the operator.
func (p Principal) Sees(owner string) bool {
	return p.Admin() || p.Role.Includes(RoleRead) && p.Name == cmp.Or(owner, OperatorName)
}

// Key returns an idempotency key of the principal's as it is stored: each owner has its own.
func (p Principal) Key(key string) string {
	if key == "" || p.Owner() == "" {
		return key
	}
	return p.Owner() + "\x1f" + key // no name contains that character
}

// MayName reports whether the principal's jobs may name a secret, as far as its token
// decides that.
func (p Principal) MayName(secret string) bool { return p.may(p.Secrets, secret) }

// MayUse is MayName for a credential.
func (p Principal) MayUse(credential string) bool { return p.may(p.Credentials, credential) }

func (p Principal) may(patterns []string, name string) bool {
	if len(patterns) == 0 {
		return p.Admin()
	}
	return Among(patterns, name)
}

// Among reports whether a name matches one of patterns, in which * and ? are wildcards.
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

// ForPrincipal is WithPrincipal for a request, whose context ends with the principal's
// life, too; the caller calls end when the request is done.
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

// PrincipalFrom returns the principal recorded in ctx; false: there is none, and the
// engine refuses the request.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Visible reports whether the caller may see what belongs to owner. What the engine does for
// itself has no principal, and sees all.
func Visible(ctx context.Context, owner string) bool {
	p, ok := PrincipalFrom(ctx)
	return !ok || p.Sees(owner)
}

// ErrNoPrincipal is returned for a request of which nobody has said who makes it.
var ErrNoPrincipal = errors.New("not allowed: the request has no principal")

// ErrUnauthorized is returned for a token that is unknown, revoked or expired.
var ErrUnauthorized = errors.New("unauthorized")

// RefusedError is an ErrUnauthorized that says why, in words of ours.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return "unauthorized: " + e.Why }

// Unwrap returns ErrUnauthorized.
func (e *RefusedError) Unwrap() error { return ErrUnauthorized }

// ErrNoScope is returned for an OAuth token that is valid and allows nothing here.
var ErrNoScope = errors.New("the token has no scope of linus")

// ErrUnchecked is returned for a token of which it is not known at the moment whether it
// is valid. Whoever returns it has logged why.
var ErrUnchecked = errors.New("the token cannot be checked at the moment")

package job

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lazyregexp"
)

// TokenPrefix is the prefix of tokens, by which people and scanners recognize them. E2BPrefix is the
// prefix of tokens in the form that E2B's clients accept: hex digits follow it.
const (
	TokenPrefix = "linus_"
	E2BPrefix   = "e2b_"
)

// IsToken reports whether a text looks like a token.
func IsToken(text string) bool {
	return len(text) <= 200 && (strings.HasPrefix(text, TokenPrefix) || strings.HasPrefix(text, E2BPrefix))
}

// Token lets its holder act as a principal. The token itself is not stored.
type Token struct {
	ID string `json:"id"` // the beginning of the token's sha256, in hex
	TokenSpec

	// Login is the display name of the person who logged in through an issuer; only that person's
	// browser session holds the token. Empty: the token was given to somebody.
	Login string `json:"login,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`          // name of the principal
	ExpiresAt time.Time `json:"expires_at,omitzero"` // zero: never
}

// TokenSpec describes a token; see Principal. For a new token with role run, a limit that is missing
// or 0 means the engine's default, and -1 means no limit.
type TokenSpec struct {
	Name        string   `json:"name" api:",required"` // of the principal; several tokens may share a name
	Role        Role     `json:"role" api:",required"`
	Toolsets    []string `json:"toolsets,omitempty"`
	Secrets     []string `json:"secrets,omitempty"`
	Credentials []string `json:"credentials,omitempty"`
	Networks    []string `json:"networks,omitempty"`
	Storages    []string `json:"storages,omitempty"` // of volumes
	Templates   []string `json:"templates,omitempty"`
	Limits
	TTL int  `json:"ttl,omitempty" api:"ttl_seconds"` // seconds until it expires; 0: never
	E2B bool `json:"e2b,omitempty"`                   // the token has the form that E2B's clients expect of keys
}

// NewToken is a token at its creation, the only time that its secret is known.
type NewToken struct {
	Token
	Secret string `json:"token"`
}

// Tokens are the operations on tokens.
type Tokens interface {
	// CreateToken creates a token for a principal. The token's text is only in the result.
	CreateToken(ctx context.Context, s TokenSpec) (NewToken, error)
	// Tokens returns all tokens that were not revoked, by name. Some may have expired.
	Tokens(ctx context.Context) ([]Token, error)
	// RevokeToken removes the token with an ID, or all tokens of a name, and returns them. Within 5
	// seconds no engine accepts them, and their open connections are closed.
	RevokeToken(ctx context.Context, ref string) ([]Token, error)
}

// Principal returns the principal that presents the token.
func (t Token) Principal() Principal {
	return Principal{
		Name: t.Name, Token: t.ID, Login: t.Login, Role: t.Role,
		Toolsets: t.Toolsets, Secrets: t.Secrets, Credentials: t.Credentials, Networks: t.Networks, Storages: t.Storages, Templates: t.Templates, Limits: t.Limits,
	}
}

// Narrowed returns, for people, what the token may do of all that its role may; empty if it is not
// restricted.
func (s TokenSpec) Narrowed() []string {
	var texts []string
	for _, l := range []struct {
		name string
		list []string
	}{{"toolsets", s.Toolsets}, {"secrets", s.Secrets}, {"credentials", s.Credentials}, {"networks", s.Networks}, {"storages", s.Storages}, {"templates", s.Templates}} {
		if len(l.list) > 0 {
			texts = append(texts, l.name+" "+strings.Join(l.list, ", "))
		}
	}
	size := func(mb int) string {
		if mb%1024 == 0 {
			return fmt.Sprintf("%d GiB", mb/1024)
		}
		return fmt.Sprintf("%d MiB", mb)
	}
	var limits []string
	for _, l := range []struct {
		n    int
		text func(int) string
		of   string
	}{
		{s.Jobs, strconv.Itoa, "unfinished jobs"}, {s.VMs, strconv.Itoa, "VMs"}, {s.MemoryMB, size, "of memory"},
		{s.DiskMB, size, "of disks"}, {s.StoredMB, size, "stored"}, {s.PerHour, strconv.Itoa, "jobs an hour"},
	} {
		if l.n > 0 {
			limits = append(limits, l.text(l.n)+" "+l.of)
		}
	}
	if len(limits) > 0 {
		texts = append(texts, "at most "+strings.Join(limits, ", "))
	}
	return texts
}

// Expired reports whether the token has expired at a time.
func (t Token) Expired(at time.Time) bool { return !t.ExpiresAt.IsZero() && !at.Before(t.ExpiresAt) }

var principalName = lazyregexp.New(`^[a-z0-9][a-z0-9._@-]*$`)

// maxPatterns bounds each list of a token.
const maxPatterns = 100

// Validate checks the fields. It returns all faults in an *InvalidError.
func (s TokenSpec) Validate() error {
	var wrong []*FieldError
	add := func(f *FieldError) { wrong = append(wrong, f) }
	if !fits(principalName, s.Name, 64) {
		add(field("name", "use lower-case letters, digits and ._@-, at most 64", "%.80q is not a principal's name", s.Name))
	} else if s.Name == OperatorName {
		add(field("name", "choose another", "%q is whoever can open the engine's socket", s.Name))
	}
	if !slices.Contains(Roles, s.Role) {
		add(field("role", "use read, run or admin", "%.80q is not a role", string(s.Role)))
	}
	for _, t := range s.Toolsets {
		if !slices.Contains(TokenToolsets, t) {
			add(field("toolsets", "use some of: "+strings.Join(TokenToolsets, ", "), "%.80q is unknown", t))
		}
	}
	for name, list := range map[string][]string{"secrets": s.Secrets, "credentials": s.Credentials, "networks": s.Networks, "storages": s.Storages, "templates": s.Templates} {
		if len(list) > maxPatterns {
			add(field(name, "give fewer, with * in them", "%d entries, the limit is %d", len(list), maxPatterns))
		}
		for _, p := range list {
			if _, err := path.Match(p, ""); err != nil || p == "" || len(p) > 200 || strings.ContainsAny(p, ", \t\r\n/\\'\"") {
				add(field(name, "give names, in which * and ? are wildcards", "%.80q is not a name", p))
			} else if _, _, err := VLANs(p); name == "networks" && err != nil {
				add(field(name, "give bridges' names, and VLAN tags from 1 to 4094 or ranges such as 20-29", "%v", err))
			}
		}
	}
	for name, n := range map[string]int{"jobs": s.Jobs, "vms": s.VMs, "memory_mb": s.MemoryMB, "disk_mb": s.DiskMB, "stored_mb": s.StoredMB, "jobs_per_hour": s.PerHour} {
		if n < NoLimit {
			add(field(name, "give -1 for no limit, 0 for the default, or more", "%d is negative", n))
		}
	}
	if s.TTL < 0 {
		add(field("ttl", "give 0 for a token that does not expire, or more", "%d is negative", s.TTL))
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.SortStableFunc(wrong, func(a, b *FieldError) int { return strings.Compare(a.Field, b.Field) })
	return &InvalidError{Fields: wrong}
}

var tags = lazyregexp.New(`^([0-9]{1,4})(?: *- *([0-9]{1,4}))?$`)

// VLANs returns the VLAN tags that an entry of a list of networks means; zeros for a bridge's name.
func VLANs(entry string) (first, last int, err error) {
	m := tags.FindStringSubmatch(entry)
	if m == nil {
		return 0, 0, nil
	}
	first, _ = strconv.Atoi(m[1]) // digits
	last = first
	if m[2] != "" {
		last, _ = strconv.Atoi(m[2])
	}
	if first < 1 || last > 4094 || first > last {
		return 0, 0, fmt.Errorf("%q is not a VLAN tag or a range of them", entry)
	}
	return first, last, nil
}

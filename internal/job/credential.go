package job

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	spec "linus/internal/field"
	"linus/internal/lazyregexp"
)

// Credential is a secret that a VM may use but not read: a header that the engine's proxy adds to
// requests to one host, for jobs that name the credential. It does not include the value.
type Credential struct {
	CredentialSpec

	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"` // name of the principal
}

// CredentialSpec describes a credential.
type CredentialSpec struct {
	Name string `json:"name" api:",required"`
	// Host is a host name, with a port unless that is 443. It may have a private address, since only
	// admins add credentials. Its certificate is verified.
	Host string `json:"host" api:",required"`
	// Path restricts the credential to this path and those below it, by whole segments; empty: any path.
	Path string `json:"path,omitempty"`
	// Header is the header's name and the text before the value, as in "Authorization: Bearer"; with
	// "Authorization: Basic ada" the value is the password of user ada.
	Header string `json:"header,omitempty"`
	// HostKey is the host's public key, as in known_hosts, if the credential is a private SSH key
	// instead of a header. Such keys are for the repositories of jobs only.
	HostKey string `json:"host_key,omitempty"`
	// Env is the variable in which the task finds a placeholder; empty: none.
	Env string `json:"env,omitempty"`
	// Secret is the name of the server's secret that holds the value, read at each use; empty: the
	// value was given and the engine stores it.
	Secret string `json:"secret,omitempty"`
}

// NewCredential is a credential to be created. No other call passes the value.
type NewCredential struct {
	CredentialSpec
	Value string `json:"value,omitempty"` // unless Secret names it
}

// Credentials are the operations on credentials.
type Credentials interface {
	// CreateCredential adds a credential. Nobody can read its value afterwards.
	CreateCredential(ctx context.Context, c NewCredential) (Credential, error)
	// Credentials returns all credentials by name, without their values.
	Credentials(ctx context.Context) ([]Credential, error)
	// RemoveCredential removes a credential. It is not sent anymore, and open requests that use it
	// are cut off: at once on this engine, within 5 seconds on others.
	RemoveCredential(ctx context.Context, name string) (Credential, error)
}

// CredentialUse is a request that a VM made to a host that has a credential.
type CredentialUse struct {
	Name         string // empty: the request was refused before a credential was chosen
	Method, Host string
	Path         string // as the guest sent it; not trusted
	Status       int    // 0: SSH
}

// Text describes the use in a line of bounded length.
func (u CredentialUse) Text() string {
	name := "no credential"
	if u.Name != "" {
		name = "credential " + u.Name
	}
	text := fmt.Sprintf("%s: %s %s%s", name, cut(u.Method, 20), u.Host, cut(u.Path, 200))
	if u.Status == 0 { // SSH has no status
		return text
	}
	return text + " " + strconv.Itoa(u.Status)
}

// CredentialChange records that a credential was created or removed.
type CredentialChange struct {
	Credential Credential
	Created    bool
	By         Caller
}

// Placeholder is what a VM sees instead of the value. It is worthless anywhere else.
func (s CredentialSpec) Placeholder() string { return "linus-credential-" + s.Name }

// Target returns the host's name and port.
func (s CredentialSpec) Target() (host, port string) {
	host, port, err := net.SplitHostPort(s.Host)
	switch {
	case err == nil:
		return host, port
	case s.SSH():
		return s.Host, "22"
	}
	return s.Host, "443"
}

// SSH reports whether the credential is a private SSH key.
func (s CredentialSpec) SSH() bool { return s.HostKey != "" }

// HeaderWith returns the header's name, its value with the secret in it, and the part of the value
// that must stay hidden.
func (s CredentialSpec) HeaderWith(secret string) (name, value, hidden string) {
	name, front, _ := strings.Cut(s.Header, ":")
	front = strings.TrimSpace(front)
	if user, basic := strings.CutPrefix(front, "Basic "); basic {
		front, secret = "Basic", base64.StdEncoding.EncodeToString([]byte(strings.TrimSpace(user)+":"+secret))
	}
	return name, strings.TrimSpace(front + " " + secret), secret
}

// Covers reports whether the credential may be added to a request with this path, as escaped in the request.
// If the credential is restricted to a path, a path that servers may read differently is not covered.
func (s CredentialSpec) Covers(escaped string) bool { return !s.SSH() && s.covers(escaped) }

func (s CredentialSpec) covers(escaped string) bool {
	if s.Path == "" {
		return true
	}
	rest, below := strings.CutPrefix(escaped, s.Path)
	return below && (rest == "" || strings.HasSuffix(s.Path, "/") || rest[0] == '/') && plainPath(escaped)
}

// plainPath reports whether every server reads an escaped path alike, however often it unescapes the
// path: no segment but the last is empty, and none leads up.
func plainPath(path string) bool {
	for range 4 {
		segments := strings.Split(strings.TrimPrefix(strings.ReplaceAll(path, `\`, "/"), "/"), "/")
		for i, segment := range segments {
			name := segment
			if at := strings.IndexAny(segment, ";?#"); at >= 0 { // some servers drop what follows
				name = segment[:at]
			}
			up := name != "" && strings.Trim(name, ". ") == "" // some servers drop blanks, and dots before them
			if up || name == "" && i < len(segments)-1 || strings.ContainsFunc(segment, misread) || !utf8.ValidString(segment) {
				return false
			}
		}
		next, err := url.PathUnescape(path)
		if err != nil || next == path {
			return err == nil
		}
		path = next
	}
	return false
}

// misread reports whether a server that normalizes text may drop a character or turn it into
// another: characters of no width, and variants of dots, slashes and escape characters.
func misread(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r != ' ' && unicode.IsSpace(r) ||
		strings.ContainsRune("\u2024\u2025\u2026\u3002\ufe19\ufe30\ufe52\uff0e\uff61"+ // dots
			"\u2044\u2100\u2101\u2105\u2106\u2215\u2216\u29f5\u29f8\ufe68\uff0f\uff3c"+ // slashes
			"\ufe54\ufe56\ufe5f\ufe6a\uff03\uff05\uff1b\uff1f", r) // ; ? # %
}

// maxKeyFile bounds a private key, in bytes.
const maxKeyFile = 16 << 10

// MaxCredentials bounds how many credentials a job may name.
const MaxCredentials = 20

var (
	hostName    = lazyregexp.New(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	headerName  = lazyregexp.New(`^[A-Za-z][A-Za-z0-9-]*$`)
	headerFront = lazyregexp.New(`^[!-~]*( [!-~]+)*$`)
	hostKey     = lazyregexp.New(`^(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=*$`)
)

// framing are the headers that say where a request goes and where it ends.
var framing = []string{"host", "content-length", "transfer-encoding", "connection", "proxy-connection", "keep-alive", "upgrade", "te", "trailer", "expect", "accept-encoding", "content-encoding", "range"}

// Validate checks the fields. It returns all faults in an *InvalidError.
func (s CredentialSpec) Validate() error {
	var wrong []*FieldError
	add := func(f *FieldError) { wrong = append(wrong, f) }
	if !fits(spec.Credential, s.Name, 64) {
		add(field("name", "use letters, digits and ._-, at most 64", "%.80q is not a credential's name", s.Name))
	}
	host, port := s.Target()
	if n, err := strconv.ParseUint(port, 10, 16); !fits(hostName, host, 253) || err != nil || n == 0 || port[0] == '0' {
		add(field("host", "give a name in lower case, as in api.github.com or git.example:8443", "%.80q is not a host's name", s.Host))
	}
	if s.Path != "" && (s.Path[0] != '/' || len(s.Path) > 1000 || strings.ContainsAny(s.Path, "?#; ") || !plainPath(s.Path)) {
		add(field("path", "give what paths begin with, as in /repos/acme/", "%.80q is not such a path", s.Path))
	}
	name, front, _ := strings.Cut(s.Header, ":")
	front = strings.TrimSpace(front)
	switch {
	case s.HostKey != "" && (s.Header != "" || s.Env != ""):
		add(field("host_key", "leave header and env out: it is a key for the repositories of jobs", "is given together with a header or a variable"))
	case s.HostKey != "" && !fits(hostKey, s.HostKey, 4000):
		add(field("host_key", "give what ssh-keyscan prints behind the host's name, as in 'ssh-ed25519 AAAA...'", "%.80q is not a public key", s.HostKey))
	case s.HostKey != "":
	case !fits(headerName, name, 100) || !fits(headerFront, front, 200):
		add(field("header", "give a header's name and what precedes the value, as in 'Authorization: Bearer' or x-api-key", "%.80q is neither", s.Header))
	case slices.Contains(framing, strings.ToLower(name)):
		add(field("header", "give one that identifies the client, such as Authorization", "%s says where a request goes, or how it is read", name))
	case front == "Basic":
		add(field("header", "give the user as well, as in 'Authorization: Basic x-access-token'", "Basic needs a user; the value is that user's password"))
	}
	if s.Env != "" && (!fits(envName, s.Env, 200) || slices.Contains(reserved, s.Env)) {
		add(field("env", "give a variable's name, as in GITHUB_TOKEN", "%.80q is not a variable that a task can have", s.Env))
	}
	if s.Secret != "" && !fits(envName, s.Secret, 200) {
		add(field("secret", "use letters, digits and _, not starting with a digit", "%.80q is not a secret's name", s.Secret))
	}
	if len(wrong) > 0 {
		return &InvalidError{Fields: wrong}
	}
	return nil
}

// CheckValue returns why a text cannot be the credential's value; it is not in the error.
func (s CredentialSpec) CheckValue(text string) error {
	if s.SSH() {
		if len(text) > maxKeyFile || !strings.HasPrefix(text, "-----BEGIN ") || !strings.Contains(text, " PRIVATE KEY-----") || strings.Contains(text, "ENCRYPTED") {
			return field("value", "give the file that ssh-keygen -N '' makes", "is not a private key without a passphrase")
		}
		return nil
	}
	const remedy = "give one line of 8 to 8192 printable ASCII characters"
	switch {
	case len(text) < 8 || len(text) > 8192:
		return field("value", remedy, "is %d bytes", len(text))
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimSpace(text) != text:
		return field("value", remedy, "has a line break or another character that no header may contain, or a space at either end")
	}
	return nil
}

func validateCredentials(names []string) []*FieldError {
	var bad []*FieldError
	if len(names) > MaxCredentials+1 { // an agent's key may be among them
		bad = append(bad, field("manifest.credentials", "name fewer", "are %d, the limit is %d", len(names), MaxCredentials))
	}
	for i, name := range names {
		_, key := KeyCredential(name)
		switch {
		case !key && !fits(spec.Credential, name, 64):
			bad = append(bad, field("manifest.credentials", "linus credential list shows them", "%.80q is not a credential's name", name))
		case slices.Contains(names[:i], name):
			bad = append(bad, field("manifest.credentials", "name each credential once", "%q is given twice", name))
		}
	}
	return bad
}

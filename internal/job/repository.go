package job

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"linus/internal/lazyregexp"
)

// Repository is a git repository that a job's task finds in its VM. The engine fetches it and uses
// the credential there; nothing of the credential is in the VM.
type Repository struct {
	URL        string `json:"url"`
	Ref        string `json:"ref,omitempty"`
	Path       string `json:"path,omitempty"`
	Credential string `json:"credential,omitempty"`
	Submodules bool   `json:"submodules,omitempty"`
	LFS        bool   `json:"lfs,omitempty"`
}

// Push is where a job's commits go.
type Push struct {
	Branch string `json:"branch,omitempty"`
}

// Given reports whether there is a repository.
func (r Repository) Given() bool { return r != Repository{} }

// RepositoryURL is the parsed location of a repository.
type RepositoryURL struct {
	SSH        bool
	User, Host string
	Port       string
	Path       string // with a leading slash
}

// Target returns the host and port, in the form that credentials use.
func (u RepositoryURL) Target() string { return net.JoinHostPort(u.Host, u.Port) }

var (
	scpURL  = lazyregexp.New(`^([A-Za-z0-9_][A-Za-z0-9._-]*)@([a-z0-9.-]+):([A-Za-z0-9._~/-]+)$`)
	gitUser = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
	gitHash = lazyregexp.New(`^[0-9a-f]{40}$`)
)

const maxRepositoryURL = 2000

// Where parses the URL. The error says what is wrong with it.
func (r Repository) Where() (RepositoryURL, error) {
	if len(r.URL) > maxRepositoryURL {
		return RepositoryURL{}, fmt.Errorf("is %d bytes, the limit is %d", len(r.URL), maxRepositoryURL)
	}
	u := RepositoryURL{Port: "443"}
	if part := scpURL.FindStringSubmatch(r.URL); part != nil {
		u = RepositoryURL{SSH: true, User: part[1], Host: part[2], Port: "22", Path: "/" + strings.TrimPrefix(part[3], "/")}
	} else {
		parsed, err := url.Parse(r.URL)
		if err != nil || strings.ContainsFunc(r.URL, func(c rune) bool { return c <= ' ' || c > '~' || c == '\\' }) {
			return u, fmt.Errorf("%.200q is not a URL", r.URL)
		}
		u.SSH, u.Host, u.Path = parsed.Scheme == "ssh", parsed.Hostname(), parsed.EscapedPath()
		if u.SSH {
			u.Port = "22"
		}
		if port := parsed.Port(); port != "" {
			u.Port = port
		}
		_, password := parsed.User.Password()
		switch {
		case parsed.Scheme != "https" && parsed.Scheme != "ssh":
			return u, fmt.Errorf("%.200q is neither HTTPS nor SSH", r.URL)
		case password || !u.SSH && parsed.User != nil:
			return u, errors.New("has a user or a password in it")
		case parsed.RawQuery != "" || parsed.ForceQuery || strings.Contains(r.URL, "#"):
			return u, errors.New("has a query or a fragment in it")
		case u.SSH && !fits(gitUser, parsed.User.Username(), 64):
			return u, errors.New("has no user, as in ssh://git@HOST/PATH")
		}
		u.User = parsed.User.Username()
	}
	if n, err := strconv.ParseUint(u.Port, 10, 16); !fits(hostName, u.Host, 253) || err != nil || n == 0 || u.Port[0] == '0' {
		return u, fmt.Errorf("%.200q has no name of a host, in lower case", r.URL)
	}
	if strings.Trim(u.Path, "/") == "" || !plainPath(u.Path) {
		return u, fmt.Errorf("%.200q has no path of a repository", r.URL)
	}
	return u, nil
}

// LFSURL returns the Git LFS endpoint of a repository that is reached over HTTPS.
func (r Repository) LFSURL() string {
	return strings.TrimSuffix(strings.TrimRight(r.URL, "/"), ".git") + ".git/info/lfs"
}

// Name returns the directory that the repository is in unless a path is given.
func (r Repository) Name() string {
	u, _ := r.Where()
	name := strings.Map(func(c rune) rune {
		if c < 0x80 && (unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("._-", c)) {
			return c
		}
		return '-'
	}, strings.TrimSuffix(path.Base(u.Path), ".git"))
	if strings.Trim(name, ".-") == "" {
		return "repository"
	}
	return strings.TrimLeft(name[:min(len(name), 100)], ".-")
}

// IsCommit reports whether a ref is a commit's whole hash.
func IsCommit(ref string) bool { return gitHash.MatchString(ref) }

// refProblem returns why git does not accept a text as the name of a branch or tag; empty if it does.
func refProblem(name string) string {
	bad := strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune(`~^:?*[\`, c) })
	if bad || len(name) > 200 || name == "@" || strings.HasPrefix(name, "-") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") || strings.Contains(name, "@{") {
		return fmt.Sprintf("%.200q is not a name that git accepts", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return fmt.Sprintf("%.200q is not a name that git accepts", name)
		}
	}
	return ""
}

// validateRepository checks the task's repository and the branch for its commits.
func (m Manifest) validateRepository() []*FieldError {
	var bad []*FieldError
	add := func(name, remedy, problem string) {
		bad = append(bad, &FieldError{Field: "manifest." + name, Problem: problem, Remedy: remedy})
	}
	r := m.Repository
	if !r.Given() {
		return bad
	}
	at, err := r.Where()
	switch {
	case r.URL == "":
		add("repository.url", "give one, as in https://github.com/acme/app", "is required")
	case err != nil:
		add("repository.url", "give https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH, and put the login into repository.credential", err.Error())
	case at.SSH && r.Credential == "":
		add("repository.credential", "name one with the host's key (linus credential add --host-key)", "is required for SSH")
	}
	if err == nil && at.SSH && r.LFS {
		add("repository.lfs", "give its URL as https://HOST/PATH", "is for repositories that are reached by HTTPS")
	}
	if problem := refProblem(r.Ref); r.Ref != "" && problem != "" {
		add("repository.ref", "give a branch, a tag or a commit's whole hash", problem)
	}
	if r.Path != "" && path.Clean(r.Path) == "/" {
		add("repository.path", "give a directory of its own", "is the root directory")
	}
	if m.Push.Branch == "" {
		return bad
	}
	switch problem := refProblem(m.Push.Branch); {
	case problem != "":
		add("push.branch", "give a name such as fix/issue-7", problem)
	case strings.HasPrefix(m.Push.Branch, "refs/") || m.Push.Branch == "HEAD" || IsCommit(m.Push.Branch):
		add("push.branch", "give a name such as fix/issue-7", fmt.Sprintf("%.200q would be taken for something else", m.Push.Branch))
	case r.Credential == "":
		add("repository.credential", "name one that may push", "is required to push")
	}
	return bad
}

// Reads returns why a credential cannot be used for a repository; nil if it can.
func (s CredentialSpec) Reads(r Repository) error {
	at, err := r.Where()
	if err != nil {
		return err
	}
	host, port := s.Target()
	switch {
	case at.SSH != s.SSH():
		return fmt.Errorf("%q is %s, and the repository is reached by %s", s.Name, map[bool]string{true: "a key for SSH", false: "for HTTPS"}[s.SSH()], map[bool]string{true: "SSH", false: "HTTPS"}[at.SSH])
	case at.Target() != net.JoinHostPort(host, port):
		return fmt.Errorf("%q is for %s, and not for %s", s.Name, s.Host, at.Target())
	case !s.covers(at.Path):
		return fmt.Errorf("%q is for paths that begin with %s", s.Name, s.Path)
	}
	if at, err := (Repository{URL: r.LFSURL()}).Where(); r.LFS && err == nil && !s.covers(at.Path) {
		return fmt.Errorf("%q is for paths that begin with %s, and the repository's large files are at %s", s.Name, s.Path, at.Path)
	}
	return nil
}

// Checkout is what a job's task found of its repository and what it left. The latter is known when
// the status is terminal.
type Checkout struct {
	Ref         string `json:"ref,omitempty"`           // the fetched ref, as in refs/heads/main; empty: a commit
	Commit      string `json:"commit"`                  // the commit that the task found
	Head        string `json:"head,omitempty"`          // the last commit that the task made; empty: it made none
	Commits     int    `json:"commits"`                 // commits that the task made
	Files       int    `json:"files"`                   // files that differ from what the task found, uncommitted ones included
	Insertions  int    `json:"insertions"`              // lines
	Deletions   int    `json:"deletions"`               // lines
	Uncommitted bool   `json:"uncommitted,omitempty"`   // it left uncommitted changes, which are only in the patch
	Pushed      string `json:"pushed_branch,omitempty"` // the branch that its commits were pushed to
	Problem     string `json:"problem,omitempty"`       // why some of this is missing, or was not pushed
}

// Text describes in one line what the task left.
func (c Checkout) Text() string {
	plural := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	text := "no commits"
	if c.Commits > 0 {
		text = plural(c.Commits, "commit")
	}
	if c.Files > 0 {
		text += fmt.Sprintf(", %s changed (+%d -%d)", plural(c.Files, "file"), c.Insertions, c.Deletions)
	}
	if c.Uncommitted {
		text += ", some of it not committed"
	}
	if c.Pushed != "" {
		text += ", pushed to " + c.Pushed
	}
	return text
}

// Names of the artifacts that a job with a repository leaves.
const (
	BundleArtifact = "repository.bundle" // its commits, for git fetch
	PatchArtifact  = "repository.patch"  // its changes, committed or not
)

// MalformedBundle is an error that says that a bundle itself is not what git makes: nobody can use
// it. Other errors say nothing about the bundle.
type MalformedBundle struct{ Err error }

func (e *MalformedBundle) Error() string { return e.Err.Error() }

func (e *MalformedBundle) Unwrap() error { return e.Err }

// HasPatch reports whether the engine keeps a patch of the task's changes in its repository.
func (j Job) HasPatch() bool {
	return j.Repository != nil && slices.ContainsFunc(j.Artifacts, func(a Artifact) bool { return a.Path == PatchArtifact })
}

// PushedBranch is what is recorded about a branch that jobs push to.
type PushedBranch struct {
	Job    string `json:"job"`              // the job that pushed last, or is about to push
	Commit string `json:"commit,omitempty"` // the branch's commit, as far as known
	Next   string `json:"next,omitempty"`   // the commit that the branch is about to get
}

// CredentialsNamed returns the credentials that a manifest names, with the fields that name them.
func (m Manifest) CredentialsNamed() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i, name := range m.Credentials {
			if !yield(fmt.Sprintf("manifest.credentials[%d]", i), name) {
				return
			}
		}
		if r := m.Repository; r.Credential != "" {
			yield("manifest.repository.credential", r.Credential)
		}
	}
}

// RepositoryCall is a job's request to the engine about its repository.
type RepositoryCall struct {
	Job        string // its ID
	Repository Repository
	Push       string // the branch for its commits; empty: none
	// Commit is the commit that the task found or must find, if it is already known.
	Commit string
	// Own are the commits at which the branch may already be because a job of the same owner pushed them.
	Own  []string
	Used func(CredentialUse) // called for each use of the credential
}

// Archive is a file that can be read in any order.
type Archive interface {
	io.ReaderAt
	io.Closer
}

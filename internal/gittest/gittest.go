// Package gittest makes git servers for tests: git's own programs serve a repository over HTTPS, together
// with large files, and a real sshd serves it over SSH.
package gittest

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// Repository is a repository of a server, srv/app.git, with a commit of a.txt on main.
type Repository struct {
	Dir  string // contains everything
	Bare string // the server's repository
	Work string // a clone
	// Large answers requests for large files; nil: the server does.
	Large func(w http.ResponseWriter, r *http.Request, data []byte)
	// Elsewhere is the site that supposedly has the large files; empty: the server itself.
	Elsewhere string

	t  testing.TB
	mu sync.Mutex
	// large are the large files, by hash.
	large map[string][]byte
}

// New makes a repository that is removed with the test.
func New(t testing.TB) *Repository {
	t.Helper()
	dir := t.TempDir()
	r := &Repository{t: t, Dir: dir, Bare: filepath.Join(dir, "srv", "app.git"), Work: filepath.Join(dir, "work")}
	r.Git(dir, "init", "-q", "--bare", "--initial-branch=main", r.Bare)
	r.Git(r.Bare, "config", "http.receivepack", "true")
	r.Git(dir, "init", "-q", "--initial-branch=main", r.Work)
	r.Commit(r.Work, "a.txt", "one\n")
	r.Git(r.Work, "push", "-q", r.Bare, "main")
	return r
}

// Git runs git in a directory as a person would, and returns its output.
func (r *Repository) Git(dir string, args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "GIT_") }) // set by a hook that runs tests
	cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1", "HOME="+r.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v, %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Commit commits a file, and returns the commit.
func (r *Repository) Commit(dir, file, text string) string {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.Git(dir, "add", "-A")
	r.Git(dir, "commit", "-q", "-m", "change "+file)
	return r.Git(dir, "rev-parse", "HEAD")
}

// Pointer stores a large file on the server, and returns the pointer for git.
func (r *Repository) Pointer(data []byte) string {
	sum := sha256.Sum256(data)
	oid := hex.EncodeToString(sum[:])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.large == nil {
		r.large = map[string][]byte{}
	}
	r.large[oid] = data
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(data))
}

// batch answers where large files are, like a Git LFS server.
func (r *Repository) batch(w http.ResponseWriter, req *http.Request) {
	type link struct {
		Href string `json:"href"`
	}
	type object struct {
		OID     string          `json:"oid"`
		Size    int             `json:"size"`
		Actions map[string]link `json:"actions,omitempty"`
		Error   map[string]any  `json:"error,omitempty"`
	}
	var asked struct {
		Operation string   `json:"operation"`
		Objects   []object `json:"objects"`
	}
	if err := json.NewDecoder(req.Body).Decode(&asked); err != nil || asked.Operation != "download" {
		http.Error(w, "{}", http.StatusUnprocessableEntity)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range asked.Objects {
		o := &asked.Objects[i]
		if r.large[o.OID] == nil {
			o.Error = map[string]any{"code": 404, "message": "it is not here"}
			continue
		}
		o.Actions = map[string]link{"download": {cmp.Or(r.Elsewhere, "https://"+req.Host) + "/app.git/large/" + o.OID}}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": asked.Objects})
}

// HTTP serves the repository by git's own program, and its large files.
func (r *Repository) HTTP() http.Handler {
	r.t.Helper()
	all := http.NewServeMux()
	all.Handle("/", r.backend())
	all.HandleFunc("POST /app.git/info/lfs/objects/batch", r.batch)
	all.HandleFunc("GET /app.git/large/{oid}", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		data := r.large[req.PathValue("oid")]
		r.mu.Unlock()
		if r.Large != nil {
			r.Large(w, req, data)
			return
		}
		_, _ = w.Write(data)
	})
	return all
}

func (r *Repository) backend() http.Handler {
	r.t.Helper()
	return &cgi.Handler{
		Path: filepath.Join(r.Git(r.Dir, "--exec-path"), "git-http-backend"), Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(r.Bare), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=t", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
}

// Behind protects a site with a password.
func Behind(password string, site http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, given, _ := r.BasicAuth(); given != password {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		site.ServeHTTP(w, r)
	})
}

// Key returns a new private key for SSH, also as PEM.
func Key(t testing.TB) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

// SSH serves the repository by a real sshd, as root, at a port of 127.0.0.1, for a client's key. It returns
// the port, and the host's key in the form of known_hosts. It skips the test if sshd cannot be started.
func (r *Repository) SSH(user ssh.PublicKey) (port, hostKey string) {
	r.t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil || os.Getuid() != 0 {
		r.t.Skip("there is no sshd that could be started here")
	}
	host, hostPEM := Key(r.t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	for name, text := range map[string]string{
		"host_key": string(hostPEM),
		"keys":     `restrict,command="git-shell -c \"$SSH_ORIGINAL_COMMAND\"" ` + string(ssh.MarshalAuthorizedKey(user)),
		"config": fmt.Sprintf("ListenAddress 127.0.0.1:%s\nHostKey %[2]s/host_key\nAuthorizedKeysFile %[2]s/keys\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
			port, r.Dir),
	} {
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	_ = os.MkdirAll("/run/sshd", 0o755) //nolint:gosec // where sshd wants to be
	server := exec.Command(sshd, "-D", "-e", "-f", filepath.Join(r.Dir, "config"))
	if err := server.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatal(err)
		}
	}
	return port, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))
}

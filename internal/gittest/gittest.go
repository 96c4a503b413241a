// Package gittest makes git servers for tests: a repository that git's own programs serve over
// HTTPS, with large files beside it, and over SSH by a real sshd.
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

// Repository is one of a server's, srv/app.git, with a commit of a.txt on main.
type Repository struct {
	Dir  string // holds all of it
	Bare string // the server's
	Work string // somebody's clone
	// Large serves each large file in place of the server itself; nil: it does.
	Large func(w http.ResponseWriter, r *http.Request, data []byte)
	// Elsewhere is the site that is said to have the large files; empty: the server itself.
	Elsewhere string

	t  testing.TB
	mu sync.Mutex
	// large are the large files, by their hashes.
	large map[string][]byte
}

// New makes a repository that goes with the test.
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

// Git runs git in a directory as people do, and returns what it says.
func (r *Repository) Git(dir string, args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(line string) bool { return strings.HasPrefix(line, "GIT_") }) // of a hook that runs tests
	cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1", "HOME="+r.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v, %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Commit makes a commit of a file, and returns it.
func (r *Repository) Commit(dir, file, text string) string {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.Git(dir, "add", "-A")
	r.Git(dir, "commit", "-q", "-m", "change "+file)
	return r.Git(dir, "rev-parse", "HEAD")
}

// Pointer keeps a large file at the server, and returns what git has in place of it.
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

// batch says where large files are, as a server of Git LFS does.
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

// HTTP serves what is beside the repository, by git's own program, and its large files.
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

// Behind asks who comes to a site for a password.
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

// Key returns a new private key for SSH, and as PEM.
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

// SSH serves the repository to root with a key, by a real sshd at a port of 127.0.0.1, and returns the
// port and the host's key as in known_hosts. It skips the test where that cannot be.
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

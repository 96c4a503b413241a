// Package sandbox serves E2B's clients inside a sandbox's VM: processes, terminals, files and
// watches, in the protocol of E2B's envd. It authenticates nobody: whoever reaches its socket may
// do everything as every user, as in E2B's, and the engine in front of it decides who does. It
// knows nothing of engines. All that it keeps is bounded, so that no client uses up the VM's
// memory.
package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"

	"linus/internal/envd"
	"linus/internal/sandbox/rpc"
)

// Bounds. A client that reaches one gets an error that says so.
const (
	maxRequests  = 256     // at once, streams included
	maxMessage   = 2 << 20 // bytes of a received message
	maxProcesses = 1000    // running; as many that have ended are kept for a while
	maxWatches   = 64      // at once: the kernel gives a user 128
	maxWatched   = 20_000  // directories of one watch
	maxEvents    = 4096    // of a watcher between two requests for them
	maxEntries   = 50_000  // of one directory listing
	maxPath      = 4096    // bytes, as the kernel's
)

// sandboxUser is the user that clients name if they name one: E2B's own.
const sandboxUser = "user"

// Options say how a sandbox is served.
type Options struct {
	User string // user for calls that name none, unless the template has one; empty: root
	Root string // "/", the parent of the files that survive a boot; empty: nothing is kept
}

// Server serves one sandbox.
type Server struct {
	requests chan struct{}
	watches  chan struct{}
	lists    chan struct{}
	cpu      cpuTimes

	options  Options
	starting chan struct{} // held while the template's command is started

	mu        sync.Mutex
	template  envd.Template
	env       map[string]string
	started   *process   // the template's command
	processes []*process // running, in the order they started
	ended     []*process // the last to end is last
	watchers  map[string]*watcher
	closed    bool
	running   sync.WaitGroup // processes
}

// New returns a server without processes.
func New(o Options) *Server {
	return &Server{
		requests: make(chan struct{}, maxRequests),
		watches:  make(chan struct{}, maxWatches),
		lists:    make(chan struct{}, 2),
		starting: make(chan struct{}, 1),
		options:  o,
		template: readTemplate(o.Root),
		watchers: map[string]*watcher{},
	}
}

// Handler returns the handler for clients' requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	bounds := connect.WithReadMaxBytes(maxMessage)
	mux.Handle(rpc.NewProcessHandler(s, bounds))
	mux.Handle(rpc.NewFilesystemHandler(s, bounds))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /metrics", s.getMetrics)
	mux.HandleFunc("GET /envs", s.getEnvs)
	mux.HandleFunc("POST /init", failing(s.postInit))
	mux.HandleFunc("POST /build", s.postBuild)
	mux.HandleFunc("GET /files", failing(s.getFiles))
	mux.HandleFunc("POST /files", failing(s.postFiles))
	refusals := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.requests <- struct{}{}:
			defer func() { <-s.requests }()
			mux.ServeHTTP(w, r)
		default:
			err := fmt.Errorf("the sandbox has %d requests at once: end some of its streams", maxRequests)
			if refusals.IsSupported(r) {
				_ = refusals.Write(w, r, connect.NewError(connect.CodeResourceExhausted, err))
				return
			}
			refuse(w, http.StatusTooManyRequests, err)
		}
	})
}

// Close kills all processes, ends all watchers, and waits for them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for _, p := range s.processes {
		_ = p.signal(syscall.SIGKILL)
	}
	watchers := maps.Clone(s.watchers)
	s.mu.Unlock()
	for id := range watchers {
		_ = s.removeWatcher(id)
	}
	s.running.Wait()
}

// account is a user of the VM on whose behalf a call acts.
type account struct {
	name, home string
	uid, gid   uint32
	groups     []uint32
}

// account looks a user up. It returns the default user if there is no name, or if the name is E2B's
// own user, which this VM does not have.
func (s *Server) account(name string) (account, error) {
	s.mu.Lock()
	standard := cmp.Or(s.template.User, s.options.User, "root")
	s.mu.Unlock()
	if name == "" {
		name = standard
	}
	u, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown && name == sandboxUser {
		u, err = user.Lookup(standard)
	}
	if err != nil {
		return account{}, fmt.Errorf("invalid username: '%.100s' is no user of this sandbox: %w", name, err)
	}
	a := account{name: u.Username, home: u.HomeDir}
	for _, id := range []struct {
		text string
		to   *uint32
	}{{u.Uid, &a.uid}, {u.Gid, &a.gid}} {
		number, err := strconv.ParseUint(id.text, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("invalid username: '%s' has the ID %q", name, id.text)
		}
		*id.to = uint32(number)
	}
	if self := os.Geteuid(); self != 0 && self != int(a.uid) {
		return account{}, fmt.Errorf("invalid username: linus-sandbox does not run as root, and can do nothing as '%s'", name)
	}
	groups, _ := u.GroupIds() // without them it has its primary group
	for _, g := range groups {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil {
			a.groups = append(a.groups, uint32(id))
		}
	}
	return a, nil
}

// caller returns the user that a call names by HTTP basic authentication.
func (s *Server) caller(ctx context.Context) (account, error) {
	name := ""
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		name, _, _ = (&http.Request{Header: info.RequestHeader()}).BasicAuth()
	}
	a, err := s.account(name)
	if err != nil {
		return a, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return a, nil
}

// path returns the absolute path of a client's path. Relative paths are in the user's home.
func (s *Server) path(a account, path string) (string, error) {
	s.mu.Lock()
	if path == "" {
		path = s.template.Workdir
	}
	s.mu.Unlock()
	switch {
	case len(path) > maxPath:
		return "", fmt.Errorf("path: %.100q... has more than %d bytes", path, maxPath)
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("path: %q has a NUL byte", path)
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = path[1:]
	case strings.HasPrefix(path, "~"):
		return "", fmt.Errorf("path: %q: cannot expand user-specific home dir: give the whole path", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join("/", a.home, path), nil
}

// mkdir makes a directory and its missing parents, owned by the user.
func (a account) mkdir(dir string) error {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return &os.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := a.mkdir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // a user's ordinary directory
		return err
	}
	return os.Lchown(dir, int(a.uid), int(a.gid))
}

// environment returns a process's environment: the user's variables, those of the template and
// /init, and the process's own.
func (s *Server) environment(a account, own map[string]string) []string {
	env := map[string]string{
		"PATH":        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME":        a.home,
		"USER":        a.name,
		"LOGNAME":     a.name,
		"E2B_SANDBOX": "true",
	}
	s.given(env)
	maps.Copy(env, own)
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

func (s *Server) getEnvs(w http.ResponseWriter, _ *http.Request) {
	env := map[string]string{"E2B_SANDBOX": "true"}
	s.given(env)
	answer(w, http.StatusOK, env)
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails if the client is gone
}

// refuse answers with an error in E2B's format.
func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	answer(w, status, map[string]any{"code": status, "message": err.Error()})
}

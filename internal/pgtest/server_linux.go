package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"linus/internal/loops"
)

// Server is a running PostgreSQL server.
type Server struct {
	bin, dir string
	cred     *syscall.Credential // to run as; nil: as this process
	process  *exec.Cmd
	ended    chan struct{}

	mu   sync.Mutex
	made int      // number of databases made
	free []string // databases that no test uses
}

// Start starts a server for one test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := start(t)
	t.Cleanup(s.remove)
	return s
}

func start(t testing.TB) *Server {
	t.Helper()
	loops.NotInCheck(t)
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("PostgreSQL's server is not installed: apt-get install postgresql")
	}
	dir, err := os.MkdirTemp("", "linus-pg-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{bin: filepath.Dir(found[len(found)-1]), dir: dir, cred: unprivileged(t)}
	if s.cred != nil {
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	initdb := s.command("initdb", "--no-sync", "--no-instructions", "-A", "trust", "-U", "linus", "-E", "UTF8", "--locale", "C.UTF-8", "-D", s.data())
	if out, err := initdb.CombinedOutput(); err != nil {
		s.remove()
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	if err := s.launch(); err != nil {
		s.remove()
		t.Fatal(err)
	}
	return s
}

// unprivileged returns the user to run the server as: it refuses to run as root.
func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		who, err = user.Lookup("nobody")
	}
	if err != nil {
		t.Fatal(err)
	}
	uid, uidErr := strconv.ParseUint(who.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(who.Gid, 10, 32)
	if uidErr != nil || gidErr != nil {
		t.Fatalf("user %s has the IDs %s and %s", who.Username, who.Uid, who.Gid)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// command returns a command of one of PostgreSQL's programs, which ends with this process.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	return cmd
}

// launch starts the server, and returns when it answers. The server does not sync: its own crash loses
// nothing, only one of the machine does.
func (s *Server) launch() error {
	log := &bytes.Buffer{}
	s.process = s.command("postgres", "-D", s.data(), "-k", s.dir,
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off",
		"-c", "shared_buffers=32MB", "-c", "max_connections=200", "-c", "max_wal_size=256MB", "-c", "log_min_messages=fatal")
	s.process.Stdout, s.process.Stderr = log, log
	s.ended = make(chan struct{})
	began := make(chan error)
	go func() { // Pdeathsig is sent when the thread that started the server ends
		runtime.LockOSThread()
		err := s.process.Start()
		began <- err
		if err == nil {
			_ = s.process.Wait()
		}
		close(s.ended)
	}()
	if err := <-began; err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.url("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.ended:
			return fmt.Errorf("PostgreSQL ended at once:\n%s", log)
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Restart ends the server as a crash would, and starts it again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Launch(t)
}

// Launch starts a server that was stopped.
func (s *Server) Launch(t testing.TB) {
	t.Helper()
	if err := s.launch(); err != nil {
		t.Error(err)
	}
}

// Stop ends the server at once, as pg_ctl -m immediate does.
func (s *Server) Stop() {
	if s.ended != nil {
		_ = s.process.Process.Signal(syscall.SIGQUIT)
		<-s.ended
	}
}

func (s *Server) remove() {
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/vm"
)

// In a sandbox's VM the program linus-sandbox serves requests for its programs and files, at a UNIX
// socket that only the login user and root may open: nothing of it is on the VM's network. It is
// installed and started when it is first needed, and again if it is gone.
const (
	sandboxSocket = "/run/linus-sandbox/socket"
	sandboxDir    = "/var/lib/linus/sandbox"
)

// asRoot runs an sh script as root, with its arguments.
const asRoot = `if [ "$(id -u)" = 0 ]; then exec sh -ec "$@"; else exec sudo -n sh -ec "$@"; fi`

// startSandbox starts the program that is named by its hash, or the template's program if it has
// the same hash. $1 is a prefix for every path, $2 the hash, $3 the login user. E2B's sandboxes
// have a user named user, whose home programs rely on: it is created if possible, which it may not
// be if accounts come from elsewhere.
const startSandbox = `socket=$1` + sandboxSocket + `
mkdir -p "${socket%/*}"
user=user
if ! id user >/dev/null 2>&1; then
  if [ -z "$1" ] && useradd --create-home --shell /bin/bash user 2>/dev/null; then
    echo 'user ALL=(ALL) NOPASSWD:ALL' 2>/dev/null >/etc/sudoers.d/linus-sandbox && chmod 440 /etc/sudoers.d/linus-sandbox || true
  else
    user=$3
  fi
fi
for program in "$1` + sandboxDir + `/$2" /usr/local/bin/linus-sandbox /usr/bin/linus-sandbox; do
  [ -x "$program" ] || continue
  [ "${program##*/}" = "$2" ] || [ "$(sha256sum <"$program" | cut -c 1-64)" = "$2" ] || continue
  "$program" serve --socket "$socket" --user "$user" --root "$1/" --detach </dev/null
  chown "$3" "$socket"
  chmod 600 "$socket"
  exit 0
done
exit 66`

// putSandbox installs the program, which comes compressed on stdin, unless it is already there.
const putSandbox = `umask 022
[ ! -x "$1` + sandboxDir + `/$2" ] || exit 0
mkdir -p "$1` + sandboxDir + `"
new=$(mktemp "$1` + sandboxDir + `/.new.XXXXXX")
trap 'rm -f "$new"' EXIT
gzip -dc >"$new"
[ "$(sha256sum <"$new" | cut -c 1-64)" = "$2" ] || { echo "the program arrived damaged" >&2; exit 1; }
chmod 755 "$new"
mv -f "$new" "$1` + sandboxDir + `/$2"
`

// sandboxProgram is the program as it is sent to VMs.
type sandboxProgram struct {
	packed []byte
	sum    string
}

func readSandboxProgram(path string) (p sandboxProgram, err error) {
	if path == "" {
		return p, &job.FieldError{Field: "sandbox", Problem: "linus-sandbox is missing, which serves sandboxes in their VMs", Remedy: "it comes with linus, beside the program linus; put it there", Fault: job.FaultState}
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return p, fmt.Errorf("read the program that serves sandboxes: %w", err)
	}
	sum := sha256.Sum256(program)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err = z.Write(program); err == nil {
		err = z.Close()
	}
	return sandboxProgram{packed.Bytes(), hex.EncodeToString(sum[:])}, err
}

// DialSandbox connects to the program that serves a sandbox in its VM, and starts it if it does not run.
func (g *Guest) DialSandbox(ctx context.Context, v vm.VM) (conn net.Conn, err error) {
	timed, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	ws, err := g.workspace(timed, v)
	if err != nil {
		return nil, err
	}
	select {
	case ws.conns <- struct{}{}:
	default:
		g.leave(ws)
		return nil, &job.FieldError{Field: "sandbox", Problem: fmt.Sprintf("VM %d has %d forwarded connections", v.ID, maxConns), Remedy: "end some commands, streams or watchers first", Fault: job.FaultLimit}
	}
	leave := sync.OnceFunc(func() {
		<-ws.conns
		g.leave(ws)
	})
	conn, err = g.dialSandbox(timed, ws)
	if err != nil {
		leave()
		return nil, g.workspaceFault(ctx, "reach the sandbox in", v, err)
	}
	return &sandboxConn{conn, leave}, nil
}

func (g *Guest) dialSandbox(ctx context.Context, ws *workspace) (conn net.Conn, err error) {
	socket := g.o.Root + sandboxSocket
	conn, err = ws.pool.DialUnix(ctx, socket)
	if remote.ClassOf(err) == remote.Lost && ctx.Err() == nil { // the VM was suspended or restarted
		conn, err = ws.pool.DialUnix(ctx, socket)
	}
	if !errors.Is(err, remote.ErrNotListening) {
		return conn, err
	}
	select { // only one caller starts it
	case ws.starting <- struct{}{}:
		defer func() { <-ws.starting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if conn, err = ws.pool.DialUnix(ctx, socket); !errors.Is(err, remote.ErrNotListening) {
		return conn, err
	}
	program, err := g.sandboxProgram()
	if err != nil {
		return nil, err
	}
	start := func() error { return g.sandboxScript(ctx, ws.pool, ws.vm, startSandbox, program, nil) }
	if err = start(); missing(err) {
		if err = g.sandboxScript(ctx, ws.pool, ws.vm, putSandbox, program, program.packed); err == nil {
			err = start()
		}
	}
	if err != nil {
		return nil, err
	}
	if conn, err = ws.pool.DialUnix(ctx, socket); errors.Is(err, remote.ErrNotListening) {
		err = &job.FieldError{Field: "sandbox", Problem: fmt.Sprintf("VM %d's SSH server does not connect to %s, at which linus-sandbox listens", ws.vm.ID, socket), Remedy: "set AllowStreamLocalForwarding there", Fault: job.FaultState}
	}
	return conn, err
}

// sandboxScript runs a script for linus-sandbox as root.
func (g *Guest) sandboxScript(ctx context.Context, pool *remote.Pool, v vm.VM, script string, program sandboxProgram, stdin []byte) error {
	return pool.Run(ctx, remote.Command{Name: "start linus-sandbox", Line: remote.Quote("sh", "-c", asRoot, "sh", script, "sh", g.o.Root, program.sum, v.User), Stdin: bytes.NewReader(stdin)})
}

// Leave closes the connections to a VM that belong to no job, because the VM is suspended or stopped:
// otherwise nothing would tell clients waiting at the other end that the connections are dead.
func (g *Guest) Leave(v vm.VM) {
	g.mu.Lock()
	ws := g.workspaces[v.Job]
	delete(g.workspaces, v.Job)
	g.mu.Unlock()
	if ws != nil {
		g.closing.Go(ws.close)
	}
}

// sandboxConn is a connection from a workspace.
type sandboxConn struct {
	net.Conn

	leave func()
}

func (c *sandboxConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

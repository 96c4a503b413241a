package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
)

// maxSocketPath is the longest path of a socket, in bytes without the final NUL, that all systems
// accept: 107 on Linux and Windows, 103 on macOS.
const maxSocketPath = 103

// socketName is the socket in the state directory, or a symbolic link to it if the directory's path
// is too long for a socket.
const socketName = "engine.sock"

// Listen creates the socket of the state directory dir. The caller holds the directory's lock, so
// an existing socket is dead.
func Listen(ctx context.Context, dir string) (net.Listener, error) {
	name := filepath.Join(dir, socketName)
	path := name
	if len(path) > maxSocketPath {
		short, err := shortDir()
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(dir))
		path = filepath.Join(short, hex.EncodeToString(sum[:8])+".sock")
	}
	for _, old := range []string{name, path} {
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove the old socket: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	err = os.Chmod(path, 0o600)
	if err == nil && path != name {
		err = os.Symlink(path, name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the socket: %w", err), l.Close())
	}
	return l, nil
}

// Socket returns the path at which to dial the engine of the state directory dir.
func Socket(dir string) string {
	name := filepath.Join(dir, socketName)
	if target, err := os.Readlink(name); err == nil {
		return target
	}
	return name
}

// shortDir returns a directory with a short path that only this user has access to.
func shortDir() (string, error) {
	dir := filepath.Join("/tmp", "linus-"+strconv.Itoa(os.Getuid()))
	if runtime.GOOS == "windows" {
		dir = filepath.Join(os.TempDir(), "linus")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("create a directory for the socket: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("create a directory for the socket: %w", err)
	}
	if !oursAlone(info) {
		return "", fmt.Errorf("%s belongs to another user, or others have access to it; remove it, or set LINUS_STATE_DIR to a shorter path", dir)
	}
	return dir, nil
}

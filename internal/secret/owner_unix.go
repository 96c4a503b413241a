//go:build unix

package secret

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// closed returns an error if other users can access a secrets file.
func closed(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return fault("", fmt.Sprintf("secrets file %s has mode %04o: others can read or change it", path, info.Mode().Perm()), "chmod 600 "+path)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		return fault("", fmt.Sprintf("secrets file %s is owned by user %d, linus runs as user %d", path, stat.Uid, os.Geteuid()), fmt.Sprintf("chown %d %s", os.Geteuid(), path))
	}
	return nil
}

// withoutWaiting opens a named pipe without waiting for its writer.
const withoutWaiting = syscall.O_NONBLOCK

//go:build unix

package control

import (
	"io/fs"
	"os"
	"syscall"
)

// oursAlone reports whether a directory belongs to this user and only this user has access.
func oursAlone(dir fs.FileInfo) bool {
	owner, ok := dir.Sys().(*syscall.Stat_t)
	return ok && dir.IsDir() && dir.Mode().Perm() == 0o700 && int(owner.Uid) == os.Getuid()
}

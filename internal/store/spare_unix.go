//go:build unix

package store

import "syscall"

// freeBytes returns how many bytes this user may still write to the file system of a directory.
func freeBytes(dir string) (free int64, known bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true //nolint:gosec,unconvert // the types differ between systems
}

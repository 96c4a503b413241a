//go:build unix

package config

import "io/fs"

// othersMayRead reports whether anybody but the file's owner can read it.
func othersMayRead(info fs.FileInfo) bool { return info.Mode().Perm()&0o044 != 0 }

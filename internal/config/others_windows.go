package config

import "io/fs"

// othersMayRead is always false on Windows, where a file's mode does not say who can read it: a
// user's own directories are closed to others there.
func othersMayRead(fs.FileInfo) bool { return false }

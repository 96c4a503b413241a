package config

import "io/fs"

// othersMayRead is not told by a file's mode on Windows: a user's own
// directories are closed to others there.
func othersMayRead(fs.FileInfo) bool { return false }

package secret

import "io/fs"

// closed is not told by a file's mode on Windows: a user's own directories are
// closed to others there.
func closed(string, fs.FileInfo) error { return nil }

// withoutWaiting is for named pipes, which are no files on Windows.
const withoutWaiting = 0

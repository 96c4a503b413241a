package secret

import "io/fs"

// closed checks nothing on Windows, where a file's mode does not say who can read it: other users
// have no access to a user's own directories.
func closed(string, fs.FileInfo) error { return nil }

// withoutWaiting is for named pipes, which are not files on Windows.
const withoutWaiting = 0

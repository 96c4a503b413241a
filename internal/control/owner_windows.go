package control

import "io/fs"

// oursAlone only checks for a directory: on Windows the temporary directory is the user's own.
func oursAlone(dir fs.FileInfo) bool { return dir.IsDir() }

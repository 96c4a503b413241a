package control

import "io/fs"

// oursAlone: the temporary directory of Windows is the user's own.
func oursAlone(dir fs.FileInfo) bool { return dir.IsDir() }

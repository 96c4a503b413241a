// Package lategc postpones garbage collection while a process starts, when little of the memory is
// garbage. Importing it is enough, even for what other packages allocate when they are initialized:
// Go initializes packages in the order of their paths, as soon as their imports are. This package
// imports next to nothing, so it comes before the packages that matter.
package lategc

import "runtime/debug"

var usual = debug.SetGCPercent(400)

// End restores normal garbage collection and returns the memory left over from the start, which a
// process that then waits would keep.
func End() {
	debug.SetGCPercent(usual)
	debug.FreeOSMemory()
}

// Package lategc puts garbage collection off while a process starts: little of what is
// made then is garbage. Importing it does so, even for what other packages make when they
// are initialized: Go initializes packages in the order of their paths, as soon as what
// they import is, so this one, which imports next to nothing, comes before those that
// matter.
package lategc

import "runtime/debug"

var usual = debug.SetGCPercent(400)

// End has garbage collected as usual, and gives back what the start has left: a process that
// waits from then on would keep it.
func End() {
	debug.SetGCPercent(usual)
	debug.FreeOSMemory()
}

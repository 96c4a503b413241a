//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifySize sends to changed when the terminal's size has changed.
func notifySize(changed chan<- os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }

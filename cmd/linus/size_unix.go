//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifySize sends to changed whenever the terminal's size changes.
func notifySize(changed chan<- os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }

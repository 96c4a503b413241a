package main

import "os"

// notifySize does nothing: Windows does not signal it.
func notifySize(chan<- os.Signal) {}

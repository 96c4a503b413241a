package main

import "os"

// notifySize does nothing: Windows sends no such signal.
func notifySize(chan<- os.Signal) {}

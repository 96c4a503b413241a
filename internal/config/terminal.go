package config

import "os"

// NoColor reports whether output should have no colours even on a terminal, because NO_COLOR is set
// (no-color.org) or the terminal has none.
func NoColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// ProcessorsGiven reports whether GOMAXPROCS sets the number of processors of this process.
func ProcessorsGiven() bool { return os.Getenv("GOMAXPROCS") != "" }

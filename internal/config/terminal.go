package config

import "os"

// NoColor reports whether output is to have no colours even on a terminal:
// NO_COLOR is set (no-color.org), or the terminal has no colours.
func NoColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

// ProcessorsGiven reports whether GOMAXPROCS says how many processors this process uses.
func ProcessorsGiven() bool { return os.Getenv("GOMAXPROCS") != "" }

package config

import "os"

// NoColor reports whether output shall have no colours on terminals either:
// NO_COLOR is set (no-color.org), or the terminal is one that has none.
func NoColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

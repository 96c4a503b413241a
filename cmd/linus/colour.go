package main

import (
	"fmt"

	"linus/internal/config"
)

// colours are for terminals only. Coloured columns stay aligned: the codes around
// each word have the same length, which is all tabwriter needs.
type colours bool

// colours reports whether text written to stream is coloured.
func (a *app) colours(stream any) colours { return colours(isTerminal(stream) && !config.NoColor()) }

// paint colours a status word. Other words, such as a column's title, get the
// terminal's default colour.
func (c colours) paint(word string) string {
	if !c {
		return word
	}
	colour := 39
	switch word {
	case "ok", "success", "running":
		colour = 32 // green
	case "warn", "warning:", "pending", "provisioning", "stopped", "suspended", "destroying", "unknown", "left_alone":
		colour = 33 // yellow
	case "fail", "failed", "timeout", "gone", "linus:":
		colour = 31 // red
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[39m", colour, word)
}

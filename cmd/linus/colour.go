package main

import (
	"fmt"

	"linus/internal/config"
)

// colours are for terminals only. A coloured column stays a column: whatever its
// words, the codes around them are equally long, which is all tabwriter needs.
type colours bool

// colours returns whether what is written to stream has colours.
func (a *app) colours(stream any) colours { return colours(isTerminal(stream) && !config.NoColor()) }

// word colours a word that tells how something stands. One without a colour of
// its own, such as a column's title, keeps the terminal's.
func (c colours) word(word string) string {
	if !c {
		return word
	}
	colour := 39
	switch word {
	case "ok", "success", "running":
		colour = 32 // green
	case "warn", "warning:", "pending", "provisioning", "stopped", "destroying", "unknown", "left_alone":
		colour = 33 // yellow
	case "fail", "failed", "timeout", "gone", "linus:":
		colour = 31 // red
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[39m", colour, word)
}

package pve

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"

	"linus/internal/lab/state"
)

// The process driver's guests share the machine's network, where nothing is limited: nft only
// stores the tables it is given. The qemu driver's host has the real nft.

// nft simulates `nft -f FILE`, `nft list chain|map|table` and `nft -c add table` for the table
// bridge linus only. A file must replace that table.
func (c *call) nft(args []string) error {
	path := c.s.Path("run", "nft-bridge-linus")
	switch {
	case len(args) == 2 && args[0] == "-f":
		text, err := os.ReadFile(args[1])
		if err != nil {
			return state.Fail(1, "internal:0:0-0: Error: Could not open file %q: No such file or directory", args[1])
		}
		rest, ok := strings.CutPrefix(string(text), "table bridge linus\ndelete table bridge linus\n")
		if !ok {
			return state.Fail(1, "the lab's nft takes files that replace table bridge linus only")
		}
		for _, chain := range regexp.MustCompile(`goto (\w+)`).FindAllStringSubmatch(rest, -1) {
			if !strings.Contains(rest, "chain "+chain[1]+" {") {
				return state.Fail(1, "Error: Could not process rule: No such file or directory\n%s", chain[0])
			}
		}
		if rest == "" {
			return os.RemoveAll(path)
		}
		return os.WriteFile(path, []byte(rest), 0o600)
	case slices.Equal(args, []string{"-c", "add", "table", "bridge", "linus"}):
		return nil
	case len(args) >= 4 && args[0] == "list" && args[2] == "bridge" && args[3] == "linus":
		text, err := os.ReadFile(path)
		if err != nil {
			return state.Fail(1, "Error: No such file or directory")
		}
		if len(args) == 4 && args[1] == "table" {
			_, err := c.stdout.Write(text)
			return err
		}
		for line := range bytes.Lines(text) {
			line := strings.TrimSpace(string(line))
			if len(args) == 5 && (strings.HasPrefix(line, args[1]+" "+args[4]+" {") || line == "add chain bridge linus "+args[4]) {
				_, err := c.stdout.Write([]byte(line + "\n"))
				return err
			}
		}
		return state.Fail(1, "Error: No such file or directory")
	}
	return state.Fail(1, "the lab's nft does not know %q", strings.Join(args, " "))
}

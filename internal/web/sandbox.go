package web

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"linus/internal/term"
	"linus/internal/vm"
)

// shownText is how many characters of a sandbox's metadata text the VM's page shows.
const shownText = 120

// metadataText is a text for display: shortened, and with every character visible.
type metadataText struct {
	Text  string
	Whole string // the full text if Text is cut; else empty
}

var lineEnds = strings.NewReplacer("\n", `\n`, "\t", `\t`)

func metadataTextOf(text string) metadataText {
	text = lineEnds.Replace(term.Visible(text))
	if utf8.RuneCountInString(text) <= shownText {
		return metadataText{Text: text}
	}
	return metadataText{string([]rune(text)[:shownText]) + "…", text}
}

// SandboxID returns the ID by which the program that uses the sandbox knows it.
func (v vmRow) SandboxID() string { return vm.SandboxID(v.Job) }

// Metadata returns what that program says about the sandbox, sorted by key.
func (v vmRow) Metadata() (rows [][2]metadataText) {
	of := v.VMInfo.Sandbox.Metadata
	for _, key := range slices.Sorted(maps.Keys(of)) {
		rows = append(rows, [2]metadataText{metadataTextOf(key), metadataTextOf(of[key])})
	}
	return rows
}

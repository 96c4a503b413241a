package web

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"linus/internal/term"
	"linus/internal/vm"
)

// shownText is how much of a text of a sandbox's metadata its VM's page shows, in characters.
const shownText = 120

// metadataText is a text as it is shown: everything in it is visible, and it is short.
type metadataText struct {
	Text  string
	Whole string // of one that is cut; empty: it is not
}

var lineEnds = strings.NewReplacer("\n", `\n`, "\t", `\t`)

func metadataTextOf(text string) metadataText {
	text = lineEnds.Replace(term.Visible(text))
	if utf8.RuneCountInString(text) <= shownText {
		return metadataText{Text: text}
	}
	return metadataText{string([]rune(text)[:shownText]) + "…", text}
}

// SandboxID is what the program that uses it knows it by.
func (v vmRow) SandboxID() string { return vm.SandboxID(v.Job) }

// Metadata is what that program says of it, by key.
func (v vmRow) Metadata() (rows [][2]metadataText) {
	of := v.VMInfo.Sandbox.Metadata
	for _, key := range slices.Sorted(maps.Keys(of)) {
		rows = append(rows, [2]metadataText{metadataTextOf(key), metadataTextOf(of[key])})
	}
	return rows
}

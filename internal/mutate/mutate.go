// Package mutate breaks guards, one at a time, to see that tests fail because of it: conditions
// under which a function returns, operands of && and ||, bounds, locks that are held. A file is
// broken at all its guards at once; while tests run, files in a directory say which mutant is in
// force. The package owns what is broken and how, and does not know what the guards are for.
package mutate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mutant is one guard, and how it is broken.
type Mutant struct {
	ID   int
	File string
	Line int
	Key  string // stays the same while other lines of the file change
}

// broken is a file that is being broken. Its lines stay where they are.
type broken struct {
	file, src, in string // in is the current function
	is            string // true while mutant ID is in force; leaves a mark that it was reached
	first         int
	inserted      []insertion
	mutants       []Mutant
}

type insertion struct {
	at     int
	closes bool
	text   string
}

// wrap adds a mutant: it puts the text from start to end between before and after, in which IS is
// true while the mutant is in force. Mutants of a whole are added before those of its parts.
func (b *broken) wrap(start, end int, what, text, before, after string) {
	m := Mutant{ID: b.first + len(b.mutants), File: b.file, Line: 1 + strings.Count(b.src[:start], "\n")}
	key := fmt.Sprintf("%s %s: %s: %s", b.file, b.in, what, strings.Join(strings.Fields(text), " "))
	key = strings.ToValidUTF8(key[:min(len(key), 200)], "")
	m.Key = key
	for nth := 2; slices.ContainsFunc(b.mutants, func(other Mutant) bool { return other.Key == m.Key }); nth++ {
		m.Key = fmt.Sprintf("%s (%d)", key, nth)
	}
	b.mutants = append(b.mutants, m)
	is := strings.ReplaceAll(b.is, "ID", strconv.Itoa(m.ID))
	b.inserted = append(b.inserted, insertion{start, false, strings.ReplaceAll(before, "IS", is)}, insertion{end, true, strings.ReplaceAll(after, "IS", is)})
}

func (b *broken) result() (string, []Mutant) {
	closing, opening, places := map[int]string{}, map[int]string{}, []int{len(b.src)}
	for _, i := range b.inserted {
		places = append(places, i.at)
		if i.closes {
			closing[i.at] = i.text + closing[i.at]
		} else {
			opening[i.at] += i.text
		}
	}
	slices.Sort(places)
	text, from := "", 0
	for _, at := range slices.Compact(places) {
		text += b.src[from:at] + closing[at] + opening[at]
		from = at
	}
	return text, b.mutants
}

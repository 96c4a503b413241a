package job

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxText bounds a text for people, in bytes: progress, an error, an event. It limits how much of a
// reader's time anyone, including a guest, can take.
const MaxText = 4096

// Bounded returns text as valid UTF-8 of at most MaxText bytes. It keeps the beginning and the end of
// a longer text, where causes and remedies are, with a mark between them that says how much was cut.
func Bounded(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= MaxText {
		return text
	}
	const mark = " ... [%d bytes cut] ... "
	room := MaxText - len(fmt.Sprintf(mark, len(text))) // the longest number possible here
	head, tail := strings.ToValidUTF8(text[:room*2/3], ""), strings.ToValidUTF8(text[len(text)-room/3:], "")
	return head + fmt.Sprintf(mark, len(text)-len(head)-len(tail)) + tail
}

package proxmox

import (
	"fmt"
	"strconv"

	"linus/internal/lazyregexp"
)

var semantic = lazyregexp.New(`^v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9A-Za-z.-]{1,60}))?(?:\+.*)?$`)

// edition returns a version as a text that sorts as versions do: a release behind what led up to
// it, and of that the later commit behind the earlier one. It is empty, before all others, where
// the version tells no order.
func edition(version string) string {
	m := semantic.FindStringSubmatch(version)
	if m == nil {
		return ""
	}
	text := ""
	for _, part := range m[1:4] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return ""
		}
		text += fmt.Sprintf("%09d.", n)
	}
	if m[4] == "" {
		return text + "~"
	}
	return text + m[4]
}

package proxmox

import (
	"fmt"
	"strconv"

	"linus/internal/lazyregexp"
)

var semantic = lazyregexp.New(`^v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?:-([0-9A-Za-z.-]{1,60}))?(?:\+.*)?$`)

// edition returns a version as a text that sorts like versions: a release after its pre-releases, and a
// later commit after an earlier one. It returns "", which sorts first, if the version is not comparable.
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

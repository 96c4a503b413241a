package guest

import (
	"strings"
	"testing"
)

func TestReadIndex(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	entry := func(fields ...string) string { return strings.Join(fields, "\x00") + "\x00" }
	good := entry("dist/a b\n", "/home/u/dist/a b\n", "3", "0644", sum)
	tests := []struct {
		name, index    string
		found, skipped int
		refused        bool
	}{
		{"nothing", "", 0, 0, false},
		{"one with blanks and newlines", good, 1, 0, false},
		{"name that is not UTF-8", good + entry("a\xff", "/a\xff", "3", "0644", sum) + good, 2, 1, false},
		{"name that leads out", entry("../a", "/a", "3", "0644", sum), 0, 1, false},
		{"absolute name", entry("/a", "/a", "3", "0644", sum), 0, 1, false},
		{"cut off", good[:len(good)-80], 0, 0, true},
		{"size in words", entry("a", "/a", "big", "0644", sum), 0, 0, true},
		{"negative size", entry("a", "/a", "-1", "0644", sum), 0, 0, true},
		{"relative source", entry("a", "a", "1", "0644", sum), 0, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, skipped, err := readIndex([]byte(tt.index))
			if len(found) != tt.found || len(skipped) != tt.skipped || (err != nil) != tt.refused {
				t.Errorf("found %+v, skipped %v, %v", found, skipped, err)
			}
		})
	}
}

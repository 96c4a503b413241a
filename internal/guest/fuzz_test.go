package guest

import (
	"encoding/hex"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
)

// Whatever a VM says of its files, what is found has a name that can be kept, and nothing
// that a terminal or a page would do more with than show it.
func FuzzReadIndex(f *testing.F) {
	sum := strings.Repeat("ab", 32)
	good := strings.Join([]string{"dist/a b", "/home/u/dist/a b", "3", "0644", sum, ""}, "\x00")
	for _, text := range []string{"", good, good + good, good[1:], "\x00", strings.ReplaceAll(good, "0644", "\x1b[31m"), strings.ReplaceAll(good, sum, strings.Repeat("\n", 64)), strings.ReplaceAll(good, "3", "+3")} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, index []byte) {
		var skipped job.SkippedArtifacts
		found, err := readIndex(index, &skipped)
		if err != nil && found != nil {
			t.Errorf("%d files besides %v", len(found), err)
		}
		for _, a := range found {
			bytes, err := hex.DecodeString(a.SHA256)
			if !fs.ValidPath(a.Path) || !path.IsAbs(a.Source) || a.Size < 0 || len(bytes) != 32 || err != nil || len(a.Mode) > 5 || strings.Trim(a.Mode, "01234567") != "" {
				t.Errorf("%+v", a)
			}
		}
	})
}

// What a VM says of a connection it has tried becomes one of the known results.
func FuzzReadAttempt(f *testing.F) {
	for _, said := range []string{"direct 10.0.0.1 connected", "direct - unresolved", "direct fe80::1%x refused", "proxy", "proxy HTTP/1.1 200 OK", "proxy HTTP/1.1 403 Forbidden linus: \x1b[2Jno", "proxy HTTP/1.1 502 x linus: y", "proxy HTTP/1."} {
		f.Add(said, strings.HasPrefix(said, "proxy"))
	}
	f.Fuzz(func(t *testing.T, said string, proxy bool) {
		a := job.NetworkAttempt{Way: job.WayDirect, Result: job.ResultUnknown}
		if proxy {
			a.Way = job.WayProxy
		}
		readAttempt(&a, said)
		if !slices.Contains(job.NetworkResults, a.Result) || strings.ContainsAny(a.Address+a.Detail, "\x1b\n\r\x00%") && a.Detail == "" || strings.ContainsAny(a.Detail, "\x1b\n\r\x00") {
			t.Errorf("%q: %+v", said, a)
		}
	})
}

package job

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// A target is an address or a name, and means the same when it is written out.
func FuzzParseNetworkTarget(f *testing.F) {
	for _, text := range []string{"github.com", "10.0.0.1:22", "[2001:db8::1]:443", "2001:db8::1", "[::1]", "a:0", "a:65536", "fe80::1%eth0", "-x", "x;y", "0x7f.1", "1.2.3", "[10.0.0.1", "a:+1", "a:01", "::ffff:10.0.0.1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseNetworkTarget(text)
		if err != nil {
			return
		}
		if _, err := netip.ParseAddr(target.Host); err != nil && strings.Trim(target.Host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.HasPrefix(target.Host, "-") || strings.Contains(target.Host, "%") {
			t.Errorf("%q: the host %q", text, target.Host)
		}
		written := net.JoinHostPort(target.Host, strconv.Itoa(target.Port))
		if again, err := ParseNetworkTarget(written); err != nil || again != target {
			t.Errorf("%q is %+v, and %q is %+v, %v", text, target, written, again, err)
		}
		if !strings.HasPrefix(text, "[") && strings.Contains(text, "]") || strings.HasPrefix(text, "[") && !strings.Contains(text, "]") {
			t.Errorf("%q has half of the brackets", text)
		}
	})
}

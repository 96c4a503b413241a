package job

import (
	"net/netip"
	"testing"
)

func TestParseAddresses(t *testing.T) {
	tests := []struct {
		text string
		size int // of the pool; 0: from the network, -1: refused
	}{
		{"dhcp", 0},
		{"auto6", 0},
		{"slaac", 0},
		{"dhcp6", 0},
		{"10.0.0.50/24", 1},
		{"10.0.0.50-10.0.0.99/24", 50},
		{"10.0.0.255-10.0.1.4/16", 6},
		{"2001:db8::10-2001:db8::1f/64", 16},
		{"2001:db8::5/64", 1},
		{"10.0.0.0-10.0.255.255/16", 65536},
		{"10.0.0.0-10.1.0.0/8", -1},
		{"2001:db8::-2001:db8::ffff:ffff/64", -1},
		{"10.0.0.99-10.0.0.50/24", -1},
		{"10.0.0.50-10.0.1.1/24", -1},
		{"10.0.0.50-2001:db8::1/24", -1},
		{"10.0.0.50", -1},
		{"10.0.0.50/0", -1},
		{"10.0.0.50/33", -1},
		{"10.0.0.50-/24", -1},
		{"10.0.0.50/24,gw=10.0.0.1", -1},
		{"fe80::1%eth0/64", -1},
		{"DHCP", -1},
		{"", -1},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			a, err := ParseAddresses(tt.text)
			switch {
			case tt.size < 0 && err == nil:
				t.Errorf("accepted as %+v", a)
			case tt.size >= 0 && (err != nil || a.Fixed() != (tt.size > 0) || a.Fixed() && a.Size() != tt.size):
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	pool, err := ParseAddresses("10.0.0.50-10.0.0.99/24")
	if err != nil || !pool.NetworkContains(netip.MustParseAddr("10.0.0.1")) || pool.NetworkContains(netip.MustParseAddr("10.0.1.1")) {
		t.Errorf("what %+v reaches is wrong (%v)", pool, err)
	}
}

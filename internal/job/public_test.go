package job

import (
	"net/netip"
	"testing"
)

func TestIsPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "9.9.9.9": true, "172.32.0.1": true, "168.63.129.15": true, "2606:4700::1111": true, "2620:fe::9": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.1.2.3": false, "172.16.0.1": false, "172.31.0.1": false, "192.168.1.1": false,
		"127.0.0.1": false, "169.254.169.254": false, "100.64.0.1": false, "100.127.255.255": false, "192.0.0.8": false, "192.0.2.1": false,
		"198.18.0.1": false, "198.51.100.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"168.63.129.16": false, "192.31.196.1": false, "192.175.48.6": false, "2620:4f:8000::6": false, "2001:4:112::1": false,
		"::": false, "::1": false, "::127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:9.9.9.9": false, "fe80::1": false, "fec0::1": false,
		"fc00::1": false, "fd00:ec2::254": false, "ff02::1": false, "64:ff9b::7f00:1": false, "2001::1": false, "2001:db8::1": false,
		"2002:a00:1::": false, "3fff::1": false,
	} {
		if got := IsPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

func TestIsPublicRange(t *testing.T) {
	for text, want := range map[string][2]bool{ // all of it, some of it
		"9.9.9.0/24": {true, true}, "9.9.9.9/32": {true, true}, "2620:fe::/48": {true, true}, "2600::/12": {true, true},
		"8.0.0.0/5": {false, true}, "0.0.0.0/0": {false, true}, "::/0": {false, true}, "2000::/3": {false, true}, "2000::/2": {false, true}, "172.0.0.0/8": {false, true}, "192.0.2.0/23": {false, true},
		"10.0.0.0/8": {}, "10.1.2.0/24": {}, "224.0.0.0/4": {}, "fc00::/7": {}, "fe80::/10": {}, "::/3": {}, "4000::/2": {}, "2001:db8:1::/48": {}, "::ffff:0:0/96": {},
	} {
		p := netip.MustParsePrefix(text)
		if got := [2]bool{IsPublicRange(p), HasPublic(p)}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

package proxmox

import "testing"

func TestEdition_SortsAsVersionsDo(t *testing.T) {
	versions := []string{
		"v0.9.12", "v0.10.0-0.20261101120000-ffffffffffff", "v0.10.0-0.20261127093000-0123456789ab+dirty", "0.10.0", "v0.10.1", "v1.0.0-rc.1", "v1.0.0", "v1.0.10",
	}
	last := edition("dev")
	if last != "" || edition("") != "" || edition("(devel)") != "" || edition("v1.2") != "" {
		t.Errorf("a version without order has edition %q", last)
	}
	for _, version := range versions {
		e := edition(version)
		if e <= last {
			t.Errorf("edition(%q) = %q does not come after %q", version, e, last)
		}
		last = e
	}
}

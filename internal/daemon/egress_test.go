package daemon

import (
	"net/http"
	"strings"
	"testing"
)

// A pool's VMs reach no more than the policy lets its maker's jobs reach.
func TestCreatePool_IsBoundedByThePolicysModes(t *testing.T) {
	t.Setenv("DEFAULT_EGRESS", "internet")
	t.Setenv("ALLOWED_EGRESS", "allow")
	t.Setenv("ALLOWED_EGRESS_NAMES", "*.npmjs.org")
	r := newAPIRig(t)
	for body, want := range map[string]string{
		`{"name":"lan","network":{"egress":"lan"}}`:                   `network.egress: \"lan\" is not allowed`,
		`{"name":"none","network":{"egress":"none"}}`:                 `network.egress: \"none\" is not allowed`,
		`{"name":"other","network":{"allow":["github.com"]}}`:         `network.allow: \"github.com\" is not allowed`,
		`{"name":"default"}`:                                          "",
		`{"name":"names","network":{"allow":["registry.npmjs.org"]}}`: "",
	} {
		status, text := r.send("POST", "/api/v1/pools", body)
		if (status == http.StatusCreated) != (want == "") || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d %s, want %q", body, status, text, want)
		}
	}
	if _, text := r.send("GET", "/api/v1/pools", ""); strings.Contains(string(text), `"name":"lan"`) || !strings.Contains(string(text), `"name":"names"`) {
		t.Errorf("pools: %s", text)
	}
}

package policy_test

import (
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
)

func TestBounds_PortsOfHostsToNotify(t *testing.T) {
	for _, list := range []string{"ci.example:", "ci.example:0", "ci.example:65536", "ci.example:https", "ci.example:+443", ":443", "[fd00::5]:x"} {
		if _, err := policy.NewBounds(policy.Choices{Webhooks: list}); err == nil || !strings.Contains(err.Error(), "ALLOWED_WEBHOOKS") {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestBounds_WhomAJobMayNotify(t *testing.T) {
	for _, tt := range []struct {
		name, list, client, owner, url string
		unsigned                       bool
		says                           string // empty: allowed
		private                        bool
	}{
		{name: "the operator", client: "cli", url: "http://10.0.0.1/", private: true},
		{name: "the operator, by name", client: "web", owner: job.OperatorName, url: "http://10.0.0.1/", private: true},
		{name: "an MCP client", client: "mcp:x", url: "https://ci.example/", says: "only the operator's jobs notify"},
		{name: "a token", client: "api", owner: "alice", url: "https://ci.example/", says: "only the operator's jobs notify"},
		{name: "listed", list: "ci.example, *.hooks.example", client: "mcp", url: "https://CI.example.:8443/x", private: true},
		{name: "by a pattern", list: "ci.example, *.hooks.example", client: "api", owner: "alice", url: "https://a.hooks.example/x"},
		{name: "not listed", list: "ci.example", client: "mcp", url: "https://ci.example.evil.test/", says: "ALLOWED_WEBHOOKS allows ci.example"},
		{name: "a host in the path", list: "ci.example", client: "mcp", url: "https://evil.test/ci.example", says: "ALLOWED_WEBHOOKS allows"},
		{name: "at the port that is listed", list: "ci.example:8443", client: "mcp", url: "https://ci.example:8443/x", private: true},
		{name: "at its scheme's port", list: "ci.example:443", client: "mcp", url: "https://ci.example/x", private: true},
		{name: "at plain HTTP's port", list: "ci.example:80", client: "mcp", url: "http://ci.example/x", private: true},
		{name: "at another port", list: "ci.example:8443, other.example", client: "mcp", url: "https://ci.example/x", says: "\"ci.example:443\" is not allowed: ALLOWED_WEBHOOKS allows ci.example:8443, other.example"},
		{name: "at another port of a private host", list: "ci.example:8443, *.example", client: "mcp", url: "https://ci.example/x"},
		{name: "by a pattern with a port", list: "*.example:8443", client: "mcp", url: "https://ci.example:8443/x"},
		{name: "an address", list: "fd00::5", client: "mcp", url: "https://[fd00::5]:8443/x", private: true},
		{name: "an address and a port", list: "[fd00::5]:8443", client: "mcp", url: "https://[fd00::5]:8443/x", private: true},
		{name: "an address and another port", list: "[fd00::5]:8443", client: "mcp", url: "https://[fd00::5]/x", says: "ALLOWED_WEBHOOKS allows [fd00::5]:8443"},
		{name: "without a key", client: "cli", url: "https://ci.example/", unsigned: true, says: "WEBHOOK_SECRET", private: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := policy.NewBounds(policy.Choices{Webhooks: tt.list, Signs: !tt.unsigned})
			if err != nil {
				t.Fatal(err)
			}
			m := job.Manifest{Task: "x", AgentType: job.AgentScript, Notify: &job.Notify{URL: tt.url}}
			if err := m.Validate(); err != nil {
				t.Fatal(err)
			}
			err = b.Check(job.Submission{Client: tt.client, Principal: job.Principal{Name: tt.owner}, Manifest: m})
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %q", err, tt.says)
			}
			if got := b.NotifyPrivate(job.Job{Client: tt.client, Principal: tt.owner, Manifest: m}); got != tt.private {
				t.Errorf("private %v, want %v", got, tt.private)
			}
		})
	}
}

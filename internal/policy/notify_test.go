package policy_test

import (
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
)

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

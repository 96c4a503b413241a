package job_test

import (
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
)

func TestKeyCredential_IsForWhereTheAgentSendsItsKey(t *testing.T) {
	for _, tt := range []struct {
		agent   job.AgentType
		env     map[string]string
		secrets []string
		want    string // empty: none
	}{
		{"claude", nil, nil, "claude@api.anthropic.com"},
		{"codex", nil, nil, "codex@api.openai.com"},
		{"gemini", nil, nil, "gemini@generativelanguage.googleapis.com"},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://API.anthropic.com:443/"}, nil, "claude@api.anthropic.com"},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://gateway.example:8443/anthropic/"}, nil, "claude@gateway.example:8443/anthropic"},
		{"codex", map[string]string{"OPENAI_BASE_URL": "https://gateway.example/v1"}, nil, "codex@gateway.example/v1"},
		{"gemini", map[string]string{"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}, []string{"OTHER"}, "gemini@gateway.example"},
		{"claude", map[string]string{"OPENAI_BASE_URL": "http://10.0.0.5"}, nil, "claude@api.anthropic.com"},
		{"claude", map[string]string{"NO_PROXY": "registry.npmjs.org, .corp.example"}, nil, "claude@api.anthropic.com"},
		{"script", nil, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "http://gateway.example"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://10.0.0.5"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://[fd00::5]:8443"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://localhost:8443"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://ada:x@gateway.example"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://gateway.example/x?y=1"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://gateway.example/x/../y"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "gateway.example"}, nil, ""},
		{"claude", map[string]string{"ANTHROPIC_BASE_URL": "https://gateway.example/" + strings.Repeat("x", 500)}, nil, ""},
		{"claude", nil, []string{"ANTHROPIC_BASE_URL"}, ""},
		{"claude", nil, []string{"CLAUDE_CODE_OAUTH_TOKEN"}, ""},
		{"claude", map[string]string{"ANTHROPIC_AUTH_TOKEN": "x"}, nil, ""},
		{"codex", map[string]string{"CODEX_API_KEY": "x"}, nil, ""},
		{"codex", nil, []string{"https_proxy"}, ""},
		{"claude", map[string]string{"NODE_EXTRA_CA_CERTS": "/etc/corp.pem"}, nil, ""},
		{"claude", map[string]string{"no_proxy": "*"}, nil, ""},
		{"claude", map[string]string{"NO_PROXY": "a.example,.anthropic.com"}, nil, ""},
		{"claude", nil, []string{"NO_PROXY"}, ""},
	} {
		m := job.Manifest{AgentType: tt.agent, Env: tt.env, Secrets: tt.secrets}
		c, can := m.KeyCredential()
		if can != (tt.want != "") || c.Name != tt.want {
			t.Errorf("%s, %v, %v: %q, %v, want %q", tt.agent, tt.env, tt.secrets, c.Name, can, tt.want)
		}
		if same, ok := job.KeyCredential(c.Name); can && (!ok || same != c) {
			t.Errorf("%s is read as %+v", c.Name, same)
		}
	}
}

func TestKeyCredential_IsKnownByItsName(t *testing.T) {
	for name, want := range map[string]job.CredentialSpec{
		"claude@api.anthropic.com":              {Host: "api.anthropic.com", Header: "x-api-key", Env: "ANTHROPIC_API_KEY", Secret: "ANTHROPIC_API_KEY"},
		"claude@gateway.example:8443/anthropic": {Host: "gateway.example:8443", Path: "/anthropic", Header: "x-api-key", Env: "ANTHROPIC_API_KEY", Secret: "ANTHROPIC_API_KEY"},
		"codex@api.openai.com":                  {Host: "api.openai.com", Header: "Authorization: Bearer", Env: "OPENAI_API_KEY", Secret: "OPENAI_API_KEY"},
		"gemini@gateway.example":                {Host: "gateway.example", Header: "x-goog-api-key", Env: "GEMINI_API_KEY", Secret: "GEMINI_API_KEY"},
	} {
		want.Name = name
		got, ok := job.KeyCredential(name)
		if !ok || got.CredentialSpec != want || got.Chosen() != !strings.HasSuffix(name, ".com") || !got.OfAgent() {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
		if err := want.Validate(); err == nil || !strings.Contains(err.Error(), "name: ") {
			t.Errorf("somebody can add %s: %v", name, err)
		}
	}
	for _, name := range []string{"", "claude", "claude@", "other@api.anthropic.com", "claude@10.0.0.5", "claude@API.anthropic.com", "claude@a.example/../x", "claude@a.example:0", "claude@a@b.example", "claude@a.example/x y"} {
		if c, ok := job.KeyCredential(name); ok {
			t.Errorf("%q is %+v", name, c)
		}
	}
	m := job.Manifest{AgentType: "claude", Credentials: []string{"a", "claude@api.anthropic.com", "codex@api.openai.com"}}
	if got := m.WithoutKeyCredential().Credentials; !slices.Equal(got, []string{"a", "codex@api.openai.com"}) || len(m.Credentials) != 3 {
		t.Errorf("without: %v of %v", got, m.Credentials)
	}
}

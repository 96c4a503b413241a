package job_test

import (
	"strings"
	"testing"

	"linus/internal/job"
)

func TestCredential_CoversPathsThatEverybodyReadsAlike(t *testing.T) {
	for path, want := range map[string]bool{
		"/repos/acme/": true, "/repos/acme/x/y": true, "/repos/acme/x/": true, "/repos/acme/a%2Fb": true, "/repos/acme/.github": true, "/repos/acme/..x": true, "/repos/acme/caf%C3%A9": true,
		"/repos/acme": false, "/repos/acmex/": false, "/Repos/acme/": false, "/repos/other/": false, "": false, "*": false, "repos/acme/": false,
		"/repos/acme/..": false, "/repos/acme/../other": false, "/repos/acme/%2e%2e/other": false, "/repos/acme/%2E./other": false, "/repos/acme/.%2e/other": false,
		"/repos/acme/%252e%252e/other": false, "/repos/acme/%25252e%25252e/x": false, "/repos/acme/..%2fother": false, "/repos/acme/..%5cother": false, `/repos/acme/..\other`: false,
		"/repos/acme/..;/other": false, "/repos/acme/..;x=1/other": false, "/repos/acme/./x": false, "/repos/acme//x": false, "//repos/acme/x": false, "/repos/acme/%2f/x": false,
		"/repos/acme/x%00": false, "/repos/acme/x%0d%0aHost:y": false, "/repos%2facme/x": false, "/repos/%61cme/x": false, "/repos/acme/%25zz": false,
		"/repos/acme/..%3fx/other": false, "/repos/acme/..%23/other": false, "/repos/acme/..%253F": false, "/repos/acme/..%20/other": false, "/repos/acme/%20../x": false, "/repos/acme/.../x": false,
		"/repos/acme/%EF%BC%8E%EF%BC%8E/other": false, "/repos/acme/%E2%80%A4%E2%80%A4/other": false, "/repos/acme/.%E2%80%8B./other": false, "/repos/acme/%E2%80%A5/other": false, "/repos/acme/%EF%B8%B0/x": false,
		"/repos/acme/..%C2%AD/other": false, "/repos/acme/..%EF%BC%8Fother": false, "/repos/acme/..%E2%88%95other": false, "/repos/acme/..%C2%A0/other": false, "/repos/acme/%E3%80%82%E3%80%82/x": false, "/repos/acme/caf%C3%A9/%E6%97%A5%E6%9C%AC.md": true,
		"/repos/acme/%c0%ae%c0%ae/other": false, "/repos/acme/x%c0%afy": false, "/repos/acme/a%3fb": true, "/repos/acme/compare/main...fix": true, "/repos/acme/a%20b": true,
	} {
		if got := (job.CredentialSpec{Path: "/repos/acme/"}).Covers(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
	for path, want := range map[string]bool{"/v1": true, "/v1/x": true, "/v1x": false, "/v2": false} {
		if got := (job.CredentialSpec{Path: "/v1"}).Covers(path); got != want {
			t.Errorf("%s below /v1: %v", path, got)
		}
	}
}

func TestCredential_RefusesWhatItCannotBe(t *testing.T) {
	good := job.CredentialSpec{Name: "github", Host: "api.github.com", Header: "Authorization: Bearer", Path: "/repos/acme/", Env: "GITHUB_TOKEN"}
	for _, change := range []func(*job.CredentialSpec){
		func(*job.CredentialSpec) {}, func(s *job.CredentialSpec) { s.Host = "git.example:8443" }, func(s *job.CredentialSpec) { s.Header = "x-api-key" },
		func(s *job.CredentialSpec) { s.Header = "Authorization: Basic x-access-token" }, func(s *job.CredentialSpec) { s.Path, s.Env = "", "" },
	} {
		s := good
		if change(&s); s.Validate() != nil {
			t.Errorf("%+v: %v", s, s.Validate())
		}
	}
	for field, bad := range map[string][]func(*job.CredentialSpec, string){"name": {func(s *job.CredentialSpec, v string) { s.Name = v }}, "host": {func(s *job.CredentialSpec, v string) { s.Host = v }}, "path": {func(s *job.CredentialSpec, v string) { s.Path = v }}, "header": {func(s *job.CredentialSpec, v string) { s.Header = v }}, "env": {func(s *job.CredentialSpec, v string) { s.Env = v }}} {
		for _, v := range map[string][]string{
			"name":   {"", ".x", "a/b", "a b", strings.Repeat("x", 65)},
			"host":   {"", "10.0.0.1", "[::1]", "0x7f000001", "*.example.com", "https://api.github.com", "api.github.com/", "api.github.com:0", "api.github.com:x", "API.github.com", "api.github.com.", "a b", "user@host"},
			"path":   {"repos", "/a/../b", "/a//b", "/a?b", "/a#b", "/%2e%2e/", "/a b"},
			"header": {"", ": Bearer", "Host", "Content-Length: 5", "Transfer-Encoding", "a b: c", "Authorization: Bearer\r\nX", "Authorization: Basic", "Upgrade"},
			"env":    {"a-b", "1A", "LINUS_JOB_ID"},
		}[field] {
			s := good
			bad[0](&s, v)
			if err := s.Validate(); err == nil || !strings.Contains(err.Error(), field+": ") {
				t.Errorf("%s %q: %v", field, v, err)
			}
		}
	}
}

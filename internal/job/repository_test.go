package job_test

import (
	"strings"
	"testing"

	"linus/internal/job"
)

func TestRepository_Where(t *testing.T) {
	for url, want := range map[string]job.RepositoryURL{
		"https://github.com/acme/app":       {Host: "github.com", Port: "443", Path: "/acme/app"},
		"https://git.example:8443/a.git":    {Host: "git.example", Port: "8443", Path: "/a.git"},
		"ssh://git@git.example/acme/app":    {SSH: true, User: "git", Host: "git.example", Port: "22", Path: "/acme/app"},
		"ssh://git@git.example:2222/~a/app": {SSH: true, User: "git", Host: "git.example", Port: "2222", Path: "/~a/app"},
		"git@github.com:acme/app.git":       {SSH: true, User: "git", Host: "github.com", Port: "22", Path: "/acme/app.git"},
	} {
		if got, err := (job.Repository{URL: url}).Where(); err != nil || got != want {
			t.Errorf("%s: %+v, %v", url, got, err)
		}
	}
	for _, url := range []string{
		"", "x", "http://github.com/a", "git://github.com/a", "file:///etc", "/etc", "ext::sh -c id", "-uabc", "https://-x/a", "https://127.0.0.1/a", "https://[::1]/a",
		"https://github.com", "https://github.com/", "https://a:b@github.com/a", "https://token@github.com/a", "https://github.com/a?b", "https://github.com/a#b",
		"https://github.com/../a", "https://github.com/%2e%2e/a", "https://github.com/a\nb", "https://GitHub.com/a", "https://github.com:0/a", "https://github.com:99999/a",
		"ssh://github.com/a", "ssh://-oProxyCommand=x@github.com/a", "ssh://a:b@github.com/a", "-o@github.com:a", "git@-x:a", "git@github.com:../a", "git@github.com:a b",
		"https://github.com/" + strings.Repeat("a", 2000),
	} {
		if got, err := (job.Repository{URL: url}).Where(); err == nil {
			t.Errorf("%q is %+v", url, got)
		}
	}
	for url, want := range map[string]string{"https://a.example/x/app.git": "app", "git@a.example:app": "app", "https://a.example/x/.git": "repository", "https://a.example/x/.ssh": "ssh", "https://a.example/a%20b": "a-20b"} {
		if got := (job.Repository{URL: url}).Name(); got != want {
			t.Errorf("%s is named %q, want %q", url, got, want)
		}
	}
}

func TestManifest_RepositoryIsChecked(t *testing.T) {
	const https, ssh = "https://github.com/acme/app", "git@github.com:acme/app"
	for name, of := range map[string]struct {
		r     job.Repository
		push  string
		field string // that is wrong; empty: none is
	}{
		"none":                     {},
		"public":                   {r: job.Repository{URL: https, Ref: "release/1.x", Path: "/srv/app"}},
		"a push":                   {r: job.Repository{URL: https, Credential: "git"}, push: "fix/issue-7"},
		"no URL":                   {r: job.Repository{Ref: "main"}, field: "manifest.repository.url"},
		"a bad URL":                {r: job.Repository{URL: "file:///etc"}, field: "manifest.repository.url"},
		"SSH without a key":        {r: job.Repository{URL: ssh}, field: "manifest.repository.credential"},
		"SSH":                      {r: job.Repository{URL: ssh, Credential: "deploy"}},
		"large files":              {r: job.Repository{URL: https, LFS: true}},
		"large files by SSH":       {r: job.Repository{URL: ssh, Credential: "deploy", LFS: true}, field: "manifest.repository.lfs"},
		"an option as a ref":       {r: job.Repository{URL: https, Ref: "--upload-pack=x"}, field: "manifest.repository.ref"},
		"a range as a ref":         {r: job.Repository{URL: https, Ref: "a..b"}, field: "manifest.repository.ref"},
		"a refspec as a ref":       {r: job.Repository{URL: https, Ref: "main:refs/heads/x"}, field: "manifest.repository.ref"},
		"a relative path":          {r: job.Repository{URL: https, Path: "app"}, field: "manifest.repository.path"},
		"the root":                 {r: job.Repository{URL: https, Path: "/srv/.."}, field: "manifest.repository.path"},
		"no name of a credential":  {r: job.Repository{URL: https, Credential: "../x"}, field: "manifest.repository.credential"},
		"a push from nowhere":      {push: "fix", field: "manifest.push.branch"},
		"a push without a key":     {r: job.Repository{URL: https}, push: "fix", field: "manifest.repository.credential"},
		"a push to a full ref":     {r: job.Repository{URL: https, Credential: "git"}, push: "refs/heads/main", field: "manifest.push.branch"},
		"a push to HEAD":           {r: job.Repository{URL: https, Credential: "git"}, push: "HEAD", field: "manifest.push.branch"},
		"a push to a commit":       {r: job.Repository{URL: https, Credential: "git"}, push: strings.Repeat("a", 40), field: "manifest.push.branch"},
		"a push to what git locks": {r: job.Repository{URL: https, Credential: "git"}, push: "a.lock", field: "manifest.push.branch"},
	} {
		m := job.Manifest{Task: "true", AgentType: job.AgentScript, Repository: of.r, Push: job.Push{Branch: of.push}}
		err := m.Validate()
		if (err == nil) != (of.field == "") || err != nil && !strings.HasPrefix(err.Error(), of.field+": ") {
			t.Errorf("%s: %v, want %q", name, err, of.field)
		}
	}
}

func TestCredential_ReadsARepository(t *testing.T) {
	https := job.CredentialSpec{Name: "git", Host: "github.com", Path: "/acme/", Header: "Authorization: Bearer"}
	ssh := job.CredentialSpec{Name: "deploy", Host: "github.com", HostKey: "ssh-ed25519 AAAA"}
	for _, of := range []struct {
		c    job.CredentialSpec
		url  string
		want string // of the error; empty: it is for it
	}{
		{https, "https://github.com/acme/app", ""},
		{https, "https://github.com/other/app", "is for paths that begin with /acme/"},
		{https, "https://github.com:8443/acme/app", "is for github.com, and not for github.com:8443"},
		{https, "git@github.com:acme/app", "is for HTTPS, and the repository is reached by SSH"},
		{ssh, "git@github.com:acme/app", ""},
		{ssh, "ssh://git@github.com:22/acme/app", ""},
		{ssh, "https://github.com/acme/app", "is a key for SSH, and the repository is reached by HTTPS"},
	} {
		err := of.c.Reads(job.Repository{URL: of.url})
		if (err == nil) != (of.want == "") || err != nil && !strings.Contains(err.Error(), of.want) {
			t.Errorf("%s, %s: %v", of.c.Name, of.url, err)
		}
	}
	one := job.CredentialSpec{Name: "git", Host: "github.com", Path: "/acme/app", Header: "Authorization: Bearer"}
	if err := one.Reads(job.Repository{URL: "https://github.com/acme/app"}); err != nil {
		t.Error(err)
	}
	if err := one.Reads(job.Repository{URL: "https://github.com/acme/app", LFS: true}); err == nil || !strings.Contains(err.Error(), "large files are at /acme/app.git/info/lfs") {
		t.Error(err)
	}
	if ssh.Covers("/acme/app") {
		t.Error("a key for SSH is added to requests")
	}
	ssh.Header = "Authorization"
	for _, c := range []job.CredentialSpec{ssh, {Name: "a", Host: "github.com", HostKey: "no key"}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "host_key: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	ssh.Header = ""
	for text, ok := range map[string]bool{"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----": true, "a token of some length": false, "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED": false} {
		if err := ssh.CheckValue(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

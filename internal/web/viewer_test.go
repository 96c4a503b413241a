package web_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/web"
)

// A verb that the engine has not is nobody's: a template that names one would offer nothing.
func TestTemplates_NameVerbsThatThereAre(t *testing.T) {
	files, err := filepath.Glob("templates/*.html")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, asked := range regexp.MustCompile(`\.May "(\w*)"`).FindAllStringSubmatch(string(text), -1) {
			if !slices.ContainsFunc(job.Verbs(), func(v *job.Verb) bool { return v.Name == asked[1] }) {
				t.Errorf("%s asks for the verb %s, which there is not", name, asked[1])
			}
		}
	}
}

// What a role may not do is not offered.
func TestPages_OfferWhatTheRoleMayDo(t *testing.T) {
	offered := []struct {
		path, what string
		least      job.Role
	}{
		{"/jobs", `id="new-job"`, job.RoleRun},
		{"/jobs", `href="/pools"`, job.RoleAdmin},
		{"/jobs", `href="/nodes"`, job.RoleAdmin},
		{"/jobs", `href="/tokens"`, job.RoleAdmin},
		{"/jobs", `name="owner"`, job.RoleAdmin},
		{"/jobs", `href="/vms"`, job.RoleRead},
		{"/jobs/" + id, `id="cancel-now"`, job.RoleRun},
		{"/jobs/" + id, `id="kill-now"`, job.RoleRun},
		{"/jobs/" + id, `id="data"`, job.RoleRun},
		{"/jobs/" + id, `id="again"`, job.RoleRun},
		{"/jobs/" + id, `id="stdout"`, job.RoleRead},
		{"/vms", `id="new-vm"`, job.RoleRun},
		{"/vms", `/destroy"`, job.RoleRun},
		{"/vms/105", `action="/vms/105/suspend"`, job.RoleRun},
		{"/vms/105", `id="open-terminal"`, job.RoleRun},
		{"/vms/105", `id="take"`, job.RoleRun},
		{"/vms/kept", `/forget"`, job.RoleAdmin},
		{"/host", `id="test-host"`, job.RoleAdmin},
	}
	for _, role := range job.Roles {
		keys := &keyring{tokens: map[string]job.Principal{"linus_x": {Name: "alice", Token: "a1", Role: role}}}
		v := visitWith(t, web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
		v.do(http.MethodPost, "/login", "token=linus_x", nil)
		for _, o := range offered {
			if _, text := v.get(o.path); strings.Contains(text, o.what) != role.Includes(o.least) {
				t.Errorf("%s, %s: offered to %s is %v", o.path, o.what, role, !role.Includes(o.least))
			}
		}
	}
}

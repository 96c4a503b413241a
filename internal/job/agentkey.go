package job

import (
	"cmp"
	"net/url"
	"path"
	"slices"
	"strings"

	"linus/internal/agent"
)

// An agent's key is used like a credential whose name describes it completely:
// claude@api.anthropic.com, or codex@gateway.example:8443/v1. Credentials that people add cannot
// have names of this form.

// maxKeyCredential bounds the length of such a name.
const maxKeyCredential = 500

// KeyCredential returns the credential for an agent's key that a name describes. Its value is the
// server's secret with the name of the key's variable.
func KeyCredential(name string) (Credential, bool) {
	who, where, _ := strings.Cut(name, "@")
	a, known := agent.Named(who)
	if !known || len(name) > maxKeyCredential {
		return Credential{}, false
	}
	host, path := where, ""
	if at := strings.IndexByte(where, '/'); at >= 0 {
		host, path = where[:at], where[at:]
	}
	spec := CredentialSpec{Name: who, Host: host, Path: path, Header: a.Header, Env: a.Key, Secret: a.Key}
	if spec.Validate() != nil {
		return Credential{}, false
	}
	spec.Name = name
	return Credential{CredentialSpec: spec}, true
}

// Chosen reports whether the credential is an agent's key for a host that the job chose itself,
// which nobody has approved.
func (s CredentialSpec) Chosen() bool {
	who, _, key := strings.Cut(s.Name, "@")
	a, _ := agent.Named(who)
	return key && s.Host != a.Host
}

// OfAgent reports whether the credential is an agent's key.
func (s CredentialSpec) OfAgent() bool { return strings.Contains(s.Name, "@") }

// detours are variables that make programs bypass a job's proxy, or trust certificates other than
// the proxy's.
var detours = []string{"HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE"}

// KeyCredential returns the credential for the key of the manifest's agent. It returns false if the
// agent would send the key where the proxy cannot add it. The VM's network is not considered.
func (m Manifest) KeyCredential() (Credential, bool) {
	a, known := m.AgentType.Agent()
	if !known || slices.ContainsFunc(slices.Concat(detours, a.Logins), m.sets) || slices.Contains(m.Secrets, a.Base) {
		return Credential{}, false
	}
	base, err := url.Parse(cmp.Or(m.Env[a.Base], "https://"+a.Host))
	if err != nil || base.Scheme != "https" || base.User != nil || base.RawQuery != "" || base.Fragment != "" || m.direct(strings.ToLower(base.Hostname())) {
		return Credential{}, false
	}
	return KeyCredential(a.Name + "@" + strings.TrimSuffix(strings.ToLower(base.Host), ":443") + strings.TrimRight(base.EscapedPath(), "/"))
}

// WithoutKeyCredential returns the manifest without the credential for its agent's key, which the
// engine adds at submission: a manifest that is submitted again has it already.
func (m Manifest) WithoutKeyCredential() Manifest {
	m.Credentials = slices.DeleteFunc(slices.Clone(m.Credentials), func(name string) bool {
		_, key := KeyCredential(name)
		return key && strings.HasPrefix(name, string(m.AgentType)+"@")
	})
	return m
}

// NeedsAgent reports whether the VM's template must have the agent installed: the job runs the agent by its
// name in a VM cloned from a template, and the manifest neither brings a file of that name nor sets PATH.
func (m Manifest) NeedsAgent() bool {
	_, known := m.AgentType.Agent()
	brought := slices.ContainsFunc(m.Files, func(f File) bool { return path.Base(f.Path) == string(m.AgentType) })
	return known && m.VM == "" && m.OS == "" && m.Agent.Command == "" && len(m.Volumes) == 0 && !brought && !m.sets("PATH")
}

// sets reports whether the manifest's env or secrets set a variable for the task.
func (m Manifest) sets(variable string) bool {
	_, given := m.Env[variable]
	return given || slices.Contains(m.Secrets, variable)
}

// direct reports whether requests to a host bypass the proxy.
func (m Manifest) direct(host string) bool {
	list := []string{"localhost"}
	for _, variable := range []string{"NO_PROXY", "no_proxy"} {
		if slices.Contains(m.Secrets, variable) {
			return true
		}
		list = append(list, strings.FieldsFunc(m.Env[variable], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	return slices.ContainsFunc(list, func(entry string) bool {
		name := strings.TrimLeft(strings.ToLower(entry), "*.")
		return name == "" || name == host || strings.HasSuffix(host, "."+name)
	})
}

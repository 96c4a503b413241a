package job

import (
	"cmp"
	"net/url"
	"path"
	"slices"
	"strings"

	"linus/internal/agent"
)

// The key of an agent is used like a credential, of a name that says all about it: claude@api.anthropic.com,
// or codex@gateway.example:8443/v1. No credential that somebody adds can have such a name.

// maxKeyCredential bounds such a name.
const maxKeyCredential = 500

// KeyCredential returns the credential of a name that stands for an agent's key. Its value is
// the server's secret of the key's name.
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

// Chosen reports whether the credential is an agent's key for a host that a job has chosen: nobody
// has vouched for that.
func (s CredentialSpec) Chosen() bool {
	who, _, key := strings.Cut(s.Name, "@")
	a, _ := agent.Named(who)
	return key && s.Host != a.Host
}

// OfAgent reports whether the credential is an agent's key.
func (s CredentialSpec) OfAgent() bool { return strings.Contains(s.Name, "@") }

// detours are variables that lead programs past a job's proxy, or have them trust others than it.
var detours = []string{"HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE"}

// KeyCredential returns the credential that stands for the key of the manifest's agent; false: the agent
// would not send it to where that can be added. It says nothing about the VM's network.
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

// WithoutKeyCredential returns the manifest without the credential that stands for its agent's key, as one
// has that was submitted before.
func (m Manifest) WithoutKeyCredential() Manifest {
	m.Credentials = slices.DeleteFunc(slices.Clone(m.Credentials), func(name string) bool {
		_, key := KeyCredential(name)
		return key && strings.HasPrefix(name, string(m.AgentType)+"@")
	})
	return m
}

// NeedsAgent reports whether the VM's template must have the agent: it runs by its name, in
// a VM cloned from one, and the manifest brings nothing of that name, nor looks elsewhere for it.
func (m Manifest) NeedsAgent() bool {
	_, known := m.AgentType.Agent()
	brought := slices.ContainsFunc(m.Files, func(f File) bool { return path.Base(f.Path) == string(m.AgentType) })
	return known && m.VM == "" && m.OS == "" && m.Agent.Command == "" && len(m.Volumes) == 0 && !brought && !m.sets("PATH")
}

// sets reports whether the task has a variable by the manifest's env or secrets.
func (m Manifest) sets(variable string) bool {
	_, given := m.Env[variable]
	return given || slices.Contains(m.Secrets, variable)
}

// direct reports whether a host is reached past the proxy.
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

package config_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
	"linus/internal/doctest"
	"linus/internal/job"
)

var update = flag.Bool("update", false, "write .env.example and the documents' table anew")

// clean unsets every setting of ours for the length of the test, and looks for
// an env file where there is none.
func clean(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, s := range config.Table() {
		if value, ok := os.LookupEnv(s.Name); ok {
			if err := os.Unsetenv(s.Name); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Setenv(s.Name, value) })
		}
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "LINUS_SECRET_") {
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Setenv(name, value) })
		}
	}
}

func TestLoad_LongTextsHaveABound(t *testing.T) {
	tests := []struct {
		name, char string
		most       int
	}{{"PROXMOX_HOST", "h", 254}, {"CALLBACK_HOST", "h", 254}, {"PROXMOX_NODE", "n", 63}, {"HTTP_TOKEN", "t", 512}}
	for _, tt := range tests {
		for n, want := range map[int]bool{tt.most: true, tt.most + 1: false} {
			clean(t)
			t.Setenv(tt.name, strings.Repeat(tt.char, n))
			if _, err := config.Load(config.Sources{}); (err == nil) != want || err != nil && !strings.Contains(err.Error(), tt.name+": ") {
				t.Errorf("%s of %d characters: %v", tt.name, n, err)
			}
		}
	}
	clean(t)
	t.Setenv("HTTP_TOKEN", strings.Repeat("t", 15))
	if _, err := config.Load(config.Sources{}); err == nil {
		t.Error("HTTP_TOKEN of 15 characters is accepted")
	}
}

func TestLoad_DefaultsAreTheContracts(t *testing.T) {
	clean(t)
	t.Setenv("HOME", "/home/ada")
	t.Setenv("XDG_STATE_HOME", "")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(c.CallbackHost, c.CallbackPort, c.DefaultVMTemplate, c.DefaultTimeout, c.DefaultCPU, c.DefaultMemory, c.DefaultDisk,
		c.HeartbeatThreshold, c.CleanupInterval, c.ProxmoxSSHPort, c.ProxmoxSSHUser, c.ProxmoxStorage, c.ProxmoxBridge, c.ProxmoxVMIDRange,
		c.VMIPConfig, int64(c.MaxOutputSize), c.ProxmoxKnownHosts, c.StateDir)
	want := fmt.Sprint("0.0.0.0", 8765, "agent-template", 3600, 2, "2G", "10G", 120, 30, 22, "root", "local-lvm", "vmbr0", "100-999",
		"dhcp", 10<<20, "/home/ada/.ssh/known_hosts", "/home/ada/.local/state/linus")
	if got != want {
		t.Errorf("defaults\n got %s\nwant %s", got, want)
	}
	if err := c.NeedHost(); err == nil || !strings.Contains(err.Error(), "PROXMOX_HOST: is not set") {
		t.Errorf("NeedHost() = %v, want PROXMOX_HOST named", err)
	}
}

func TestLoad_BadValueStopsTheStartWithNameProblemAndRule(t *testing.T) {
	tests := []struct {
		name  string
		env   map[string]string
		wants []string
	}{
		{"number with letters", map[string]string{"CALLBACK_PORT": "eight"}, []string{`CALLBACK_PORT: "eight" is not a whole number; give a whole number from 0 to 65535`}},
		{"number out of range", map[string]string{"CALLBACK_PORT": "70000"}, []string{`CALLBACK_PORT: "70000" is out of range`}},
		{"heartbeat below 30", map[string]string{"HEARTBEAT_THRESHOLD_SECONDS": "29"}, []string{"HEARTBEAT_THRESHOLD_SECONDS", "from 30"}},
		{"cleanup below 10", map[string]string{"CLEANUP_INTERVAL_SECONDS": "9"}, []string{"CLEANUP_INTERVAL_SECONDS", "from 10"}},
		{"no cores", map[string]string{"DEFAULT_CPU": "0"}, []string{"DEFAULT_CPU", "from 1 to 32"}},
		{"empty value of a setting with a default", map[string]string{"DEFAULT_MEMORY": ""}, []string{"DEFAULT_MEMORY: is empty", "unset it for 2G"}},
		{"memory in words", map[string]string{"DEFAULT_MEMORY": "two gigs"}, []string{`DEFAULT_MEMORY: "two gigs" is not valid; give 512M to 512G`}},
		{"memory too small", map[string]string{"DEFAULT_MEMORY": "100M"}, []string{"DEFAULT_MEMORY"}},
		{"disk too small", map[string]string{"DEFAULT_DISK": "1G"}, []string{"DEFAULT_DISK"}},
		{"template with a blank", map[string]string{"DEFAULT_VM_TEMPLATE": "my template"}, []string{"DEFAULT_VM_TEMPLATE"}},
		{"output size", map[string]string{"MAX_OUTPUT_SIZE": "lots"}, []string{`MAX_OUTPUT_SIZE: "lots" is not a size; give a value such as 10MB`}},
		{"output size too large", map[string]string{"MAX_OUTPUT_SIZE": "2G"}, []string{"MAX_OUTPUT_SIZE", "out of range"}},
		{"host with user", map[string]string{"PROXMOX_HOST": "root@pve"}, []string{"PROXMOX_HOST", "without user"}},
		{"host as URL", map[string]string{"PROXMOX_HOST": "https://pve:8006"}, []string{"PROXMOX_HOST"}},
		{"host that is an option", map[string]string{"PROXMOX_HOST": "-oProxyCommand=x"}, []string{"PROXMOX_HOST"}},
		{"VM ID range backwards", map[string]string{"PROXMOX_VMID_RANGE": "900-100"}, []string{"PROXMOX_VMID_RANGE"}},
		{"VLAN", map[string]string{"PROXMOX_VLAN_TAG": "5000"}, []string{"PROXMOX_VLAN_TAG", "from 1 to 4094"}},
		{"script directory relative", map[string]string{"PROXMOX_SCRIPT_DIR": "scripts"}, []string{"PROXMOX_SCRIPT_DIR"}},
		{"callback on localhost", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://localhost:8765"}, []string{"CALLBACK_URL", "inside a VM, localhost is the VM itself"}},
		{"callback on 127.0.0.1", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://127.0.0.1:8765"}, []string{"CALLBACK_URL"}},
		{"callback on another loopback address", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://127.8.9.10:8765"}, []string{"CALLBACK_URL"}},
		{"callback on IPv6 loopback", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://[::1]:8765"}, []string{"CALLBACK_URL"}},
		{"callback on a name of localhost's", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://linus.localhost:8765"}, []string{"CALLBACK_URL"}},
		{"callback on every address", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://0.0.0.0:8765"}, []string{"CALLBACK_URL"}},
		{"callback on every IPv6 address", map[string]string{"PROXMOX_HOST": "pve", "CALLBACK_URL": "http://[::]:8765"}, []string{"CALLBACK_URL"}},
		{"callback without scheme", map[string]string{"CALLBACK_URL": "10.0.0.1:8765"}, []string{"CALLBACK_URL"}},
		{"log level", map[string]string{"LINUS_LOG_LEVEL": "loud"}, []string{"LINUS_LOG_LEVEL", "debug, info, warn, error"}},
		{"fixed address for many", map[string]string{"VM_IP_CONFIG": "10.0.0.5/24"}, []string{"MAX_JOBS"}},
		{"more jobs than addresses", map[string]string{"VM_IP_CONFIG": "10.0.0.5-10.0.0.9/24", "MAX_JOBS": "6"}, []string{"MAX_JOBS"}},
		{"gateway elsewhere", map[string]string{"VM_IP_CONFIG": "10.0.0.5-10.0.0.50/24", "VM_GATEWAY": "10.0.1.1"}, []string{"VM_GATEWAY"}},
		{"pool that is none", map[string]string{"VM_IP_CONFIG": "10.0.0.50-10.0.0.5/24"}, []string{"VM_IP_CONFIG"}},
		{"gateway with dhcp", map[string]string{"VM_GATEWAY": "10.0.0.1"}, []string{"VM_GATEWAY"}},
		{"nameserver", map[string]string{"VM_NAMESERVERS": "1.1.1.1, dns"}, []string{"VM_NAMESERVERS"}},
		{"mistyped name", map[string]string{"PROXMOX_HSOT": "pve"}, []string{"PROXMOX_HSOT: is not a setting; did you mean PROXMOX_HOST?"}},
		{"mistyped prefix", map[string]string{"PROXMX_STORAGE": "fast"}, []string{"did you mean PROXMOX_STORAGE?"}},
		{"memory limit in words", map[string]string{"LIMIT_MEMORY": "64 GB"}, []string{`LIMIT_MEMORY: "64 GB" is not valid; give 512M or more`}},
		{"memory limit no VM fits into", map[string]string{"LIMIT_MEMORY": "100M"}, []string{"LIMIT_MEMORY"}},
		{"negative limit", map[string]string{"LIMIT_JOBS": "-1"}, []string{"LIMIT_JOBS", "from 0"}},
		{"secret too short to mask", map[string]string{"LINUS_SECRET_PIN": "123"}, []string{"LINUS_SECRET_PIN: is shorter than 4 bytes", "longer value"}},
		{"secret without a name", map[string]string{"LINUS_SECRET_": "hunter2"}, []string{"LINUS_SECRET_: does not name a secret"}},
		{"secret with a name no manifest can have", map[string]string{"LINUS_SECRET_2": "hunter2"}, []string{"LINUS_SECRET_2: does not name a secret"}},
		{"mistyped name of the secrets file", map[string]string{"LINUS_SECRETS_FIEL": "x"}, []string{"did you mean LINUS_SECRETS_FILE?"}},
		{"sandboxes without a port", map[string]string{"E2B_ADDR": "127.0.0.1"}, []string{"E2B_ADDR", "127.0.0.1:8767"}},
		{"sandboxes on the network without TLS", map[string]string{"E2B_ADDR": "0.0.0.0:8767"}, []string{"E2B_ADDR", "HTTP_TLS_CERT", "E2B_INSECURE"}},
		{"sandboxes though commands are limited", map[string]string{"E2B_ADDR": "127.0.0.1:8767", "ALLOWED_COMMANDS": "git"}, []string{"E2B_ADDR", "ALLOWED_COMMANDS"}},
		{"sandboxes at a path", map[string]string{"E2B_URL": "https://linus.example/e2b"}, []string{"E2B_URL"}},
		{"ports of sandboxes below no domain", map[string]string{"E2B_DOMAIN": "*.boxes.example"}, []string{"E2B_DOMAIN", "sandboxes.example"}},
		{"ports of some sandboxes", map[string]string{"E2B_PUBLIC_PORTS": "some"}, []string{"E2B_PUBLIC_PORTS", "all"}},
		{"ports of sandboxes at no port", map[string]string{"E2B_DOMAIN": "boxes.example:0"}, []string{"E2B_DOMAIN", ":PORT"}},
		{"ports of sandboxes above this server", map[string]string{"E2B_DOMAIN": "example.org:8767", "HTTP_HOSTS": "linus.example.org"}, []string{"E2B_DOMAIN", "cookies"}},
		{"HTTP address without a port", map[string]string{"HTTP_ADDR": "127.0.0.1"}, []string{"HTTP_ADDR", "127.0.0.1:8766"}},
		{"HTTP on every address, unsaid", map[string]string{"HTTP_ADDR": ":8766"}, []string{"HTTP_ADDR"}},
		{"HTTP port out of range", map[string]string{"HTTP_ADDR": "127.0.0.1:70000"}, []string{"HTTP_ADDR"}},
		{"HTTP token too short", map[string]string{"HTTP_TOKEN": "secret"}, []string{`HTTP_TOKEN: "[redacted]" is not valid; give 16`}},
		{"HTTP token with a newline", map[string]string{"HTTP_TOKEN": "0123456789abcdef\n"}, []string{"HTTP_TOKEN"}},
		{"URL with a path", map[string]string{"HTTP_URL": "https://linus.example/x"}, []string{`HTTP_URL: "https://linus.example/x" is not valid; give https://HOST`}},
		{"no wildcard", map[string]string{"EXPOSE_DOMAIN": "vms.example"}, []string{`EXPOSE_DOMAIN: "vms.example" is not valid; give *. and a domain`}},
		{"wildcard of an address", map[string]string{"EXPOSE_DOMAIN": "*.127.0.0.1"}, []string{"EXPOSE_DOMAIN"}},
		{"this server's domain", map[string]string{"EXPOSE_DOMAIN": "*.vms.example", "HTTP_URL": "https://vms.example"}, []string{"EXPOSE_DOMAIN", "a domain of its own"}},
		{"a name below it", map[string]string{"EXPOSE_DOMAIN": "*.vms.example", "HTTP_HOSTS": "a.example Linus.vms.example"}, []string{"EXPOSE_DOMAIN", "a domain of its own"}},
		{"issuer without TLS", map[string]string{"OAUTH_ISSUER": "http://id.example", "OAUTH_AUDIENCE": "https://a.example/mcp"}, []string{`OAUTH_ISSUER: "http://id.example" is not valid; give https://HOST`}},
		{"issuer with a query", map[string]string{"OAUTH_ISSUER": "https://id.example/?a=b", "OAUTH_AUDIENCE": "https://a.example/mcp"}, []string{"OAUTH_ISSUER"}},
		{"issuer without an audience", map[string]string{"OAUTH_ISSUER": "https://id.example"}, []string{"OAUTH_AUDIENCE", "OAUTH_ISSUER is set"}},
		{"audience without an issuer", map[string]string{"OAUTH_AUDIENCE": "https://a.example/mcp"}, []string{"OAUTH_ISSUER", "OAUTH_AUDIENCE is set"}},
		{"certificates of no issuer", map[string]string{"OAUTH_CA_FILE": "/etc/ca.pem"}, []string{"OAUTH_CA_FILE", "give OAUTH_ISSUER"}},
		{"audience that is no URL", map[string]string{"OAUTH_ISSUER": "https://id.example", "OAUTH_AUDIENCE": "linus"}, []string{"OAUTH_AUDIENCE"}},
		{"audience without TLS", map[string]string{"OAUTH_ISSUER": "https://id.example", "OAUTH_AUDIENCE": "http://a.example/mcp"}, []string{"OAUTH_AUDIENCE"}},
		{"audience elsewhere on the server", map[string]string{"OAUTH_ISSUER": "https://id.example", "OAUTH_AUDIENCE": "https://a.example/api"}, []string{"OAUTH_AUDIENCE"}},
		{"logins of no issuer", map[string]string{"OIDC_ROLES": "devs=run"}, []string{"OIDC_ISSUER", "say who the issuer is"}},
		{"logins that say nothing else", map[string]string{"OIDC_ISSUER": "https://id.example"}, []string{"OIDC_CLIENT_ID", "OIDC_ROLES", "HTTP_URL", "to which browsers return"}},
		{"logins without TLS", logins("OIDC_ISSUER", "http://id.example"), []string{`OIDC_ISSUER: "http://id.example" is not valid; give https://HOST`}},
		{"logins back without TLS", logins("HTTP_URL", "http://linus.example"), []string{"HTTP_URL", "to which browsers return"}},
		{"logins back to nobody", logins("HTTP_HOSTS", "other"), []string{`HTTP_HOSTS: "other" is not valid; OIDC_ISSUER is set: also name the host of HTTP_URL`}},
		{"a role that is none", logins("OIDC_ROLES", "devs=user"), []string{`OIDC_ROLES: "devs=user" is not valid; give GROUP=ROLE`}},
		{"a group of two roles", logins("OIDC_ROLES", "devs=run,devs=admin"), []string{"OIDC_ROLES", "each group once"}},
		{"a role of no group", logins("OIDC_ROLES", "=run"), []string{"OIDC_ROLES"}},
		{"a group without a role", logins("OIDC_ROLES", "devs"), []string{"OIDC_ROLES"}},
		{"an empty entry of roles", logins("OIDC_ROLES", "devs=run,"), []string{"OIDC_ROLES"}},
		{"a client with a blank", logins("OIDC_CLIENT_ID", "li nus"), []string{"OIDC_CLIENT_ID"}},
		{"a claim with a blank", logins("OIDC_GROUPS_CLAIM", "my groups"), []string{"OIDC_GROUPS_CLAIM"}},
		{"scopes without openid", logins("OIDC_SCOPES", "profile"), []string{"OIDC_SCOPES", "openid among them"}},
		{"logins for ever", logins("OIDC_SESSION_HOURS", "1000"), []string{"OIDC_SESSION_HOURS", "from 1 to 168"}},
		{"audience with a slash", map[string]string{"OAUTH_ISSUER": "https://id.example", "OAUTH_AUDIENCE": "https://a.example/"}, []string{"OAUTH_AUDIENCE"}},
		{"database of another kind", map[string]string{"LINUS_DATABASE_URL": "mysql://linus:hunter2@db/linus"}, []string{`LINUS_DATABASE_URL: "[redacted]" is not valid; give postgres://`}},
		{"database without a name", map[string]string{"LINUS_DATABASE_URL": "postgres://linus:hunter2@db"}, []string{`LINUS_DATABASE_URL: "[redacted]" is not valid`}},
		{"database with a password that is not escaped", map[string]string{"LINUS_DATABASE_URL": "postgres://linus:hunter2%zz/@db/linus"}, []string{"special characters of the password as %XX"}},
		{"HTTP host with a port", map[string]string{"HTTP_HOSTS": "linus.example:443"}, []string{"HTTP_HOSTS", "without port"}},
		{"metrics' label that is no key", map[string]string{"METRIC_LABELS": "team, Site"}, []string{`METRIC_LABELS: "team, Site" is not valid; give at most 5 keys of labels`}},
		{"metrics' labels that become one", map[string]string{"METRIC_LABELS": "a-b,a/b"}, []string{"METRIC_LABELS"}},
		{"metrics' labels, too many", map[string]string{"METRIC_LABELS": "a,b,c,d,e,f"}, []string{"METRIC_LABELS"}},
		{"any origin", map[string]string{"HTTP_CORS_ORIGINS": "*"}, []string{`HTTP_CORS_ORIGINS: "*" is not valid; give origins as browsers send them`}},
		{"origin with a path, beside a right one", map[string]string{"HTTP_CORS_ORIGINS": "http://a.example, http://b.example/"}, []string{`HTTP_CORS_ORIGINS: "http://b.example/" is not valid`}},
		{"origin without a scheme", map[string]string{"HTTP_CORS_ORIGINS": "localhost:6274"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin without a host", map[string]string{"HTTP_CORS_ORIGINS": "http://:6274"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin of a file", map[string]string{"HTTP_CORS_ORIGINS": "null"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin of another scheme", map[string]string{"HTTP_CORS_ORIGINS": "ftp://a.example"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin with a user", map[string]string{"HTTP_CORS_ORIGINS": "http://ada@a.example"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin with the port browsers leave out", map[string]string{"HTTP_CORS_ORIGINS": "https://a.example:443"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin with an empty port", map[string]string{"HTTP_CORS_ORIGINS": "http://a.example:"}, []string{"HTTP_CORS_ORIGINS"}},
		{"origin in capitals", map[string]string{"HTTP_CORS_ORIGINS": "http://A.example"}, []string{"HTTP_CORS_ORIGINS"}},
		{"unknown toolset", map[string]string{"MCP_TOOLSETS": "jobs, exce"}, []string{`MCP_TOOLSETS: "jobs, exce" is not valid; use one or more of: jobs, exec, vm, files, admin`}},
		{"no toolset", map[string]string{"MCP_TOOLSETS": ","}, []string{"MCP_TOOLSETS"}},
		{"neither true nor false", map[string]string{"MCP_READ_ONLY": "yes"}, []string{`MCP_READ_ONLY: "yes" is neither true nor false; give true or false`}},
		{"two at once", map[string]string{"CALLBACK_PORT": "x", "DEFAULT_CPU": "y"}, []string{"CALLBACK_PORT", "DEFAULT_CPU"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			_, err := config.Load(config.Sources{})
			var bad *config.Error
			if !errors.As(err, &bad) {
				t.Fatalf("Load() = %v, want *config.Error", err)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// logins are valid settings of the login by OpenID Connect, but for one.
func logins(name, value string) map[string]string {
	s := map[string]string{"OIDC_ISSUER": "https://id.example/realms/team", "OIDC_CLIENT_ID": "linus", "OIDC_ROLES": "devs=run", "HTTP_URL": "https://linus.example", "HTTP_HOSTS": "other, Linus.example"}
	s[name] = value
	return s
}

func TestLoginRoles(t *testing.T) {
	clean(t)
	for name, value := range logins("OIDC_ROLES", "Domain Admins = admin, /team/a=b=run,*=read") {
		t.Setenv(name, value)
	}
	c, err := config.Load(config.Sources{})
	if diff := cmp.Diff(map[string]job.Role{"Domain Admins": job.RoleAdmin, "/team/a=b": job.RoleRun, "*": job.RoleRead}, c.LoginRoles()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestLoad_AcceptsWhatIsRight(t *testing.T) {
	for _, env := range []map[string]string{
		{"PROXMOX_HOST": "127.77.0.1", "CALLBACK_URL": "http://127.0.0.1:8765"},
		{"PROXMOX_HOST": "pve.example.org", "CALLBACK_URL": "https://callbacks.example.org"},
		{"CALLBACK_PORT": "0", "PROXMOX_NODE": "", "PROXMOX_VLAN_TAG": ""},
		{"ALLOWED_COMMANDS": "git, npm test\ngo *", "LIMIT_JOBS": "3", "LIMIT_CPU": "0", "LIMIT_MEMORY": "64G", "LIMIT_SECONDS": "3600"},
		{"LINUS_SECRETS_FILE": "", "LINUS_SECRET_FILE": "a secret named FILE", "LINUS_SECRET_STATE_DIR": "another"},
		{"MCP_TOOLSETS": "jobs,exec vm", "MCP_READ_ONLY": "true", "MCP_DISABLE_DESTRUCTIVE": "0"},
		{"HTTP_ADDR": "[::1]:0", "HTTP_TOKEN": "0123456789abcdef", "HTTP_HOSTS": "linus.example, linus"},
		{"HTTP_CORS_ORIGINS": "http://localhost:6274, https://a.example http://[::1] https://[::1]:80,http://127.0.0.1:443"},
		{"E2B_ADDR": "0.0.0.0:8767", "E2B_INSECURE": "true", "E2B_URL": "https://sandboxes.example"},
		{"E2B_DOMAIN": "boxes.example:8767", "E2B_PUBLIC_PORTS": "true", "HTTP_HOSTS": "linus.example"},
		{"E2B_ADDR": "0.0.0.0:8767", "HTTP_TLS_CERT": "/tmp/c", "HTTP_TLS_KEY": "/tmp/k"},
		{"HTTP_ADDR": "0.0.0.0:8766", "HTTP_PROXY": "http://proxy:3128"},
		{"VM_IP_CONFIG": "10.0.0.5/24", "VM_GATEWAY": "10.0.0.1", "MAX_JOBS": "1"},
		{"VM_IP_CONFIG": "10.0.0.50-10.0.0.99/24", "VM_GATEWAY": "10.0.0.1", "MAX_JOBS": "50"},
		{"VM_IP_CONFIG": "2001:db8::50-2001:db8::99/64", "VM_GATEWAY": "2001:db8::1"},
		{"VM_IP_CONFIG": "auto6"},
		{"EXPOSE_DOMAIN": "*.localhost", "HTTP_URL": "http://localhost:8766"}, {"EXPOSE_DOMAIN": "*.vms.example", "HTTP_URL": "https://linus.example", "HTTP_HOSTS": "linus.example vms-linus.example"},
		{"OAUTH_ISSUER": "https://id.example/realms/team/", "OAUTH_AUDIENCE": "https://linus.example:8766"},
		logins("OIDC_ROLES", "Domain Admins = admin, /team/a=b=run,*=read"), logins("HTTP_URL", "http://localhost:8766"), logins("OIDC_SCOPES", "openid,groups"), logins("OIDC_CLIENT_SECRET", "ä secret"),
		{"OAUTH_ISSUER": "http://127.0.0.1:4444", "OAUTH_AUDIENCE": "http://localhost:8766/mcp"},
		{"LINUS_DATABASE_URL": "postgres://linus:a%2Fb@db.example.org:5432/linus?sslmode=verify-full"},
		{"LINUS_DATABASE_URL": "postgresql:///linus?host=/run/postgresql"},
		{"PROXMOX_VE_ENDPOINT": "somebody else's", "VM_BOX": "x", "MAX_LOGS": "5", "CALLBACK_SECRET_KEY": "x"},
	} {
		t.Run(fmt.Sprint(env), func(t *testing.T) {
			clean(t)
			for name, value := range env {
				t.Setenv(name, value)
			}
			if _, err := config.Load(config.Sources{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSecret_ShowsItselfToNobody(t *testing.T) {
	clean(t)
	t.Setenv("PROXMOX_SSH_PASSWORD", "hunter2")
	t.Setenv("LINUS_SECRET_api_key", "hunter2=x")
	t.Setenv("LINUS_DATABASE_URL", "postgres://linus:hunter2@db/linus")
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials/linus")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Secrets["api_key"]; got.Reveal() != "hunter2=x" || len(c.Secrets) != 1 {
		t.Errorf("Secrets = %v", c.Secrets)
	}
	if c.CredentialsDirectory != "/run/credentials/linus" {
		t.Errorf("CredentialsDirectory = %q", c.CredentialsDirectory)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("settings", "password", c.ProxmoxSSHPassword)
	all := fmt.Sprintf("%v %+v %#v %s %s %v", c, c, c.ProxmoxSSHPassword, asJSON, log.String(), c.Effective())
	if strings.Contains(all, "hunter2") {
		t.Errorf("the password shows in %s", all)
	}
	if c.ProxmoxSSHPassword.Reveal() != "hunter2" {
		t.Error("Reveal() does not answer the password")
	}
}

func TestDiffers_ComparesOnlyWhatWasGiven(t *testing.T) {
	clean(t)
	t.Setenv("PROXMOX_HOST", "one")
	t.Setenv("PROXMOX_SSH_PASSWORD", "hunter2")
	t.Setenv("DEFAULT_CPU", "4")
	t.Setenv("LINUS_SECRET_SAME", "same here and there")
	t.Setenv("LINUS_SECRET_OLD", "rotated long ago")
	engine, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	clean(t)
	t.Setenv("PROXMOX_HOST", "two")
	t.Setenv("PROXMOX_SSH_PASSWORD", "hunter3")
	t.Setenv("LINUS_SECRET_OLD", "rotated today")
	t.Setenv("LINUS_SECRET_NEW", "not in the engine")
	t.Setenv("LINUS_LOG_LEVEL", "debug")
	t.Setenv("MCP_READ_ONLY", "true")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(c.Differs(engine.Effective()), "\n")
	if !strings.Contains(got, `PROXMOX_HOST is "two" here, "one" in the engine`) || !strings.Contains(got, "PROXMOX_SSH_PASSWORD") {
		t.Errorf("Differs() = %q, want host and password", got)
	}
	if !strings.Contains(got, "LINUS_SECRET_OLD") || !strings.Contains(got, `LINUS_SECRET_NEW is "[secret `) || strings.Contains(got, "LINUS_SECRET_SAME") {
		t.Errorf("Differs() = %q, want the changed and the new secret", got)
	}
	if strings.Contains(got, "DEFAULT_CPU") || strings.Contains(got, "LINUS_LOG_LEVEL") || strings.Contains(got, "MCP_") {
		t.Errorf("Differs() = %q names settings that were not given or are not the engine's", got)
	}
}

// The two files users copy settings from must list exactly what linus reads.
func TestTable_DocumentsAreCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	t.Run(".env.example", func(t *testing.T) {
		const head = "# Settings of linus, all of them, with their defaults. Copy the lines you need to\n" +
			"# ~/.config/linus/env (mode 0600 when there is a secret in it), or set them in the\n" +
			"# environment, which counts more. linus config shows what is in effect, and why.\n" +
			"# A value that is not valid stops the start.\n"
		var b strings.Builder
		b.WriteString(head)
		for _, s := range config.Table() {
			comment := "#"
			if s.Name == "PROXMOX_HOST" {
				comment = ""
			}
			fmt.Fprintf(&b, "\n# %s\n%s%s=%s\n", s.Text, comment, s.Name, s.Default)
		}
		current(t, filepath.Join(root, ".env.example"), func(string) string { return b.String() })
	})
	t.Run("settings", func(t *testing.T) {
		var b strings.Builder
		b.WriteString("| name | default | meaning |\n| --- | --- | --- |\n")
		for _, s := range config.Table() {
			value := s.Default
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Name, value, doctest.Cell(s.Text))
		}
		doctest.Keep(t, "settings", b.String(), *update)
	})
}

func current(t *testing.T, path string, want func(old string) string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	text := want(string(old))
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(old) != text {
		t.Errorf("%s is stale: run make golden", path)
	}
}

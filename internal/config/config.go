// Package config provides the settings of linus: their names, defaults and rules. Nothing else
// reads the environment and the env file. It does not know what the settings are used for.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// Config is every setting, validated. Names, defaults and texts are in the tags; Table, the
// documents and .env.example are generated from them. Fields tagged of:"process" are settings of a
// process rather than of the engine.
type Config struct {
	ProxmoxHost        string `envconfig:"PROXMOX_HOST" desc:"Name or address of the Proxmox VE host, reached by SSH, or an alias that ~/.ssh/config gives a HostName, whose Port, User and IdentityFile hold unless they are set here. Required for everything that touches VMs. Several, separated by commas, are entries of one cluster: when one does not answer, the next is asked."`
	ProxmoxSSHPort     int    `envconfig:"PROXMOX_SSH_PORT" default:"22" min:"1" max:"65535" desc:"SSH port of the host."`
	ProxmoxSSHUser     string `envconfig:"PROXMOX_SSH_USER" default:"root" desc:"SSH user on the host. Importing disk images needs root."`
	ProxmoxSSHKeyPath  string `envconfig:"PROXMOX_SSH_KEY_PATH" kind:"path" desc:"Private key file for the host. Empty: the SSH agent, then id_ed25519, id_ecdsa and id_rsa in ~/.ssh, then PROXMOX_SSH_PASSWORD."`
	ProxmoxSSHPassword Secret `envconfig:"PROXMOX_SSH_PASSWORD" desc:"Password for the host; a key is better."`
	ProxmoxKnownHosts  string `envconfig:"PROXMOX_KNOWN_HOSTS" default:"~/.ssh/known_hosts" kind:"path" desc:"known_hosts file with the host's key; linus host trust adds it."`
	ProxmoxScriptDir   string `envconfig:"PROXMOX_SCRIPT_DIR" default:"/var/lib/linus/scripts" desc:"Directory on the host where linus puts its scripts."`
	ProxmoxNode        string `envconfig:"PROXMOX_NODE" desc:"Proxmox node that all VMs go to. Empty: the host's own, unless PROXMOX_NODES is set."`
	ProxmoxNodes       string `envconfig:"PROXMOX_NODES" desc:"Nodes of a cluster that VMs are spread over as they have memory left, separated by commas, or all. Empty: VMs are not spread."`
	ProxmoxStorage     string `envconfig:"PROXMOX_STORAGE" default:"local-lvm" desc:"Storage for disks that are not clones of a template."`
	StorageReserve     int    `envconfig:"PROXMOX_STORAGE_RESERVE" default:"5" min:"0" max:"1000000" desc:"GiB that must stay free on a storage: below that, no VM is created on it, and no snapshot with memory is taken. A full storage pauses every VM on it. 0: none."`
	ProxmoxBridge      string `envconfig:"PROXMOX_BRIDGE" default:"vmbr0" desc:"Bridge of the VMs' network interface."`
	ProxmoxVLANTag     int    `envconfig:"PROXMOX_VLAN_TAG" min:"1" max:"4094" desc:"VLAN of the VMs' network interface. Empty: none."`
	ProxmoxTools       string `envconfig:"PROXMOX_TOOLS" default:"auto" desc:"How qm, pvesh and pvesm are called: auto (by a process on the host that has loaded their modules once, and ends a minute after its last call; by the tools themselves where that is not possible) or plain (always by the tools, each of which loads them again)."`
	ProxmoxVMIDRange   string `envconfig:"PROXMOX_VMID_RANGE" default:"100-999" desc:"VM IDs linus may use, first-last."`

	VMSSHUser     string `envconfig:"VM_SSH_USER" desc:"SSH user in the VMs, created if missing. Empty: the template's."`
	VMSSHPort     int    `envconfig:"VM_SSH_PORT" default:"22" min:"1" max:"65535" desc:"SSH port of the VMs."`
	VMIPConfig    string `envconfig:"VM_IP_CONFIG" default:"dhcp" desc:"dhcp; auto6 or dhcp6 (IPv6 only); an address with its prefix (192.168.1.50/24); or a pool (192.168.1.50-192.168.1.99/24), from which each VM gets one address, known before it boots."`
	VMGateway     string `envconfig:"VM_GATEWAY" desc:"Gateway for the addresses of VM_IP_CONFIG."`
	VMNameservers string `envconfig:"VM_NAMESERVERS" desc:"DNS servers of the VMs, separated by spaces or commas. Empty: the host's."`

	VMNetworkTimeout int `envconfig:"VM_NETWORK_TIMEOUT" default:"300" min:"10" max:"86400" desc:"Seconds a started VM may take to get an address."`
	VMReadyTimeout   int `envconfig:"VM_READY_TIMEOUT" default:"600" min:"10" max:"86400" desc:"Seconds a VM with an address may take to finish its first boot."`

	VMRouted        bool `envconfig:"VM_ROUTED" default:"false" desc:"true: the Proxmox node reaches VMs through a router, as in a VLAN in which it has no address, so it cannot check which network card answers at an address and relies on what the guests say. Fixed addresses in VM_IP_CONFIG are safer."`
	VMTrustFirstUse bool `envconfig:"VM_TRUST_FIRST_USE" default:"false" desc:"true: VMs without a working guest agent are accepted, at the address the node's neighbour table has for their network card, with whatever SSH host key is presented there first. Jobs with secrets do not run in them."`

	CallbackHost string `envconfig:"CALLBACK_HOST" default:"0.0.0.0" desc:"Address to listen on for the VMs' callbacks. With a loopback address (127.0.0.1) callbacks come through the SSH connections to the VMs."`
	CallbackPort int    `envconfig:"CALLBACK_PORT" default:"8765" min:"0" max:"65535" desc:"Port to listen on for the VMs' callbacks. 0: any free one."`
	CallbackURL  string `envconfig:"CALLBACK_URL" desc:"URL given to the VMs. Empty: the address and port listened on; if that is all addresses, this machine's address towards the host."`

	HTTPAddr        string `envconfig:"HTTP_ADDR" of:"process" desc:"Address and port (127.0.0.1:8766) at which linus serve offers MCP, downloads and the web page over HTTP. Empty: disabled."`
	HTTPToken       Secret `envconfig:"HTTP_TOKEN" of:"process" desc:"Token that HTTP clients must send, 16 characters or more. Empty: one is generated and kept in the file http-token of the state directory."`
	HTTPHosts       string `envconfig:"HTTP_HOSTS" of:"process" desc:"Names, besides addresses and localhost, by which HTTP clients may reach this server, separated by spaces or commas."`
	HTTPCORSOrigins string `envconfig:"HTTP_CORS_ORIGINS" of:"process" desc:"Origins whose pages a browser may let call /mcp, as in http://localhost:6274, separated by spaces or commas. Empty: none."`

	HTTPURL      string `envconfig:"HTTP_URL" of:"process" desc:"URL of this server as browsers reach it (https://linus.example), for the URLs of exposed ports and the login by OIDC_ISSUER. Empty: the address listened on, or with HTTP_TLS_CERT the first of HTTP_HOSTS."`
	ExposeDomain string `envconfig:"EXPOSE_DOMAIN" of:"process" desc:"Wildcard (*.vms.example) whose host names lead to this server, at the port of HTTP_URL: each exposed port of a VM gets one. Empty: they get paths, and their pages no cookies and no storage."`

	DispatchFile string `envconfig:"DISPATCH_FILE" of:"process" desc:"File whose lines are arguments of linus dispatch, each of a dispatcher that linus serve runs beside the engine; # begins a comment. Empty: none."`

	E2BAddr     string `envconfig:"E2B_ADDR" of:"process" desc:"Address and port (127.0.0.1:8767) at which linus serve offers sandboxes to E2B's clients, with the certificate of HTTP_TLS_CERT. Empty: disabled."`
	E2BURL      string `envconfig:"E2B_URL" of:"process" desc:"URL of E2B_ADDR as clients reach it (https://sandboxes.example), which linus e2b env prints. Empty: the address listened on."`
	E2BInsecure bool   `envconfig:"E2B_INSECURE" of:"process" default:"false" desc:"true: E2B_ADDR may be another address than this machine's loopback without HTTP_TLS_CERT, as a proxy in front of it encrypts."`

	E2BDomain      string `envconfig:"E2B_DOMAIN" of:"process" desc:"Domain (sandboxes.example, or with a port) whose host names lead to E2B_ADDR: ports of sandboxes are at PORT-ID.DOMAIN, for whoever has the sandbox's token. Empty: they have no names."`
	E2BPublicPorts string `envconfig:"E2B_PUBLIC_PORTS" of:"process" default:"false" desc:"Which sandboxes have ports that need no token: none (false), those created with network.allowPublicTraffic (true), or all that are not created with allowPublicTraffic: false, as E2B's (all)."`

	HTTPTLSCert   string `envconfig:"HTTP_TLS_CERT" of:"process" kind:"path" desc:"PEM file with this server's certificate, followed by any intermediate certificates, for HTTPS at HTTP_ADDR. Read again when it changes. Empty: plain HTTP."`
	HTTPTLSKey    string `envconfig:"HTTP_TLS_KEY" of:"process" kind:"path" desc:"PEM file with the key of HTTP_TLS_CERT, which only its owner and group can read."`
	OAuthIssuer   string `envconfig:"OAUTH_ISSUER" of:"process" desc:"URL of the OAuth authorization server (https://id.example/realms/team) whose access tokens HTTP clients may present, as JWTs with the scopes linus:read, linus:run or linus:admin. Needs OAUTH_AUDIENCE. Empty: none."`
	OAuthAudience string `envconfig:"OAUTH_AUDIENCE" of:"process" desc:"URL of this server as its clients reach it, https://HOST:PORT/mcp or https://HOST:PORT: what these tokens must be for (aud)."`
	OAuthCAFile   string `envconfig:"OAUTH_CA_FILE" of:"process" kind:"path" desc:"PEM file with the CA certificates accepted for OAUTH_ISSUER. Empty: the system's."`

	OIDCIssuer       string `envconfig:"OIDC_ISSUER" of:"process" desc:"URL of the OpenID Connect issuer (https://id.example/realms/team) by which people log in to the web page. Needs OIDC_CLIENT_ID, OIDC_ROLES and HTTP_URL; they come back to HTTP_URL/login/issuer. Empty: none."`
	OIDCClientID     string `envconfig:"OIDC_CLIENT_ID" of:"process" desc:"This server's client ID at OIDC_ISSUER."`
	OIDCClientSecret Secret `envconfig:"OIDC_CLIENT_SECRET" of:"process" desc:"Its client secret. Empty: it is a public client."`
	OIDCRoles        string `envconfig:"OIDC_ROLES" of:"process" desc:"Roles of people by their groups at OIDC_ISSUER, separated by commas: linus-admins=admin, devs=run, *=read (everybody whom it lets in). The highest of several counts; people in none of them cannot log in."`
	OIDCGroupsClaim  string `envconfig:"OIDC_GROUPS_CLAIM" of:"process" default:"groups" desc:"Claim of the ID token, or else of the userinfo, that has a person's groups: a list of texts, or one text."`
	OIDCScopes       string `envconfig:"OIDC_SCOPES" of:"process" default:"openid profile email" desc:"Scopes that OIDC_ISSUER is asked for, separated by spaces or commas; some have groups only for a scope of that name."`
	OIDCSessionHours int    `envconfig:"OIDC_SESSION_HOURS" of:"process" default:"12" min:"1" max:"168" desc:"Hours after which such a login ends, and OIDC_ISSUER is asked again for the person's groups."`
	OIDCCAFile       string `envconfig:"OIDC_CA_FILE" of:"process" kind:"path" desc:"PEM file with the CA certificates accepted for OIDC_ISSUER. Empty: the system's."`

	WebhookURL    Secret `envconfig:"WEBHOOK_URL" desc:"URL that is sent a signed message at the end of every job, about every VM that is asked for, and about queues. Needs WEBHOOK_SECRET. Empty: none."`
	WebhookSecret Secret `envconfig:"WEBHOOK_SECRET" desc:"Key that signs these messages and those that jobs ask for (notify), as Standard Webhooks describes: whsec_ and base64, or any text of 16 to 512 bytes. Empty: there are no messages."`
	WebhookLink   string `envconfig:"WEBHOOK_LINK" desc:"URL of the web page as its readers reach it, for the link in these messages. Empty: no link."`

	MetricLabels string `envconfig:"METRIC_LABELS" desc:"Keys of labels, at most 5, that the metrics linus_jobs_ended_total and linus_vms also have, separated by commas: team, cost-center. Of each, the first 50 values are counted separately. Empty: none."`

	MCPToolsets           string `envconfig:"MCP_TOOLSETS" of:"process" desc:"Toolsets that MCP clients get, separated by spaces or commas: jobs, exec, vm, files, admin. Empty: all."`
	MCPReadOnly           bool   `envconfig:"MCP_READ_ONLY" of:"process" default:"false" desc:"true: MCP clients get only the tools that change nothing."`
	MCPDisableDestructive bool   `envconfig:"MCP_DISABLE_DESTRUCTIVE" of:"process" default:"false" desc:"true: MCP clients get no tools that end, destroy or overwrite anything (cancel, kill, cleanup, stop, revert, destroy, write_file, edit_file)."`

	DefaultVMTemplate string `envconfig:"DEFAULT_VM_TEMPLATE" default:"agent-template" desc:"Template (name or VM ID) cloned for a manifest without vmTemplate."`
	DefaultTimeout    int    `envconfig:"DEFAULT_TIMEOUT" default:"3600" min:"1" max:"86400" desc:"Time limit of a task in seconds if its manifest has no timeout."`
	DefaultCPU        int    `envconfig:"DEFAULT_CPU" default:"2" min:"1" max:"32" desc:"Cores of a VM if the manifest does not say."`
	DefaultMemory     string `envconfig:"DEFAULT_MEMORY" default:"2G" desc:"Memory of a VM if the manifest does not say, 512M to 512G."`
	DefaultDisk       string `envconfig:"DEFAULT_DISK" default:"10G" desc:"Disk of a VM if the manifest does not say, 5G to 10000G."`

	DefaultEgress      string `envconfig:"DEFAULT_EGRESS" default:"lan" desc:"Where VMs may connect to if the manifest does not say: lan (anywhere), internet (public addresses), allow (names and addresses) or none."`
	DefaultEgressNames string `envconfig:"DEFAULT_EGRESS_NAMES" desc:"Names and addresses that jobs with egress allow may reach if the manifest has none, separated by commas: github.com, *.npmjs.org."`

	MaxJobs            int      `envconfig:"MAX_JOBS" default:"8" min:"1" max:"1000" desc:"Jobs that may hold a VM at the same time, and VMs that are made at the same time because somebody asks for one; others wait."`
	MaxJobsAll         int      `envconfig:"MAX_JOBS_ALL" default:"0" min:"0" max:"100000" desc:"Jobs that may hold a VM at the same time on all engines that share a PostgreSQL database together. 0: no limit."`
	MaxVMsPerNode      int      `envconfig:"MAX_VMS_PER_NODE" default:"0" min:"0" max:"10000" desc:"VMs of linus that one node may have at the same time if PROXMOX_NODES is set. 0: no limit."`
	Checkpoints        string   `envconfig:"CHECKPOINTS" default:"tested" desc:"Whether checkpoints, from which VMs continue instead of booting, are made automatically: off, auto (of a template and size that is asked for a second time), always (the first time) or tested (auto on nodes where linus host test has restored VMs of the template, else off). Existing ones are used in any case."`
	CheckpointDisk     string   `envconfig:"CHECKPOINT_DISK" default:"20G" desc:"Disk that the memory of all checkpoints may take on the hosts, as in 20G; the one that was used least recently goes first."`
	MaxSnapshots       int      `envconfig:"MAX_SNAPSHOTS" default:"10" min:"0" max:"1000" desc:"Snapshots that one VM may have. 0: any number."`
	MaxOutputSize      ByteSize `envconfig:"MAX_OUTPUT_SIZE" default:"10MB" desc:"Bytes kept of each of a task's stdout and stderr, 1KB to 1GB; of longer output the head and tail are kept."`
	MaxArtifactFiles   int      `envconfig:"MAX_ARTIFACT_FILES" default:"1000" min:"1" max:"100000" desc:"Files kept of one job's artifacts."`
	MaxArtifactSize    ByteSize `envconfig:"MAX_ARTIFACT_SIZE" default:"100MB" desc:"Bytes one artifact may have, 1KB to 1GB."`
	MaxArtifactsSize   ByteSize `envconfig:"MAX_ARTIFACTS_SIZE" default:"500MB" desc:"Bytes all artifacts of a job may have together, 1KB to 1GB."`
	HeartbeatThreshold int      `envconfig:"HEARTBEAT_THRESHOLD_SECONDS" default:"120" min:"30" max:"86400" desc:"Seconds without a heartbeat after which a job is checked over SSH."`
	CleanupInterval    int      `envconfig:"CLEANUP_INTERVAL_SECONDS" default:"30" min:"10" max:"86400" desc:"Seconds between two attempts to destroy what could not be destroyed, and between two looks for VMs whose ttl has passed."`

	AllowedCommands  string `envconfig:"ALLOWED_COMMANDS" desc:"Commands that jobs may run, separated by commas or newlines: git (any arguments), npm test (these words), go test * (and any more). Empty: all."`
	AllowedBridges   string `envconfig:"ALLOWED_BRIDGES" desc:"Bridges that jobs may choose besides PROXMOX_BRIDGE, separated by commas: vmbr1, dmz*. Empty: MCP clients none, others any."`
	AllowedVLANs     string `envconfig:"ALLOWED_VLANS" desc:"VLAN tags that jobs may choose besides PROXMOX_VLAN_TAG, separated by commas: 20, 30-39. Empty: MCP clients none, others any."`
	AllowedStorages  string `envconfig:"ALLOWED_STORAGES" desc:"Storages that clients may choose for volumes besides PROXMOX_STORAGE, separated by commas: nfs, ssd-*. Empty: MCP clients and tokens none, others any."`
	AllowedEgress    string `envconfig:"ALLOWED_EGRESS" desc:"Egress modes that jobs may choose besides DEFAULT_EGRESS, separated by commas. Empty: MCP clients those that reach less, others any."`
	AllowedNames     string `envconfig:"ALLOWED_EGRESS_NAMES" desc:"Names and addresses that jobs with egress allow may list besides DEFAULT_EGRESS_NAMES, separated by commas: github.com, *.npmjs.org. Empty: MCP clients none if DEFAULT_EGRESS is allow and DEFAULT_EGRESS_NAMES is set, others any."`
	AllowedTemplates string `envconfig:"ALLOWED_TEMPLATES" desc:"Templates (names or VM IDs, as a job names them) and systems (os) that jobs may choose besides DEFAULT_VM_TEMPLATE, separated by commas: agent-*, 9000, debian-12. Empty: any."`
	AllowedWebhooks  string `envconfig:"ALLOWED_WEBHOOKS" desc:"Hosts that clients' jobs may notify, separated by commas: ci.example, *.hooks.example, or ci.example:8443 for one port only. A host that is named whole may have a private address. Empty: only the operator's own jobs may, anywhere."`
	AllowedSecrets   string `envconfig:"ALLOWED_SECRETS" desc:"Secrets that jobs may name, separated by commas: CI_*, NPM_TOKEN. Empty: any."`
	LimitJobs        int    `envconfig:"LIMIT_JOBS" default:"0" min:"0" max:"100000" desc:"Unfinished jobs (a job is finished once its result is available) and persistent VMs one client may have. 0: no limit."`
	LimitCPU         int    `envconfig:"LIMIT_CPU" default:"0" min:"0" max:"100000" desc:"Total cores of one client's VMs; a finished job's VM counts until it is gone. 0: no limit."`
	LimitMemory      string `envconfig:"LIMIT_MEMORY" desc:"Total memory of one client's VMs, as in 64G; a finished job's VM counts until it is gone. Empty: no limit."`
	LimitDisk        string `envconfig:"LIMIT_DISK" desc:"Total size that the disks of one client's VMs may grow to, beside its volumes, checkpoints, saved templates and memory of suspended VMs and snapshots, as in 500G; a finished job's VM counts until it is gone. Empty: no limit."`
	LimitSeconds     int    `envconfig:"LIMIT_SECONDS" default:"0" min:"0" max:"86400" desc:"The longest timeout a client's job may have, in seconds. 0: no limit."`

	AllowedCredentials string `envconfig:"ALLOWED_CREDENTIALS" desc:"Credentials that jobs may name, separated by commas: github, ci-*. Empty: any."`

	SecretsFile string `envconfig:"LINUS_SECRETS_FILE" kind:"path" desc:"File with lines NAME=value for the secrets of manifests, mode 0600. Secrets also come from LINUS_SECRET_<NAME> and systemd credentials."`

	LeaseHours    int `envconfig:"LEASE_HOURS" default:"24" min:"0" max:"8760" desc:"Hours after a job's timeout after which the host destroys its VM by itself if linus has not done so. 0: never."`
	RetentionDays int `envconfig:"RETENTION_DAYS" default:"30" min:"0" max:"3650" desc:"Days after which a finished job and its output are deleted. 0: never."`

	StateDir     string `envconfig:"LINUS_STATE_DIR" of:"process" kind:"path" desc:"Directory for the database, outputs, keys and log. Empty: linus in $XDG_STATE_HOME or ~/.local/state."`
	StateReserve int    `envconfig:"LINUS_STATE_RESERVE" default:"512" min:"0" max:"1000000" desc:"MiB of the state directory's file system kept free for running jobs: below that, no job is accepted. 0: none. Ignored with LINUS_DATABASE_URL."`
	// DatabaseURL may contain a password.
	DatabaseURL Secret `envconfig:"LINUS_DATABASE_URL" desc:"PostgreSQL database (postgres://USER:PASSWORD@HOST:5432/DATABASE) for jobs, their output and artifacts, which several engines can share. Options such as sslmode and passfile are as in PostgreSQL's own URLs. Empty: SQLite and files in LINUS_STATE_DIR."`

	Server    string `envconfig:"LINUS_SERVER" of:"process" desc:"URL (https://linus.example:8766) of a server whose engine the commands use, instead of one on this machine. http:// only for this machine's loopback."`
	TokenFile string `envconfig:"LINUS_TOKEN_FILE" of:"process" kind:"path" desc:"File with the token for LINUS_SERVER, mode 0600."`
	CAFile    string `envconfig:"LINUS_CA_FILE" of:"process" kind:"path" desc:"PEM file with the CA certificates accepted for LINUS_SERVER. Empty: the system's."`

	LogLevel  string `envconfig:"LINUS_LOG_LEVEL" of:"process" default:"info" desc:"debug, info, warn or error."`
	LogFormat string `envconfig:"LINUS_LOG_FORMAT" of:"process" default:"text" desc:"Log format on stderr and in engine.log: text or json."`
	EnvFile   string `envconfig:"LINUS_ENV_FILE" of:"process" kind:"path" desc:"File with lines NAME=value of these settings, mode 0600 when it holds a secret. Unset: linus/env in $XDG_CONFIG_HOME or ~/.config, if it exists; set but empty: none."`

	// TraceEndpoint has OpenTelemetry's standard name.
	TraceEndpoint string `envconfig:"OTEL_EXPORTER_OTLP_ENDPOINT" desc:"OpenTelemetry collector (http://HOST:4318) that gets a trace of each job, by OTLP over HTTP. Empty: none."`

	// LabLoopback says that VMs have addresses of this machine's loopback, as in the process lab,
	// which sets it in its own environment. It is never set for another host.
	LabLoopback bool   `ignored:"true"`
	AgentSocket string `ignored:"true"` // the SSH agent's socket ($SSH_AUTH_SOCK), or empty

	// Identities are the private keys that OpenSSH would try, not including PROXMOX_SSH_KEY_PATH.
	Identities []string `ignored:"true"`

	// Secrets are the values of LINUS_SECRET_<NAME>, by NAME.
	Secrets              map[string]Secret `ignored:"true"`
	CredentialsDirectory string            `ignored:"true"` // systemd's, or empty

	// NotifySocket is where a service reports that it is ready, if systemd waits for that.
	NotifySocket string `ignored:"true"`

	given     map[string]entry // settings that are not defaults, by name
	sshConfig string           // OpenSSH's per-user config file; it may be missing
}

// InBackground returns the settings of an engine that no person has started: it serves nobody over
// the network.
func (c Config) InBackground() Config {
	c.HTTPAddr, c.E2BAddr = "", ""
	return c
}

// Scheme returns the scheme of the URLs served over the network.
func (c Config) Scheme() string {
	if c.HTTPTLSCert != "" {
		return "https"
	}
	return "http"
}

// Load reads the settings from the environment and from, and validates them. It reports all
// problems together, as *Error.
func Load(from Sources) (Config, error) {
	c := Config{
		AgentSocket: os.Getenv("SSH_AUTH_SOCK"), CredentialsDirectory: os.Getenv("CREDENTIALS_DIRECTORY"), NotifySocket: os.Getenv("NOTIFY_SOCKET"),
		Secrets: map[string]Secret{},
	}
	var bad Error
	c.given, bad.Problems = from.collect(os.Environ())
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("envconfig")
		if name == "" {
			continue
		}
		value, given := c.given[name]
		if given && value.text == "" {
			delete(c.given, name) // an empty value of a setting without default is no setting
			given = false
			if def := field.Tag.Get("default"); def != "" {
				bad.Problems = append(bad.Problems, Problem{name, "is empty", "give a value, or unset it for " + def, value.from})
				continue
			}
		}
		if err := decode(v.Field(i), field, value.text); err != nil {
			problem, remedy := parseProblem(err, value.text, field)
			bad.Problems = append(bad.Problems, Problem{name, problem, remedy, value.from})
			continue
		}
		if rule := numberRule(field); rule != "" && given && !inRange(v.Field(i).Int(), field.Tag) {
			bad.Problems = append(bad.Problems, Problem{name, fmt.Sprintf("%q is out of range", value.text), rule, value.from})
		}
		if isSecret(name) && given {
			c.given[name] = entry{redacted, value.from} // a map's text would reveal its values
		}
		if field.Tag.Get("kind") == "path" && v.Field(i).String() != "" {
			path, err := absolute(v.Field(i).String())
			if err != nil {
				bad.Problems = append(bad.Problems, homeless(name, v.Field(i).String(), err, value.from))
			}
			v.Field(i).SetString(path)
		}
	}
	if c.StateDir == "" {
		dir, err := defaultStateDir()
		if err != nil {
			bad.Problems = append(bad.Problems, homeless("LINUS_STATE_DIR", stateInHome, err, ""))
		}
		c.StateDir = dir
	}
	if c.ProxmoxSSHKeyPath == "" {
		c.Identities = identities()
	}
	c.sshConfig, _ = absolute("~/.ssh/config")
	c.LabLoopback = os.Getenv("PVELAB_LOOPBACK") == "1" && c.hostsOnLoopback()
	c.EnvFile = from.EnvFilePath()
	bad.Problems = append(bad.Problems, c.takeSecrets()...)
	bad.Problems = append(bad.Problems, c.validate(&bad)...)
	if len(bad.Problems) > 0 {
		return Config{}, &bad
	}
	return c, nil
}

// decode sets a field to text or, if text is empty, to the field's default. envconfig reads a value
// from the environment or the default tag; text may come from elsewhere, so it is put into the tag.
// Fields are decoded one at a time, because envconfig stops at the first error. Most fields skip
// envconfig, which would take longer than everything else in Load.
func decode(into reflect.Value, field reflect.StructField, text string) error {
	text = cmp.Or(text, field.Tag.Get("default"))
	switch {
	case text == "": // the field keeps its zero value
		return nil
	case field.Type == reflect.TypeFor[string]():
		into.SetString(text)
		return nil
	case field.Type.Kind() == reflect.Int: // like envconfig, which would need a new type for each field
		n, err := strconv.ParseInt(text, 0, field.Type.Bits())
		if err == nil {
			into.SetInt(n)
		}
		return err
	}
	const nowhere = "=" // no variable has this name
	field.Tag = reflect.StructTag(fmt.Sprintf("envconfig:%q default:%q", nowhere, text))
	one := reflect.New(reflect.StructOf([]reflect.StructField{field}))
	if err := envconfig.Process("", one.Interface()); err != nil {
		return err
	}
	into.Set(one.Elem().Field(0))
	return nil
}

// NeedHost returns an error with a remedy if PROXMOX_HOST is not set.
func (c Config) NeedHost() error {
	if c.ProxmoxHost != "" {
		return nil
	}
	remedy := "give the name or address of the Proxmox VE host; linus config lists the settings"
	if path := DefaultEnvFile(); path != "" {
		remedy = "give the name or address of the Proxmox VE host (--host, the environment, or " + path + "); linus config lists the settings"
	}
	return &Error{Problems: []Problem{{Name: "PROXMOX_HOST", Text: "is not set", Remedy: remedy}}}
}

// Problem is one problem with one setting.
type Problem struct {
	Name   string `json:"name"`
	Text   string `json:"problem"`
	Remedy string `json:"remedy"`
	From   string `json:"from,omitempty"` // as in Value
}

func (p Problem) String() string {
	s := p.Name + ": " + p.Text + "; " + p.Remedy
	if p.From != "" && p.From != fromEnvironment {
		s += " (" + p.From + ")"
	}
	return s
}

// Error is all problems with the settings.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// has reports whether there already is a problem with name.
func (e *Error) has(name string) bool {
	return slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Name == name })
}

func parseProblem(err error, text string, field reflect.StructField) (problem, remedy string) {
	if rule := numberRule(field); rule != "" {
		return fmt.Sprintf("%q is not a whole number", text), rule
	}
	if field.Type.Kind() == reflect.Bool {
		return fmt.Sprintf("%q is neither true nor false", text), "give true or false"
	}
	if parse, ok := errors.AsType[*envconfig.ParseError](err); ok {
		err = parse.Err
	}
	return err.Error(), "give a value such as " + field.Tag.Get("default")
}

// numberRule returns the rule of a number with bounds, "" for other fields.
func numberRule(field reflect.StructField) string {
	if field.Tag.Get("max") == "" {
		return ""
	}
	return fmt.Sprintf("give a whole number from %s to %s", field.Tag.Get("min"), field.Tag.Get("max"))
}

func inRange(n int64, tag reflect.StructTag) bool {
	lo, _ := strconv.ParseInt(tag.Get("min"), 10, 64)
	hi, _ := strconv.ParseInt(tag.Get("max"), 10, 64)
	return lo <= n && n <= hi
}

// absolute resolves ~ and the working directory, so that an engine started elsewhere uses the same
// file. It fails for ~ without a home directory.
func absolute(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := homeDir()
		if err != nil {
			return "", err
		}
		return filepath.Join(home, rest), nil
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs, nil
	}
	return path, nil
}

// homeDir returns the user's home directory: HOME or, as for system units and containers, the one
// in the user's passwd entry.
func homeDir() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		var own *user.User
		if own, err = user.Current(); err == nil {
			home = own.HomeDir
		}
	}
	if err == nil && !filepath.IsAbs(home) {
		err = fmt.Errorf("%q is not absolute", home)
	}
	if err != nil {
		return "", fmt.Errorf("no home directory is known: %w", err)
	}
	return home, nil
}

// homeless returns the problem with a path in the home directory if there is no home directory.
func homeless(name, path string, err error, from string) Problem {
	return Problem{name, fmt.Sprintf("%s is in the home directory, and %v", path, err), "give " + name + " an absolute path, or set HOME", from}
}

// identities returns the private keys that OpenSSH tries by default.
func identities() []string {
	var paths []string
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		if path, err := absolute("~/.ssh/" + name); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

const stateInHome = "~/.local/state/linus"

func defaultStateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "linus"), nil
	}
	if dir := os.Getenv("LocalAppData"); runtime.GOOS == "windows" && filepath.IsAbs(dir) {
		return filepath.Join(dir, "linus"), nil
	}
	return absolute(stateInHome)
}

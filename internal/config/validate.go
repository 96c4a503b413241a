package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

var (
	hostText    = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`)
	userText    = lazyregexp.New(`^[a-z_][a-z0-9_-]*$`)
	nodeText    = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	storageText = lazyregexp.New(`^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$`)
	bridgeText  = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)
	rangeText   = lazyregexp.New(`^([1-9][0-9]{2,8})-([1-9][0-9]{2,8})$`)
	tokenText   = lazyregexp.New(`^[A-Za-z0-9._~+/=-]+$`)
	clientText  = lazyregexp.New(`^[!-~]+$`)
	scriptDir   = lazyregexp.New(`^/[A-Za-z0-9_./-]+$`)
)

// rule is one condition on one setting.
type rule struct {
	name   string
	value  string // as given
	ok     bool
	remedy string
}

// validate returns the problems that are not found when single values are decoded. It skips
// settings already in known, whose values are not valid.
func (c Config) validate(known *Error) []Problem {
	var problems []Problem
	for _, r := range c.rules() {
		if !r.ok && !known.has(r.name) {
			problems = append(problems, Problem{r.name, fmt.Sprintf("%q is not valid", r.value), r.remedy, c.given[r.name].from})
		}
	}
	return problems
}

func (c Config) rules() []rule {
	sizes := job.Manifest{Task: "x", AgentType: job.AgentScript, VMTemplate: c.DefaultVMTemplate}
	memory, disk := sizes, sizes
	memory.Resources.Memory = c.DefaultMemory
	disk.Resources.Disk = c.DefaultDisk
	addresses, addressErr := job.ParseAddresses(c.VMIPConfig)
	gateway, gatewayErr := netip.ParseAddr(c.VMGateway)
	noOrigins := slices.DeleteFunc(c.HTTPOrigins(), isOrigin)
	return []rule{
		{"PROXMOX_HOST", c.ProxmoxHost, c.ProxmoxHost == "" || len(c.Hosts()) > 1 || isHost(c.ProxmoxHost), "give a host name or an IP address, without user, port or https://"},
		{"PROXMOX_HOST", c.ProxmoxHost, len(c.Hosts()) < 2 || areHosts(c.Hosts()), "give host names or IP addresses of nodes of one cluster, separated by commas, each once, without user, port or https://"},
		{"PROXMOX_SSH_USER", c.ProxmoxSSHUser, isUser(c.ProxmoxSSHUser), "give a Unix user name such as root"},
		{"PROXMOX_SCRIPT_DIR", c.ProxmoxScriptDir, scriptDir.MatchString(c.ProxmoxScriptDir) && path.Clean(c.ProxmoxScriptDir) == c.ProxmoxScriptDir, "give an absolute path of letters, digits, _ . and -"},
		{"PROXMOX_NODE", c.ProxmoxNode, c.ProxmoxNode == "" || len(c.ProxmoxNode) <= 63 && nodeText.MatchString(c.ProxmoxNode), "give a node name as Proxmox shows it"},
		{"PROXMOX_NODES", c.ProxmoxNodes, areNodes(c.ProxmoxNodes), "give all, or node names as Proxmox shows them, separated by commas"},
		{"PROXMOX_NODES", c.ProxmoxNodes, c.ProxmoxNodes == "" || c.ProxmoxNode == "", "set PROXMOX_NODE for one node, or PROXMOX_NODES to spread VMs over several, not both"},
		{"PROXMOX_NODES", c.ProxmoxNodes, len(c.Hosts()) < 2 || c.ProxmoxNodes != "" || c.ProxmoxNode != "", "PROXMOX_HOST has several entries, so say where VMs go: all, or names of nodes; or PROXMOX_NODE for one node"},
		{"PROXMOX_STORAGE", c.ProxmoxStorage, storageText.MatchString(c.ProxmoxStorage), "give a storage name such as local-lvm"},
		{"PROXMOX_BRIDGE", c.ProxmoxBridge, bridgeText.MatchString(c.ProxmoxBridge), "give a bridge name such as vmbr0"},
		{"PROXMOX_VMID_RANGE", c.ProxmoxVMIDRange, isRange(c.ProxmoxVMIDRange), "give first-last, from 100 to 999999999, as in 100-999"},
		{"VM_SSH_USER", c.VMSSHUser, c.VMSSHUser == "" || isUser(c.VMSSHUser), "give a Unix user name such as debian"},
		{"VM_IP_CONFIG", c.VMIPConfig, addressErr == nil, "give dhcp, auto6, dhcp6, an address with its prefix such as 192.168.1.50/24, or a pool such as 192.168.1.50-192.168.1.99/24"},
		{"MAX_JOBS", strconv.Itoa(c.MaxJobs), addressErr != nil || !addresses.Fixed() || c.MaxJobs <= addresses.Size(), fmt.Sprintf("give at most %d, or a larger pool: VM_IP_CONFIG has only that many addresses, each for one VM at a time", addresses.Size())},
		{"VM_GATEWAY", c.VMGateway, c.VMGateway == "" || (gatewayErr == nil && addresses.NetworkContains(gateway)), "give an address in the network of VM_IP_CONFIG, which must be an address or a pool"},
		{"VM_NAMESERVERS", c.VMNameservers, !slices.ContainsFunc(c.Nameservers(), func(s string) bool { return net.ParseIP(s) == nil }), "give IP addresses separated by spaces or commas"},
		{"CALLBACK_HOST", c.CallbackHost, isHost(c.CallbackHost), "give an address of this machine, or 0.0.0.0 for all"},
		{"CALLBACK_URL", c.CallbackURL, c.CallbackURL == "" || isURL(c.CallbackURL), "give http://HOST:PORT or https://HOST, without query and credentials"},
		{"CALLBACK_URL", c.CallbackURL, !onLoopback(c.CallbackURL) || c.hostsOnLoopback(), "give an address VMs can reach: inside a VM, localhost is the VM itself"},
		{"HTTP_ADDR", c.HTTPAddr, c.HTTPAddr == "" || IsAddress(c.HTTPAddr), "give address:port, as in 127.0.0.1:8766; port 0 is any free one"},
		{"E2B_ADDR", c.E2BAddr, c.E2BAddr == "" || IsAddress(c.E2BAddr), "give address:port, as in 127.0.0.1:8767; port 0 is any free one"},
		{"E2B_ADDR", c.E2BAddr, !IsAddress(c.E2BAddr) || c.HTTPTLSCert != "" || c.E2BInsecure || isOnLoopback(c.E2BAddr), "keys and files could be read on the network: set HTTP_TLS_CERT and HTTP_TLS_KEY, listen on 127.0.0.1, or set E2B_INSECURE to true if a proxy in front of it encrypts"},
		{"E2B_ADDR", c.E2BAddr, c.E2BAddr == "" || c.AllowedCommands == "", "ALLOWED_COMMANDS is set, and sandboxes run any command: unset one of them"},
		{"E2B_URL", c.E2BURL, c.E2BURL == "" || isOrigin(c.E2BURL), "give https://HOST or https://HOST:PORT: lower case, no path, not the scheme's own port"},
		{"E2B_DOMAIN", c.E2BDomain, c.E2BDomain == "" || isDomain(c.E2BDomain), "give a domain in lower case, as in sandboxes.example, with :PORT if clients need that"},
		{"E2B_PUBLIC_PORTS", c.E2BPublicPorts, c.E2BPublicPorts == "all" || isBool(c.E2BPublicPorts), "use one of: false, true, all"},
		{"E2B_DOMAIN", c.E2BDomain, !c.namedBelow(hostOf(c.E2BDomain)), "give a domain of its own: HTTP_URL and the names in HTTP_HOSTS must be neither that domain nor below it, as pages of VMs set cookies for it"},
		{"HTTP_TOKEN", c.HTTPToken.String(), c.HTTPToken.value == "" || isToken(c.HTTPToken.value), "give 16 to 512 letters, digits and -._~+/=, and no blanks"},
		{"HTTP_HOSTS", c.HTTPHosts, !slices.ContainsFunc(words(c.HTTPHosts), func(s string) bool { return !isHost(s) }), "give host names without port, separated by spaces or commas"},
		{"HTTP_URL", c.HTTPURL, c.HTTPURL == "" || isOrigin(c.HTTPURL), "give https://HOST or https://HOST:PORT as browsers send it: lower case, no path, not the scheme's own port"},
		{"EXPOSE_DOMAIN", c.ExposeDomain, c.ExposeDomain == "" || isWildcard(c.ExposeDomain), "give *. and a domain in lower case, as in *.vms.example"},
		{"EXPOSE_DOMAIN", c.ExposeDomain, !c.namedBelow(c.PortDomain()), "give a domain of its own: HTTP_URL and the names in HTTP_HOSTS must be neither that domain nor below it, as pages of VMs set cookies for it"},
		{"HTTP_TLS_CERT", c.HTTPTLSCert, c.HTTPTLSCert != "" || c.HTTPTLSKey == "", "HTTP_TLS_KEY is set: also give the file with its certificate"},
		{"HTTP_TLS_KEY", c.HTTPTLSKey, c.HTTPTLSKey != "" || c.HTTPTLSCert == "", "HTTP_TLS_CERT is set: also give the file with its key"},
		{"HTTP_CORS_ORIGINS", strings.Join(noOrigins, ", "), len(noOrigins) == 0, "give origins as browsers send them, http://HOST:PORT or https://HOST: lower case, no path, not the scheme's own port, and no *"},
		{"OAUTH_ISSUER", c.OAuthIssuer, c.OAuthIssuer == "" || isSecureURL(c.OAuthIssuer), "give https://HOST as the authorization server's metadata has it (http:// only for this machine's loopback), without query and credentials"},
		{"OAUTH_ISSUER", c.OAuthIssuer, c.OAuthIssuer != "" || c.OAuthAudience == "", "OAUTH_AUDIENCE is set: also say who issues such tokens"},
		{"OAUTH_CA_FILE", c.OAuthCAFile, c.OAuthCAFile == "" || c.OAuthIssuer != "", "also give OAUTH_ISSUER: these certificates are only for it"},
		{"OAUTH_AUDIENCE", c.OAuthAudience, c.OAuthAudience == "" || isResource(c.OAuthAudience), "give https://HOST:PORT/mcp or https://HOST:PORT as clients reach this server (http:// only for this machine's loopback)"},
		{"OAUTH_AUDIENCE", c.OAuthAudience, c.OAuthAudience != "" || c.OAuthIssuer == "", "OAUTH_ISSUER is set: also give the URL of this server that its tokens must be for"},
		{"OIDC_ISSUER", c.OIDCIssuer, c.OIDCIssuer == "" || isSecureURL(c.OIDCIssuer), "give https://HOST as the issuer's metadata has it (http:// only for this machine's loopback), without query and credentials"},
		{"OIDC_ISSUER", c.OIDCIssuer, c.OIDCIssuer != "" || c.OIDCClientID+c.OIDCClientSecret.value+c.OIDCRoles+c.OIDCCAFile == "", "other settings of the login by OpenID Connect (OIDC_…) are set: also say who the issuer is"},
		{"OIDC_CLIENT_ID", c.OIDCClientID, c.OIDCIssuer == "" || isClientText(c.OIDCClientID), "OIDC_ISSUER is set: give the ID that this server has there as a client, at most 256 characters without blanks"},
		{"OIDC_ROLES", c.OIDCRoles, c.OIDCIssuer == "" || c.OIDCRoles == "" || len(c.LoginRoles()) > 0, "give GROUP=ROLE, separated by commas, each group once, with the roles read, run and admin, as in linus-admins=admin,devs=run; the group * is everybody"},
		{"OIDC_ROLES", c.OIDCRoles, c.OIDCIssuer == "" || c.OIDCRoles != "", "OIDC_ISSUER is set: say which groups there have which role here, as in linus-admins=admin,devs=run"},
		{"OIDC_GROUPS_CLAIM", c.OIDCGroupsClaim, isClientText(c.OIDCGroupsClaim), "give a claim's name such as groups, at most 256 characters without blanks"},
		{"OIDC_SCOPES", c.OIDCScopes, slices.Contains(words(c.OIDCScopes), "openid") && isClientText(strings.Join(words(c.OIDCScopes), "")), "give scopes separated by spaces or commas, openid among them, as in openid profile groups"},
		{"HTTP_URL", c.HTTPURL, c.OIDCIssuer == "" || isSecureURL(c.HTTPURL), "OIDC_ISSUER is set: give the URL to which browsers return from there, https://HOST or https://HOST:PORT (http:// only for this machine's loopback)"},
		{"HTTP_HOSTS", c.HTTPHosts, c.OIDCIssuer == "" || c.namesItself(), "OIDC_ISSUER is set: also name the host of HTTP_URL, to which browsers return from there"},
		{"WEBHOOK_URL", c.WebhookURL.String(), c.WebhookURL.value == "" || job.WebhookURLProblem(c.WebhookURL.value) == "", "give a URL of https or http, without a user"},
		{"WEBHOOK_URL", c.WebhookURL.String(), c.WebhookURL.value == "" || c.WebhookSecret.value != "", "also set WEBHOOK_SECRET, which signs its messages"},
		{"WEBHOOK_SECRET", c.WebhookSecret.String(), c.WebhookSecret.value == "" || isWebhookKey(c.WebhookSecret.value), "give whsec_ and base64 of 16 to 512 bytes, or a text of that length"},
		{"WEBHOOK_LINK", c.WebhookLink, c.WebhookLink == "" || isURL(c.WebhookLink), "give http://HOST:PORT or https://HOST, without query and credentials"},
		{"METRIC_LABELS", c.MetricLabels, areMetricLabels(c.LabelKeys()), "give at most 5 keys of labels, separated by commas, which differ in more than . / _ and -"},
		{"MCP_TOOLSETS", c.MCPToolsets, c.MCPToolsets == "" || areToolsets(c.Toolsets()), "use one or more of: " + strings.Join(job.Toolsets, ", ")},
		{"DEFAULT_VM_TEMPLATE", c.DefaultVMTemplate, sizes.Validate() == nil, "give a template's name (letters, digits, dots, dashes) or its VM ID"},
		{"DEFAULT_MEMORY", c.DefaultMemory, memory.Validate() == nil || sizes.Validate() != nil, "give 512M to 512G, as in 2G"},
		{"DEFAULT_DISK", c.DefaultDisk, disk.Validate() == nil || sizes.Validate() != nil, "give 5G to 10000G, as in 20G"},
		{"DEFAULT_EGRESS", c.DefaultEgress, slices.Contains(vm.Egresses, vm.Egress(c.DefaultEgress)), "use one of: lan, internet, allow, none"},
		{"DEFAULT_EGRESS_NAMES", c.DefaultEgressNames, areEgressNames(c.EgressNames()), "give at most 100 host names such as github.com or *.npmjs.org, or public addresses, separated by commas"},
		{"PROXMOX_TOOLS", c.ProxmoxTools, c.ProxmoxTools == "auto" || c.ProxmoxTools == "plain", "use one of: auto, plain"},
		{"CHECKPOINTS", c.Checkpoints, slices.Contains([]job.CheckpointMode{job.CheckpointsTested, job.CheckpointsOff, job.CheckpointsAuto, job.CheckpointsAlways}, job.CheckpointMode(c.Checkpoints)), "use one of: tested, off, auto, always"},
		{"CHECKPOINT_DISK", c.CheckpointDisk, job.SizeMB(c.CheckpointDisk) >= 1<<10, "give 1G or more, as in 20G"},
		{"LIMIT_MEMORY", c.LimitMemory, c.LimitMemory == "" || c.LimitMemoryMB() >= 512, "give 512M or more, as in 64G"},
		{"LIMIT_DISK", c.LimitDisk, c.LimitDisk == "" || c.LimitDiskMB() >= 5<<10, "give 5G or more, as in 500G"},
		{"LINUS_DATABASE_URL", c.DatabaseURL.String(), c.DatabaseURL.value == "" || isDatabaseURL(c.DatabaseURL.value), "give postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the password as %XX"},
		{"LINUS_SERVER", c.Server, c.Server == "" || isURL(c.Server), "give https://HOST:PORT, without query and credentials"},
		{"LINUS_LOG_LEVEL", c.LogLevel, slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel), "use one of: debug, info, warn, error"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", c.TraceEndpoint, c.TraceEndpoint == "" || isURL(c.TraceEndpoint), "give http://HOST:4318 or https://HOST, without query and credentials"},
		{"LINUS_LOG_FORMAT", c.LogFormat, c.LogFormat == "text" || c.LogFormat == "json", "use one of: text, json"},
	}
}

// PublicPorts reports whether ports of sandboxes may be public, and whether they are public by default.
func (c Config) PublicPorts() (allowed, standard bool) {
	allowed, _ = strconv.ParseBool(c.E2BPublicPorts)
	standard = c.E2BPublicPorts == "all"
	return allowed || standard, standard
}

func isBool(text string) bool {
	_, err := strconv.ParseBool(text)
	return err == nil
}

// EgressNames splits DEFAULT_EGRESS_NAMES.
func (c Config) EgressNames() []string {
	names := words(c.DefaultEgressNames)
	for i, name := range names {
		names[i] = strings.ToLower(name)
	}
	return names
}

func areEgressNames(names []string) bool {
	return len(names) <= job.MaxEgressNames && !slices.ContainsFunc(names, func(name string) bool { return job.EgressProblem(name) != "" })
}

func isWebhookKey(secret string) bool {
	_, err := job.WebhookKey(secret)
	return err == nil
}

// isUser and isClientText check the length in Go, because a regexp with a count takes long to
// compile, at each start.
func isUser(s string) bool       { return len(s) <= 32 && userText.MatchString(s) }
func isClientText(s string) bool { return len(s) <= 256 && clientText.MatchString(s) }

func isHost(s string) bool {
	return net.ParseIP(s) != nil || len(s) <= 254 && hostText.MatchString(s)
}

// Hosts splits PROXMOX_HOST.
func (c Config) Hosts() []string {
	hosts := strings.Split(c.ProxmoxHost, ",")
	for i, h := range hosts {
		hosts[i] = strings.TrimSpace(h)
	}
	return hosts
}

// Clustered reports whether more than one node may be used, as a place for VMs or as an entry of
// PROXMOX_HOST.
func (c Config) Clustered() bool { return c.ProxmoxNodes != "" || len(c.Hosts()) > 1 }

// Nodes returns the nodes for new VMs, if Clustered; nil: all nodes.
func (c Config) Nodes() []string {
	if c.ProxmoxNodes == "all" {
		return nil
	}
	return append(words(c.ProxmoxNodes), words(c.ProxmoxNode)...)
}

func areHosts(hosts []string) bool {
	for i, h := range hosts {
		if !isHost(h) || slices.Contains(hosts[:i], h) {
			return false
		}
	}
	return true
}

func areNodes(list string) bool {
	return !slices.ContainsFunc(words(list), func(n string) bool { return len(n) > 63 || !nodeText.MatchString(n) }) &&
		(list == "" || len(words(list)) > 0)
}

// hostsOnLoopback reports whether PROXMOX_HOST is this machine.
func (c Config) hostsOnLoopback() bool {
	return !slices.ContainsFunc(c.Hosts(), func(h string) bool { return !job.IsLoopback(h) })
}

func isToken(s string) bool { return len(s) >= 16 && len(s) <= 512 && tokenText.MatchString(s) }

func isRange(s string) bool {
	m := rangeText.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	return first <= last
}

// LimitMemoryMB is LIMIT_MEMORY in MiB, 0 for no limit.
func (c Config) LimitMemoryMB() int { return mebibytes(c.LimitMemory) }

// LimitDiskMB is LIMIT_DISK in MiB, 0 for no limit.
func (c Config) LimitDiskMB() int { return mebibytes(c.LimitDisk) }

func mebibytes(size string) int {
	n, err := job.ParseSize(size)
	if err != nil {
		return 0
	}
	return int(n >> 20)
}

// Nameservers splits VM_NAMESERVERS.
func (c Config) Nameservers() []string { return words(c.VMNameservers) }

func areToolsets(names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(s string) bool { return !slices.Contains(job.Toolsets, s) })
}

// Toolsets splits MCP_TOOLSETS.
func (c Config) Toolsets() []string { return words(c.MCPToolsets) }

// LabelKeys splits METRIC_LABELS.
func (c Config) LabelKeys() []string { return words(c.MetricLabels) }

func areMetricLabels(keys []string) bool {
	seen := map[string]bool{}
	for _, key := range keys {
		seen[job.MetricKey(key)] = true
	}
	return len(keys) <= job.MaxMetricLabels && len(seen) == len(keys) && !slices.ContainsFunc(keys, func(key string) bool { return !job.IsLabelKey(key) })
}

// HTTPNames splits HTTP_HOSTS.
func (c Config) HTTPNames() []string { return words(c.HTTPHosts) }

// PortDomain is EXPOSE_DOMAIN without its asterisk.
func (c Config) PortDomain() string { return strings.TrimPrefix(c.ExposeDomain, "*.") }

// namedBelow reports whether a name of this server gets the cookies that pages below a domain set.
// Browsers set none for a name without a dot.
func (c Config) namedBelow(domain string) bool {
	u, err := url.Parse(c.HTTPURL)
	names := c.HTTPNames()
	if err == nil {
		names = append(names, u.Hostname())
	}
	return domain != "" && slices.ContainsFunc(names, func(n string) bool {
		n = strings.ToLower(n)
		return n == domain && strings.Contains(n, ".") || strings.HasSuffix(n, "."+domain)
	})
}

func hostOf(s string) string { host, _, _ := strings.Cut(s, ":"); return host }

// isDomain reports whether s is a domain, with or without a port.
func isDomain(s string) bool {
	host := hostOf(s)
	return isWildcard("*."+host) && (s == host || IsAddress(s) && !strings.HasSuffix(s, ":0"))
}

// namesItself reports whether this server answers requests for the host of HTTP_URL.
func (c Config) namesItself() bool {
	u, err := url.Parse(c.HTTPURL)
	if err != nil {
		return false
	}
	_, noAddress := netip.ParseAddr(u.Hostname())
	return noAddress == nil || u.Hostname() == "localhost" || slices.ContainsFunc(c.HTTPNames(), func(n string) bool { return strings.EqualFold(n, u.Hostname()) })
}

func isWildcard(s string) bool {
	domain, ok := strings.CutPrefix(s, "*.")
	_, err := netip.ParseAddr(domain)
	return ok && err != nil && domain == strings.ToLower(domain) && isHost(domain) && !strings.HasSuffix(domain, ".")
}

// HTTPOrigins splits HTTP_CORS_ORIGINS.
func (c Config) HTTPOrigins() []string { return words(c.HTTPCORSOrigins) }

// LoginRoles returns OIDC_ROLES by group; nil: they are not set, or invalid.
func (c Config) LoginRoles() map[string]job.Role {
	roles := map[string]job.Role{}
	for entry := range strings.SplitSeq(c.OIDCRoles, ",") {
		at := max(0, strings.LastIndexByte(entry, '='))
		group, role := strings.TrimSpace(entry[:at]), job.Role(strings.TrimSpace(strings.TrimPrefix(entry[at:], "=")))
		if _, again := roles[group]; again || group == "" || !slices.Contains(job.Roles, role) {
			return nil
		}
		roles[group] = role
	}
	return roles
}

// LoginScopes splits OIDC_SCOPES.
func (c Config) LoginScopes() []string { return words(c.OIDCScopes) }

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' })
}

// IsAddress reports whether s is address:port, or a host name with a port.
func IsAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && strconv.FormatUint(n, 10) == port && isHost(host)
}

// isOnLoopback reports whether an address and port can be reached from this machine only.
func isOnLoopback(s string) bool {
	host, _, _ := net.SplitHostPort(s)
	return job.IsLoopback(host)
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isHost(u.Hostname()) &&
		u.User == nil && u.RawQuery == "" && u.Fragment == "" && !strings.ContainsAny(s, " \t\r\n")
}

// isSecureURL reports whether s is a URL whose host is proven by TLS, or is this machine.
func isSecureURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isURL(s) && (u.Scheme == "https" || job.IsLoopback(u.Hostname()))
}

// isResource reports whether s can identify this server to OAuth clients, which look for its
// metadata where this URL says.
func isResource(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isSecureURL(s) && (u.Path == "" || u.Path == "/mcp") && s == u.Scheme+"://"+u.Host+u.Path
}

// isDatabaseURL reports whether s names a PostgreSQL database. The directory of a socket may be in
// the parameter host.
func isDatabaseURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql") && len(u.Path) > 1 && u.Fragment == ""
}

// isOrigin reports whether s is an origin exactly as in a browser's Origin header, since it is
// compared with that.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	if err != nil || s != strings.ToLower(u.Scheme+"://"+u.Host) {
		return false
	}
	usual, ok := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if u.Host == u.Hostname() || u.Host == "["+u.Hostname()+"]" { // no port
		return ok && isHost(u.Hostname())
	}
	return ok && IsAddress(u.Host) && u.Port() != usual
}

// onLoopback reports whether a URL names this machine in a way that, inside a VM, means the VM itself.
func onLoopback(callback string) bool {
	u, err := url.Parse(callback)
	if err != nil || callback == "" {
		return false
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	return job.IsLoopback(u.Hostname()) || strings.HasSuffix(u.Hostname(), ".localhost") || addr.IsUnspecified()
}

package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"linus/internal/cluster"
	"linus/internal/config"
	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/vm"
)

// Backend provides VMs and access to them.
type Backend struct {
	Provider  job.Provider
	Placer    fleet.Placer  // chooses nodes for VMs; nil: there is no choice
	Templates TemplateStore // on the provider's host
	// TemplatesOn returns the templates of one node; nil: there is no choice.
	TemplatesOn func(ctx context.Context, node string) (TemplateStore, error)
	Guest       Guest
	// Fence makes the provider's hosts refuse an engine's further requests; nil: there is nothing
	// to refuse.
	Fence func(ctx context.Context, engine string) error
	Close func()
}

// Guest is a backend's access to the inside of its VMs.
type Guest interface {
	fleet.Guest
	executor.Runner
}

// Installation is what a backend needs to know about this installation of linus.
type Installation struct {
	owner   string        // the VMs' linus-owner
	version string        // of this binary
	engine  func() string // this engine's ID among those that share the database; nil: it works alone
	keys    guest.Keys    // login keys of the VMs
	sandbox string        // the program that serves sandboxes in VMs; empty: not found

	onReconnect, onLockRetry func()              // called on trouble with the host; may be nil
	onRefused                func(r job.Refusal) // called when a node is refused for a VM; may be nil

	callbackURL func(context.Context) (string, error) // where VMs send their callbacks
}

// NewBackend returns a backend, which does not connect yet. Tests use others than Proxmox.
type NewBackend func(c config.Config, in Installation, log *slog.Logger) Backend

// Proxmox is the real backend: VMs on the configured Proxmox host, or on the nodes of its cluster.
func Proxmox(c config.Config, in Installation, log *slog.Logger) Backend {
	provider := func(o remote.Options, change func(*proxmox.Options)) *proxmox.Provider {
		o.Log, o.OnReconnect = log, in.onReconnect
		p := providerOptions(c, in, log)
		p.Host = remote.NewPool(o)
		change(&p)
		return proxmox.New(p)
	}
	if c.Clustered() {
		return proxmoxCluster(c, in, log, provider)
	}
	host := provider(hostOptions(c, c.ProxmoxHost), func(*proxmox.Options) {})
	inside := guest.New(guest.Options{Host: guest.Through(host.Host()), Keys: in.keys, Port: c.VMSSHPort, Sandbox: in.sandbox, Sandboxes: c.E2BAddr != "", Log: log})
	return Backend{
		Provider: host, Templates: host, Guest: inside, Fence: host.Fence,
		Close: func() { inside.Close(); host.Close() },
	}
}

// proxmoxCluster is the backend for a cluster's nodes.
func proxmoxCluster(c config.Config, in Installation, log *slog.Logger, provider func(remote.Options, func(*proxmox.Options)) *proxmox.Provider) Backend {
	o := cluster.Options{
		Only: c.Nodes(), Storage: c.ProxmoxStorage, Bridge: c.ProxmoxBridge, MaxVMs: c.MaxVMsPerNode,
		Refused: in.onRefused, Log: log,
		Open: func(n job.Node) cluster.Node {
			at := hostOptions(c, n.Address)
			at.HostKeys = n.HostKeys
			return provider(at, func(p *proxmox.Options) {
				p.Node, p.Member = n.Name, true
				p.KeyRemedy = "the cluster reports another key, in /etc/pve/nodes/" + n.Name + "/ssh_known_hosts; if the node was reinstalled, run `pvecm updatecerts` on it; " +
					"if not, something stands between here and the node"
			})
		},
	}
	for _, host := range c.Hosts() {
		o.Entries = append(o.Entries, cluster.Entry{Host: host, Node: provider(hostOptions(c, host), func(p *proxmox.Options) { p.Node, p.Member = "", true })})
	}
	nodes := cluster.New(o)
	inside := guest.New(guest.Options{
		Host: func(ctx context.Context, v vm.VM) (*remote.Pool, error) {
			n, err := nodes.At(ctx, v)
			if err != nil {
				return nil, err
			}
			return n.(*proxmox.Provider).Host(), nil
		},
		Keys: in.keys, Port: c.VMSSHPort, Sandbox: in.sandbox, Sandboxes: c.E2BAddr != "", Log: log,
	})
	return Backend{
		Provider: nodes, Placer: nodes, Templates: nodes, Guest: inside, Fence: nodes.Fence,
		TemplatesOn: func(ctx context.Context, node string) (TemplateStore, error) { return nodes.Node(ctx, node) },
		Close:       func() { inside.Close(); nodes.Close() },
	}
}

// providerOptions returns how VMs are created on any node.
func providerOptions(c config.Config, in Installation, log *slog.Logger) proxmox.Options {
	return proxmox.Options{
		Node: c.ProxmoxNode, Storage: c.ProxmoxStorage, Bridge: c.ProxmoxBridge, VLANTag: c.ProxmoxVLANTag,
		PlainTools: c.ProxmoxTools == "plain", StorageReserve: cmp.Or(c.StorageReserve, -1), MaxSnapshots: cmp.Or(c.MaxSnapshots, -1),
		VMIDRange: c.ProxmoxVMIDRange, IPConfig: c.VMIPConfig, Gateway: c.VMGateway,
		Nameservers: strings.Join(c.Nameservers(), " "),
		VMUser:      c.VMSSHUser, GuestPort: c.VMSSHPort,
		Template: c.DefaultVMTemplate, Owner: in.owner, Engine: in.engine, Version: in.version, ScriptDir: c.ProxmoxScriptDir,
		NetworkTimeout: time.Duration(c.VMNetworkTimeout) * time.Second,
		ReadyTimeout:   time.Duration(c.VMReadyTimeout) * time.Second,
		OnLockRetry:    in.onLockRetry,
		CallbackURL:    in.callbackURL,
		Loopback:       c.LabLoopback,
		Routed:         c.VMRouted, TrustFirstUse: c.VMTrustFirstUse,
		Log: log,
	}
}

// refusedPatience is how long a host may refuse connections before a call fails: its sshd may be
// restarting, or shedding load.
const refusedPatience = time.Second

// hostOptions returns how to connect to a Proxmox host.
func hostOptions(c config.Config, host string) remote.Options {
	at := c.Endpoint(host)
	o := remote.Options{
		Host: at.Host, Port: at.Port, User: at.User, Patience: refusedPatience,
		KeyPath: c.ProxmoxSSHKeyPath, KnownHosts: c.ProxmoxKnownHosts, AgentSocket: c.AgentSocket, Identities: at.Identities,
	}
	if c.ProxmoxSSHPassword.Reveal() != "" {
		o.Password = c.ProxmoxSSHPassword.Reveal
	}
	return o
}

// ScanHostKey asks one of the configured Proxmox hosts for its key.
func ScanHostKey(ctx context.Context, c config.Config, host string) (remote.HostKey, error) {
	return remote.ScanHostKey(ctx, hostOptions(c, host))
}

// TrustHostKey adds a key of the Proxmox host to the configured known_hosts.
func TrustHostKey(c config.Config, key remote.HostKey) error {
	return remote.TrustHostKey(c.ProxmoxKnownHosts, key)
}

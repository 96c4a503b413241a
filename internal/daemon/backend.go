package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"linus/internal/config"
	"linus/internal/executor"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
)

// Backend provides VMs and access to them.
type Backend struct {
	Provider  job.Provider
	Templates TemplateStore // on the provider's host
	Guest     executor.Guest
	// Fence makes the provider's host refuse what an engine asks from now on; nil where
	// there is nothing to refuse.
	Fence func(ctx context.Context, engine string) error
	Close func()
}

// Installation is what a backend needs to know about this installation of linus.
type Installation struct {
	owner     string        // the VMs' linus-owner
	engine    func() string // the ID of this engine among those that share the database; nil: it works alone
	keys      guest.Keys    // login keys of the VMs
	publicKey string        // of VMs created before each had its own key; empty: there are none

	onReconnect, onLockRetry func() // called on trouble with the host; may be nil

	callbackURL func(context.Context) (string, error) // where VMs send their callbacks
}

// NewBackend returns a backend, which connects to nothing yet. Tests use others than
// Proxmox.
type NewBackend func(c config.Config, in Installation, log *slog.Logger) Backend

// Proxmox is the real backend: VMs on the configured Proxmox host.
func Proxmox(c config.Config, in Installation, log *slog.Logger) Backend {
	o := hostOptions(c)
	o.Log, o.OnReconnect = log, in.onReconnect
	host := remote.NewPool(o)
	inside := guest.New(guest.Options{Host: host, Keys: in.keys, Port: c.VMSSHPort, Log: log})
	provider := proxmox.New(proxmox.Options{
		Host: host,
		Node: c.ProxmoxNode, Storage: c.ProxmoxStorage, Bridge: c.ProxmoxBridge, VLANTag: c.ProxmoxVLANTag,
		VMIDRange: c.ProxmoxVMIDRange, IPConfig: c.VMIPConfig, Gateway: c.VMGateway,
		Nameservers:  strings.Join(c.Nameservers(), " "),
		SSHPublicKey: in.publicKey, VMUser: c.VMSSHUser, GuestPort: c.VMSSHPort,
		Template: c.DefaultVMTemplate, Owner: in.owner, Engine: in.engine, ScriptDir: c.ProxmoxScriptDir,
		NetworkTimeout: time.Duration(c.VMNetworkTimeout) * time.Second,
		ReadyTimeout:   time.Duration(c.VMReadyTimeout) * time.Second,
		OnLockRetry:    in.onLockRetry,
		CallbackURL:    in.callbackURL,
		Loopback:       c.LabLoopback,
		Routed:         c.VMRouted, TrustFirstUse: c.VMTrustFirstUse,
		Log: log,
	})
	return Backend{
		Provider: provider, Templates: provider, Guest: inside, Fence: provider.Fence,
		Close: func() { inside.Close(); host.Close() },
	}
}

// hostOptions returns how to connect to the Proxmox host.
func hostOptions(c config.Config) remote.Options {
	o := remote.Options{
		Host: c.ProxmoxHost, Port: c.ProxmoxSSHPort, User: c.ProxmoxSSHUser,
		KeyPath: c.ProxmoxSSHKeyPath, KnownHosts: c.ProxmoxKnownHosts, AgentSocket: c.AgentSocket,
	}
	if c.ProxmoxSSHPassword.Reveal() != "" {
		o.Password = c.ProxmoxSSHPassword.Reveal
	}
	return o
}

// ScanHostKey asks the configured Proxmox host for its key.
func ScanHostKey(ctx context.Context, c config.Config) (remote.HostKey, error) {
	return remote.ScanHostKey(ctx, hostOptions(c))
}

// TrustHostKey adds a key of the Proxmox host to the configured known_hosts.
func TrustHostKey(c config.Config, key remote.HostKey) error {
	return remote.TrustHostKey(c.ProxmoxKnownHosts, key)
}

// loginKeys are the VMs' login keys, in the state directory. Old installations also
// have one shared key, which their older VMs accept.
func loginKeys(c config.Config) guest.Keys {
	return guest.Keys{Dir: filepath.Join(c.StateDir, "keys"), Old: filepath.Join(c.StateDir, "id_ed25519")}
}

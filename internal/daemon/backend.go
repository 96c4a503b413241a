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

// Backend is where VMs come from and how to work in them.
type Backend struct {
	Provider  job.Provider
	Templates TemplateStore // on the provider's host
	Guest     executor.Guest
	Close     func()
}

// Installation is what a backend must know of this installation of linus.
type Installation struct {
	owner     string     // the VMs' linus-owner
	keys      guest.Keys // what logs in to VMs
	publicKey string     // of those made before each had its own; empty: there are none

	onReconnect, onLockRetry func() // told of trouble with the host; nil: nobody

	callbackURL func(context.Context) (string, error) // what VMs are told to report to
}

// NewBackend makes a backend; it reaches for nothing yet. Tests have another than
// Proxmox.
type NewBackend func(c config.Config, in Installation, log *slog.Logger) Backend

// Proxmox is the real backend: VMs on the Proxmox host of the settings.
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
		Template: c.DefaultVMTemplate, Owner: in.owner, ScriptDir: c.ProxmoxScriptDir,
		NetworkTimeout: time.Duration(c.VMNetworkTimeout) * time.Second,
		ReadyTimeout:   time.Duration(c.VMReadyTimeout) * time.Second,
		OnLockRetry:    in.onLockRetry,
		CallbackURL:    in.callbackURL,
		Loopback:       c.LabLoopback,
		Routed:         c.VMRouted, TrustFirstUse: c.VMTrustFirstUse,
		Log: log,
	})
	return Backend{
		Provider: provider, Templates: provider, Guest: inside,
		Close: func() { inside.Close(); host.Close() },
	}
}

// hostOptions say how to reach the Proxmox host.
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

// ScanHostKey asks the Proxmox host of the settings for its key.
func ScanHostKey(ctx context.Context, c config.Config) (remote.HostKey, error) {
	return remote.ScanHostKey(ctx, hostOptions(c))
}

// TrustHostKey adds a key of the Proxmox host to the settings' known_hosts.
func TrustHostKey(c config.Config, key remote.HostKey) error {
	return remote.TrustHostKey(c.ProxmoxKnownHosts, key)
}

// loginKeys are the keys of the VMs, in the state directory. Installations of old
// have one for all, which their VMs of then know.
func loginKeys(c config.Config) guest.Keys {
	return guest.Keys{Dir: filepath.Join(c.StateDir, "keys"), Old: filepath.Join(c.StateDir, "id_ed25519")}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"linus/internal/callback"
	"linus/internal/config"
	"linus/internal/executor"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/secret"
	"linus/internal/store"
)

// backend is where VMs come from and how to work in them.
type backend struct {
	provider  job.Provider
	templates templates // on the provider's host
	guest     executor.Guest
	close     func()
}

// installation is what a backend must know of this installation of linus.
type installation struct {
	owner     string     // the VMs' linus-owner
	keys      guest.Keys // what logs in to VMs
	publicKey string     // of those made before each had its own; empty: there are none

	onReconnect, onLockRetry func() // told of trouble with the host; nil: nobody

	callbackURL func(context.Context) (string, error) // what VMs are told to report to
}

// newBackend makes a backend; it reaches for nothing yet. Tests have another.
type newBackend func(c config.Config, in installation, log *slog.Logger) backend

// proxmoxBackend is the real one: VMs on the Proxmox host of the settings.
func proxmoxBackend(c config.Config, in installation, log *slog.Logger) backend {
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
	return backend{
		provider: provider, templates: provider, guest: inside,
		close: func() { inside.Close(); host.Close() },
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

// engine is everything that runs jobs in this process.
type engine struct {
	*executor.Executor
	callbacks *callback.Server
	backend   backend
	store     *store.Store
	watch     *watch
	log       *slog.Logger
}

// openEngine wires the parts over the state directory, which the caller has
// locked, and takes the callback port. Nothing runs before start.
func (a *app) openEngine(ctx context.Context, c config.Config, log *slog.Logger) (*engine, error) {
	st, err := store.Open(ctx, store.Options{Dir: c.StateDir, MaxOutput: int64(c.MaxOutputSize), Log: log})
	if err != nil {
		return nil, err
	}
	e := &engine{store: st, log: log}
	allow, err := policies(c)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	limits := policy.Limits{Jobs: c.LimitJobs, CPU: c.LimitCPU, MemoryMB: c.LimitMemoryMB(), Seconds: c.LimitSeconds}
	admit := limits.Check
	if limits == (policy.Limits{}) {
		admit = nil // nobody need count
	}
	in := installation{keys: loginKeys(c)}
	in.owner, err = st.InstallationID(ctx)
	if _, none := os.Stat(in.keys.Old); err == nil && none == nil {
		in.publicKey, err = remote.EnsureKeyPair(in.keys.Old, "linus")
	}
	if err == nil {
		e.watch, err = openWatch(ctx, c, in.owner, st, log)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	in.onReconnect, in.onLockRetry = e.watch.metrics.Reconnected, e.watch.metrics.LockRetried
	in.callbackURL = func(ctx context.Context) (string, error) { return e.callbackURL(ctx, c) }
	e.backend = a.backend(c, in, log)
	e.Executor = executor.New(executor.Options{
		Store: st, Provider: e.watch.audit.Provider(e.backend.provider), Guest: e.backend.guest, Log: log,
		Observer: e.watch.observer(),
		Owner:    in.owner,
		Defaults: job.Defaults{VMTemplate: c.DefaultVMTemplate, Timeout: c.DefaultTimeout, CPU: c.DefaultCPU, Memory: c.DefaultMemory, Disk: c.DefaultDisk},
		Secrets:  secrets(c).Resolve,
		Keys:     in.keys,
		Artifacts: job.ArtifactLimits{
			Files: c.MaxArtifactFiles, Each: int64(c.MaxArtifactSize), All: int64(c.MaxArtifactsSize),
		},
		MaxJobs: c.MaxJobs, MaxOutput: int64(c.MaxOutputSize),
		HeartbeatThreshold: time.Duration(c.HeartbeatThreshold) * time.Second,
		CleanupInterval:    time.Duration(c.CleanupInterval) * time.Second,
		Lease:              time.Duration(c.LeaseHours) * time.Hour,
		Retention:          time.Duration(c.RetentionDays) * 24 * time.Hour,
		Allow:              allow,
		Admit:              admit,
		CallbackURL:        func(ctx context.Context) (string, error) { return e.callbackURL(ctx, c) },
		CallbackAddr:       func() string { return e.callbacks.Addr() },
	})
	e.callbacks, err = callback.Listen(ctx, c.CallbackHost, c.CallbackPort, e.watch.metrics.Reporter(e.Executor), log)
	if err != nil {
		e.backend.close()
		return nil, errors.Join(listenError(err, c), st.Close())
	}
	return e, nil
}

// loginKeys are the keys of the VMs, in the state directory. Installations of old
// have one for all, which their VMs of then know.
func loginKeys(c config.Config) guest.Keys {
	return guest.Keys{Dir: filepath.Join(c.StateDir, "keys"), Old: filepath.Join(c.StateDir, "id_ed25519")}
}

// policies returns what says whether a client may have a job: the settings
// ALLOWED_*.
func policies(c config.Config) (func(job.Submission) error, error) {
	commands, err := policy.New(c.AllowedCommands)
	if err != nil {
		return nil, err
	}
	bounds, err := policy.NewBounds(policy.Choices{
		Bridges: c.AllowedBridges, VLANs: c.AllowedVLANs, Templates: c.AllowedTemplates, Secrets: c.AllowedSecrets,
		Network:  job.Network{Bridge: c.ProxmoxBridge, VLAN: c.ProxmoxVLANTag, IP: c.VMIPConfig, Gateway: c.VMGateway},
		Template: c.DefaultVMTemplate,
	})
	if err != nil {
		return nil, err
	}
	return func(s job.Submission) error {
		if err := bounds.Check(s); err != nil || s.Kind == job.KindVM { // which runs nothing
			return err
		}
		return commands.Check(s.Manifest)
	}, nil
}

// secrets are where the settings say they are.
func secrets(c config.Config) *secret.Source {
	o := secret.Options{File: c.SecretsFile, Credentials: c.CredentialsDirectory}
	for name, value := range c.Secrets {
		o.Environment = append(o.Environment, secret.NewValue(name, value.Reveal()))
	}
	return secret.New(o)
}

// start adopts unfinished jobs and begins to answer callbacks. failed gets the
// error that ends the callback server before its time.
func (e *engine) start(ctx context.Context, failed func(error)) error {
	if err := e.Start(ctx); err != nil {
		return err
	}
	go func() {
		if err := e.callbacks.Serve(); err != nil {
			failed(err)
		}
	}()
	return nil
}

// close ends the engine. Tasks in VMs go on.
func (e *engine) close(ctx context.Context) error {
	err := errors.Join(e.callbacks.Close(ctx), e.Close(ctx))
	e.backend.close()
	e.watch.close(ctx, e.log)
	return errors.Join(err, e.store.Close())
}

// callbackURL is what VMs are told: the setting, or what is really listened on.
// Where that is all addresses, it is the one on the way to the host; where it is
// one that only this machine can reach, there is no URL, and callbacks come by
// tunnels to it.
func (e *engine) callbackURL(ctx context.Context, c config.Config) (string, error) {
	if c.CallbackURL != "" {
		return strings.TrimRight(c.CallbackURL, "/"), nil
	}
	at := e.callbacks.Address()
	host := at.String()
	switch {
	case at.IsLoopback(), at.IsLinkLocalUnicast():
		return "", nil
	case at.IsUnspecified():
		var err error
		if host, err = e.backend.provider.CallbackHost(ctx); err != nil {
			return "", err
		}
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(e.callbacks.Port())), nil
}

// listenError names the setting to blame when the callback port cannot be had.
func listenError(err error, c config.Config) error {
	switch {
	case errors.Is(err, errInUse):
		return fmt.Errorf("CALLBACK_PORT %d is in use: %w; set CALLBACK_PORT to another port, or to 0 for any free one", c.CallbackPort, err)
	case errors.Is(err, errNotOurs):
		return fmt.Errorf("CALLBACK_PORT %d may not be used by this user: %w; set CALLBACK_PORT to one above 1023", c.CallbackPort, err)
	default:
		return fmt.Errorf("CALLBACK_HOST %s cannot be listened on: %w; set CALLBACK_HOST to an address of this machine, or to 0.0.0.0 for all", c.CallbackHost, err)
	}
}

// offlineEngine reads the state directory of an installation whose engine does
// not run and cannot be started for want of a host.
func offlineEngine(ctx context.Context, c config.Config) (*executor.Executor, func() error, error) {
	st, err := store.Open(ctx, store.Options{Dir: c.StateDir, MaxOutput: int64(c.MaxOutputSize)})
	if err != nil {
		return nil, nil, err
	}
	return executor.New(executor.Options{Store: st}), st.Close, nil
}

// logger writes to w: as JSON when asked to, else coloured on a terminal, plain
// lines elsewhere.
func logger(w io.Writer, c config.Config) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(c.LogLevel)) // config has checked it
	switch {
	case c.LogFormat == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l}))
	case isTerminal(w):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: l, TimeFormat: time.TimeOnly, NoColor: config.NoColor()}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}

// lockState takes the lock of the state directory; errLocked when an engine has
// it. The lock goes with the open file, and so with the process. The process id
// in the file is for people.
func lockState(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w; set LINUS_STATE_DIR to a directory of yours", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "engine.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w; set LINUS_STATE_DIR to a directory of yours", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

var errLocked = errors.New("an engine is running here already")

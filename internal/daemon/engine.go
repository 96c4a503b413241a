package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"linus/internal/callback"
	"linus/internal/config"
	"linus/internal/credential"
	"linus/internal/e2b"
	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/git"
	"linus/internal/guest"
	"linus/internal/hosttest"
	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/schedule"
	"linus/internal/sleep"
	"linus/internal/store"
	"linus/internal/token"
	"linus/internal/vm"
	"linus/internal/web"
)

// engine is everything that runs jobs in this process.
type engine struct {
	*executor.Executor
	guarded   job.Engine // the Executor, for faces
	callbacks *callback.Server
	backend   Backend
	store     *store.Store
	tokens    *token.Keeper
	fleet     *fleet.Fleet
	keys      guest.Keys
	hostTests *hosttest.Tests
	watch     *watch
	log       *slog.Logger

	served    atomic.Pointer[string]     // the URL of the HTTP server, once it serves
	sandboxes atomic.Pointer[e2b.Server] // the sandbox server, once it serves
}

// openEngine wires the parts over the state directory, which the caller has locked, and listens on
// the callback port. Nothing runs before start.
func openEngine(ctx context.Context, o Options) (*engine, error) {
	c, log := o.Config, o.Log
	stored := storeOptions(c, log)
	stored.Patience = o.Patience
	st, err := store.Open(ctx, stored)
	if err != nil {
		return nil, err
	}
	e := &engine{store: st, log: log}
	allowed, err := policies(c)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	notify, err := webhooks(c, allowed, o.Version)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	st.VMMessages, st.Changes = notify.OfVM, &job.Changes{}
	limits := policy.Limits{Jobs: c.LimitJobs, CPU: c.LimitCPU, MemoryMB: c.LimitMemoryMB(), DiskMB: c.LimitDiskMB(), Seconds: c.LimitSeconds}
	admit := limits.Check
	if limits == (policy.Limits{}) {
		admit = nil // no limits, so nothing to count
	}
	var in Installation
	if in.keys, err = engineKeys(ctx, c, st); err == nil {
		in.owner, err = st.InstallationID(ctx)
	}
	if err == nil {
		e.watch, err = openWatch(ctx, o, in.owner, st)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if in.sandbox, _, err = Beside("linus-sandbox"); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	in.engine, in.version = st.EngineID, o.Version
	in.onRefused = e.watch.metrics.NodeRefused
	in.onReconnect, in.onLockRetry = e.watch.metrics.Reconnected, e.watch.metrics.LockRetried
	in.callbackURL = func(ctx context.Context) (string, error) { return e.callbackURL(ctx, c) }
	e.backend = o.Backend(c, in, log)
	work := executor.Options{
		Stores: executor.StoresOf(st), Provider: e.watch.audit.Provider(e.backend.Provider), Runner: e.backend.Guest, Log: log,
		Observer: e.watch.observe,
		Defaults: defaultsOf(c),
		Secrets:  secrets(c).Resolve,
		Artifacts: job.ArtifactLimits{
			Files: c.MaxArtifactFiles, Each: int64(c.MaxArtifactSize), All: int64(c.MaxArtifactsSize),
		},
		MaxJobs: c.MaxJobs, MaxOutput: int64(c.MaxOutputSize),
		HeartbeatThreshold: time.Duration(c.HeartbeatThreshold) * time.Second,
		CleanupInterval:    time.Duration(c.CleanupInterval) * time.Second,
		Retention:          time.Duration(c.RetentionDays) * 24 * time.Hour,
		Allow:              allowed.check,
		Webhooks:           notify,
		Spare:              st.Spare,
		CallbackURL:        func(ctx context.Context) (string, error) { return e.callbackURL(ctx, c) },
		CallbackAddr:       func() string { return e.callbacks.Addr() },
		Connected:          e.watch.metrics.Connected,
		Changes:            st.Changes,
		About:              about(o),
	}
	credentials := credential.New(credential.Options{
		Store: st, Dir: filepath.Join(c.StateDir, "credentials"), Shared: c.DatabaseURL.Reveal() != "", Secrets: work.Secrets, Log: log, Observer: work.Observer,
	})
	work.Credentials, work.Proxy = credentials, proxies(credentials)
	work.Repositories = git.New(git.Options{Dir: filepath.Join(c.StateDir, "repositories"), Transport: repositoryWays(credentials), Log: log})
	if c.DatabaseURL.Reveal() != "" { // others may use the same one
		work.Engines, work.Fence = st, e.backend.Fence
		work.Predecessor, work.Joined = predecessor(c), func(id string) { noteEngine(c, id, log) }
	}
	vms := fleet.Options{
		Store: st, Provider: work.Provider, Placer: e.backend.Placer, Log: log,
		Jobs: st, Changes: work.Changes, Owner: in.owner, Guest: e.backend.Guest, Keys: in.keys, Defaults: work.Defaults,
		Admit: admit, Spare: work.Spare, Allow: work.Allow, AllowFile: allowed.commands.CheckFile, AllowStorage: allowed.bounds.CheckStorage, Lease: time.Duration(c.LeaseHours) * time.Hour,
		Checkpoints: job.CheckpointMode(c.Checkpoints), CheckpointBytes: int64(job.SizeMB(c.CheckpointDisk)) << 20,
		CleanupInterval: work.CleanupInterval, Patience: work.HeartbeatThreshold, MaxMaking: c.MaxJobs,
		PortURL: func(id string) string { return web.PortURL(e.httpURL(c), c.PortDomain(), id) },
	}
	if work.Engines != nil {
		vms.Engines = work.Engines
	}
	e.hostTests = hosttest.New(hosttest.Options{
		Store: st, Host: work.Provider, Engine: e, Row: st.VM,
		Engines: vms.Engines, Log: log, Template: c.DefaultVMTemplate, Lease: vms.Lease, Port: c.VMSSHPort,
	})
	vms.Tests, work.HostTests = e.hostTests, e.hostTests
	work.Schedules = schedule.New(schedule.Options{Store: st, Engine: e, Log: log})
	e.fleet, e.keys = fleet.New(vms), in.keys
	work.Fleet = e.fleet
	e.tokens = token.New(token.Options{Store: st, Limits: work.Defaults.TokenLimits(c.MaxJobs), Log: log, Observer: work.Observer})
	work.Tokens = e.tokens
	e.Executor = executor.New(work)
	e.guarded = executor.Guarded(e.Executor)
	e.callbacks, err = callback.Listen(ctx, c.CallbackHost, c.CallbackPort, e.watch.metrics.Reporter(e.Executor), log)
	if err != nil {
		e.backend.Close()
		return nil, errors.Join(listenError(err, c), st.Close())
	}
	return e, nil
}

// storeOptions returns the options of the store that the settings name. log may be nil.
func storeOptions(c config.Config, log *slog.Logger) store.Options {
	return store.Options{Dir: c.StateDir, URL: c.DatabaseURL.Reveal(), Reserve: int64(c.StateReserve) << 20, MaxOutput: int64(c.MaxOutputSize), MaxJobs: c.MaxJobsAll, Log: log}
}

// engineFile has the ID under which the state directory's engine shares a database. Whoever has
// locked the directory knows that the previous engine is dead.
func engineFile(c config.Config) string { return filepath.Join(c.StateDir, "engine-id") }

func predecessor(c config.Config) string {
	text, err := os.ReadFile(engineFile(c))
	if err != nil {
		return "" // its lease ends by itself
	}
	return strings.TrimSpace(string(text))
}

func noteEngine(c config.Config, id string, log *slog.Logger) {
	if err := os.WriteFile(engineFile(c), []byte(id+"\n"), 0o600); err != nil {
		log.Warn("the engine's ID was not noted: after a crash, its jobs wait for the end of its lease", "err", err)
	}
}

// about describes this engine.
func about(o Options) job.EngineInfo {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return job.EngineInfo{Host: host, PID: os.Getpid(), Version: o.Version, URL: o.Config.CallbackURL, StartedAt: time.Now().UTC()}
}

// start adopts unfinished jobs and begins to serve callbacks. failed is called with the error if
// the callback server fails.
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

// drain makes the engine take no more jobs, and calls end once it works on none. ctx is the
// engine's.
func (e *engine) drain(asked, ctx context.Context, end func(error)) error {
	if err := e.Drain(asked); err != nil {
		return err
	}
	go func() { //nolint:contextcheck // it outlives the call that asks
		for !e.Drained() {
			if sleep.For(ctx, 100*time.Millisecond) != nil {
				return
			}
		}
		end(errDrained)
	}()
	return nil
}

// free reports whether the engine may end: every job is done, no operation on a VM is in progress,
// and no VM will expire or be suspended, or is to be made or destroyed.
func (e *engine) free(ctx context.Context) bool {
	waiting, _, err := e.store.Queue(ctx)
	if err != nil || waiting > 0 || !e.Idle() {
		return false
	}
	begun, err := e.store.InProgress(ctx)
	if err != nil || len(begun) > 0 {
		return false
	}
	vms, err := e.store.VMs(ctx)
	return err == nil && !slices.ContainsFunc(vms, func(v vm.VM) bool {
		return !v.ExpiresAt.IsZero() || v.Naps() && v.SuspendedAt.IsZero() || v.Doomed() || v.AskedFor() && v.BeingMade()
	})
}

// close stops the engine. Tasks in VMs keep running.
func (e *engine) close(ctx context.Context) error {
	err := errors.Join(e.callbacks.Close(ctx), e.Close(ctx))
	e.backend.Close()
	e.watch.close(ctx, e.log)
	return errors.Join(err, e.store.Close())
}

// callbackURL returns the URL for VMs' callbacks: the setting, or the address listened on. For the
// unspecified address it has this machine's address on the route to the host. It is empty for an
// address that only this machine can reach: callbacks then arrive through tunnels.
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
		if host, err = e.backend.Provider.CallbackHost(ctx); err != nil {
			return "", err
		}
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(e.callbacks.Port())), nil
}

// listenError names the setting to change when the callback port cannot be used.
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

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"linus/internal/config"
	"linus/internal/e2b"
	"linus/internal/egress"
	"linus/internal/job"
	"linus/internal/vm"
)

// e2bFace serves sandboxes to E2B's clients.
type e2bFace struct {
	server *e2b.Server
	at     string
	served chan struct{}
}

// openE2B listens on E2B_ADDR; it returns nil if that is not set. failed is called with the error
// if the server fails.
func openE2B(ctx context.Context, o Options, e *engine, failed func(error)) (*e2bFace, error) {
	c, log := o.Config, o.Log
	if c.E2BAddr == "" {
		return nil, nil
	}
	settings, err := serverTLS(c, log)
	if err != nil {
		return nil, err
	}
	secret, err := e.sandboxSecret(c)
	if err != nil {
		return nil, err
	}
	templates := auditedTemplates{e.backend.Templates, e.watch.audit, o}
	public, publicFirst := c.PublicPorts()
	var uploads e2b.Uploads
	if c.DatabaseURL.Reveal() != "" {
		uploads = e.store
	}
	owners := &owners{tokens: e.tokens.Tokens, of: map[string]bool{}}
	f := &e2bFace{served: make(chan struct{})}
	f.server, err = e2b.Listen(ctx, c.E2BAddr, e2b.Options{
		Engine: e.guarded, Sandboxes: e.fleet, Authenticate: e.Authenticate, Holds: owners.hold, Templates: templates.Templates, Saved: e.store.SavedTemplates, Builds: e.store, Uploads: uploads,
		RemoveTemplate: func(ctx context.Context, name string) error {
			_, err := templates.RemoveTemplate(ctx, name)
			return err
		},
		RenameTemplate: func(ctx context.Context, from, to string) error {
			_, err := templates.RenameTemplate(ctx, from, to)
			return err
		},
		Proxy: func(ctx context.Context, v vm.VM, opened func()) error {
			p := egress.New(egress.Options{Names: v.Network.Allow, Record: e.watch.metrics.Connected})
			defer p.Close()
			return e.backend.Guest.Proxy(ctx, job.Job{ID: v.Job, VM: &v}, job.ProxyPort(v.ProxyOf()), p.Dial, opened)
		},
		Entered: func(v vm.VM) {
			e.watch.observe(job.Entered{VM: v, How: "as a sandbox", By: job.Caller{Client: "e2b", Principal: cmp.Or(v.OwnedBy(), job.OperatorName)}})
		},
		Domain: c.E2BDomain, PublicPorts: public, PublicFirst: publicFirst, Secure: settings != nil || c.E2BInsecure,
		Files: filepath.Join(c.StateDir, "e2b-files"), Spare: e.store.Spare, Secret: secret, Defaults: defaultsOf(c), TLS: settings, Log: log,
	})
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; set E2B_ADDR to another port, or to port 0 for any free one", err)
		}
		return nil, err
	}
	e.sandboxes.Store(f.server)
	go func() {
		defer close(f.served)
		if err := f.server.Serve(); err != nil {
			failed(err)
		}
	}()
	f.at = sandboxURL(c, f.server.Addr())
	log.Info("sandboxes are served to E2B's clients", "addr", f.server.Addr())
	return f, nil
}

// sandboxURL is the URL at which clients reach the server that listens on addr.
func sandboxURL(c config.Config, addr string) string {
	if c.E2BURL != "" {
		return c.E2BURL
	}
	return c.Scheme() + "://" + browserAddr(addr)
}

// SandboxURL is the URL at which E2B's clients reach the server of these settings.
func SandboxURL(c config.Config) (string, error) {
	if _, port, _ := net.SplitHostPort(c.E2BAddr); c.E2BURL == "" && (port == "" || port == "0") {
		return "", &job.FieldError{Field: "E2B_ADDR", Problem: "is not set, or to any free port", Remedy: "set it to an address and port such as 127.0.0.1:8767 and start linus serve again"}
	}
	return sandboxURL(c, c.E2BAddr), nil
}

func (f *e2bFace) url() string {
	if f == nil {
		return ""
	}
	return f.at
}

// close ends streams and requests, and waits for the server.
func (f *e2bFace) close(ctx context.Context) error {
	if f == nil {
		return nil
	}
	err := f.server.Close(ctx)
	<-f.served
	return err
}

// sandboxSecret returns the secret from which sandboxes' access tokens are made. It is the same in
// all engines that share a database.
func (e *engine) sandboxSecret(c config.Config) ([]byte, error) {
	if e.keys.Installation != nil {
		return e.keys.Installation.Derive("sandboxes")
	}
	text, err := ensureToken(filepath.Join(c.StateDir, "sandbox-secret"))
	return []byte(text), err
}

// owners knows who has a valid token that may use sandboxes. What it has read counts for
// ownersTime, and for storeTime while the store does not answer.
type owners struct {
	tokens func(context.Context) ([]job.Token, error)

	mu      sync.Mutex
	reading bool
	read    time.Time
	of      map[string]bool
}

const (
	ownersTime = 4 * time.Second // the tokens read are trusted
	storeTime  = time.Minute     // in which the store has to answer again
)

// hold reports whether the owner's sandboxes may be used: the owner must have a valid token. The
// operator needs none. One caller reads the store; the others go by what is known.
func (o *owners) hold(ctx context.Context, owner string) bool {
	if owner == "" {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if age := time.Since(o.read); age > storeTime || age > ownersTime && !o.reading {
		o.reading = true
		o.mu.Unlock()
		all, err := o.tokens(ctx)
		o.mu.Lock()
		o.reading = false
		if now := time.Now(); err == nil {
			o.read, o.of = now, map[string]bool{}
			for _, t := range all {
				if !t.Expired(now) && e2b.MayUse(t.Principal()) {
					o.of[t.Name] = true
				}
			}
		}
	}
	return time.Since(o.read) <= storeTime && o.of[owner]
}

// Beside returns the path of a program that comes with this one, and this program's own path. The
// program is beside this one or where packages install it; path is empty if it is in neither place.
func Beside(name string) (path, self string, err error) {
	self, err = os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", "", fmt.Errorf("find this program, beside which %s is: %w", name, err)
	}
	places := []string{filepath.Join(filepath.Dir(self), name), filepath.Join(filepath.Dir(self), "..", "lib", "linus", name)}
	if i := slices.IndexFunc(places, func(place string) bool { _, err := os.Stat(place); return err == nil }); i >= 0 {
		path = places[i]
	}
	return path, self, nil
}

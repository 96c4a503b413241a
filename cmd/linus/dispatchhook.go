package main

import (
	"context"
	"net/http"
	"sync"

	"github.com/spf13/cobra"

	"linus/internal/dispatch"
)

// hookFlags are the options of dispatchers whose service announces work by webhooks.
type hookFlags struct{ at, secretFile string }

func (h *hookFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.at, "webhook", "", "receive webhooks at this address, as in :8787 or 127.0.0.1:8787: a proxy with TLS belongs in front (default: none)")
	cmd.Flags().StringVar(&h.secretFile, "webhook-secret-file", "", "file with the webhooks' secret alone, that only you can read")
	_ = cmd.MarkFlagFilename("webhook-secret-file")
	_ = cmd.RegisterFlagCompletionFunc("webhook", cobra.NoFileCompletions)
}

// secret returns the key that webhooks are signed with, or "" if there are none. Beside the engine,
// webhooks may come to the engine's own server instead of an address of their own.
func (h *hookFlags) secret(ctx context.Context, a *app) (string, error) {
	switch {
	case h.at == "" && h.secretFile == "":
		return "", nil
	case h.secretFile == "", h.at == "" && a.own == nil:
		return "", usage("--webhook and --webhook-secret-file go together")
	}
	return a.secretLine(ctx, "--webhook-secret-file", h.secretFile)
}

// serve serves a queue, and its hook if there is one.
func (h *hookFlags) serve(ctx context.Context, a *app, o dispatch.Options, kind, queue string, q dispatch.Queue) error {
	hooked, is := q.(dispatch.Hooked)
	if h.at == "" && is && a.own != nil {
		remove, err := a.own.hooks.add(o.Name, hooked.Hook())
		if err != nil {
			return err
		}
		defer remove()
		a.note("receiving webhooks of %s at /hooks/%s", queue, o.Name)
	}
	if h.at == "" || !is {
		return dispatch.Serve(ctx, o, kind, queue, q)
	}
	l, err := dispatch.ListenHook(ctx, h.at, hooked, o.Log)
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // the process ends
	a.note("receiving webhooks at %s", l.Addr())
	return dispatch.Serve(ctx, o, kind, queue, q)
}

// hooks holds the hooks of the dispatchers that run beside the engine, by dispatcher name.
type hooks struct {
	mu sync.Mutex
	by map[string]http.Handler
}

// add lets a dispatcher's hook receive events until remove is called.
func (h *hooks) add(name string, hook http.Handler) (remove func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[string]http.Handler{}
	}
	if h.by[name] != nil {
		return nil, usage("--name %s: another dispatcher beside the engine receives webhooks under this name: give each its own", name)
	}
	h.by[name] = hook
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.by, name)
	}, nil
}

func (h *hooks) of(name string) http.Handler {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[name]
}

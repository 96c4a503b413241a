package main

import (
	"context"

	"github.com/spf13/cobra"

	"linus/internal/dispatch"
)

// hookFlags are the options of dispatchers whose service tells of work by webhooks.
type hookFlags struct{ at, secretFile string }

func (h *hookFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.at, "webhook", "", "hear webhooks at this address, as in :8787 or 127.0.0.1:8787: a proxy with TLS belongs in front (default: none)")
	cmd.Flags().StringVar(&h.secretFile, "webhook-secret-file", "", "file with the webhooks' secret alone, that only you can read")
	_ = cmd.MarkFlagFilename("webhook-secret-file")
	_ = cmd.RegisterFlagCompletionFunc("webhook", cobra.NoFileCompletions)
}

// secret returns what webhooks are signed with; empty: there are none.
func (h *hookFlags) secret(ctx context.Context, a *app) (string, error) {
	if (h.at == "") != (h.secretFile == "") {
		return "", usage("--webhook and --webhook-secret-file go together")
	}
	if h.at == "" {
		return "", nil
	}
	return a.secretLine(ctx, "--webhook-secret-file", h.secretFile)
}

// serve serves a queue, and its hook if there is one.
func (h *hookFlags) serve(ctx context.Context, a *app, o dispatch.Options, kind, queue string, q dispatch.Queue) error {
	hooked, is := q.(dispatch.Hooked)
	if h.at == "" || !is {
		return dispatch.Serve(ctx, o, kind, queue, q)
	}
	l, err := dispatch.ListenHook(ctx, h.at, hooked, o.Log)
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // the process ends
	a.note("hearing webhooks at %s", l.Addr())
	return dispatch.Serve(ctx, o, kind, queue, q)
}

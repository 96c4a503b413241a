package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"mvdan.cc/sh/v3/shell"

	"linus/internal/config"
	"linus/internal/job"
)

const (
	maxDispatchFile = 64 << 10
	// dispatchersEnd is how long dispatchers have to give up what has begun when their engine stops:
	// sessions go on in their VMs.
	dispatchersEnd = 15 * time.Second
	// dispatchAgain is before a dispatcher is started again that has failed.
	dispatchAgain = time.Minute
)

// dispatchLine is the arguments of a dispatcher, and where they stand.
type dispatchLine struct {
	number int
	args   []string
}

// readDispatchFile returns what a file has run beside the engine.
func readDispatchFile(path string) (lines []dispatchLine, err error) {
	data, err := os.ReadFile(path)
	if err == nil && len(data) > maxDispatchFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxDispatchFile)
	}
	if err != nil {
		return nil, usage("DISPATCH_FILE: %w", err)
	}
	for i, text := range strings.Split(string(data), "\n") {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		args, err := shell.Fields(text, func(string) string { return "" })
		if err != nil {
			return nil, usage("DISPATCH_FILE: %s, line %d: %w; give the arguments of linus dispatch", path, i+1, err)
		}
		if len(args) > 0 {
			lines = append(lines, dispatchLine{i + 1, args})
		}
	}
	return lines, nil
}

// dispatchers runs dispatchers beside the engine of this process, each by itself: one that fails is
// started again, until stop. What their sessions run goes on then, and the next ones take it up.
func (a *app) dispatchers(ctx context.Context, c config.Config, e job.Engine, h *hooks, lines []dispatchLine, log *slog.Logger) (stop func()) {
	ctx, end := context.WithCancel(job.WithClient(job.WithPrincipal(context.WithoutCancel(ctx), job.Operator()), "dispatch"))
	var all sync.WaitGroup
	for _, line := range lines {
		all.Go(func() {
			for {
				err := a.dispatcher(ctx, own{e, c, ctx.Done(), h}, line.args)
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					log.Info("a dispatcher of DISPATCH_FILE has drained; it waits until that is undone", "line", line.number)
					continue
				}
				log.Error("a dispatcher of DISPATCH_FILE has failed; it is started again", "line", line.number, "err", err, "after", dispatchAgain)
				select {
				case <-ctx.Done():
					return
				case <-time.After(dispatchAgain):
				}
			}
		})
	}
	return func() {
		end()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			all.Wait()
		}()
		select {
		case <-ended:
		case <-time.After(dispatchersEnd):
			log.Warn("dispatchers do not end in time")
		}
	}
}

// dispatcher runs linus dispatch with the engine of this process.
func (a *app) dispatcher(ctx context.Context, o own, args []string) error {
	args = append([]string{"dispatch"}, args...)
	b := &app{stdin: strings.NewReader(""), stdout: a.stderr, stderr: a.stderr, backend: a.backend, service: a.service, own: &o}
	root := b.root(args) //nolint:contextcheck // the verbs use their command's context
	root.SetArgs(args)
	root.SetIn(b.stdin)
	root.SetOut(a.stderr)
	root.SetErr(a.stderr)
	return root.ExecuteContext(ctx)
}

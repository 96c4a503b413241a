package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/sleep"
)

const (
	maxDispatchFile = 64 << 10
	// dispatchersEnd is how long dispatchers may take to stop when their engine stops. Sessions
	// keep running in their VMs.
	dispatchersEnd = 15 * time.Second
	// dispatchAgain is the pause before a failed dispatcher is started again.
	dispatchAgain = time.Minute
)

type dispatchLine struct {
	number int
	args   []string
}

// readDispatchFile returns the dispatchers in a file that are to run beside the engine.
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
		args, err := wordsOf(text)
		if err != nil {
			return nil, usage("DISPATCH_FILE: %s, line %d: %w; give the arguments of linus dispatch", path, i+1, err)
		}
		if len(args) > 0 {
			lines = append(lines, dispatchLine{i + 1, args})
		}
	}
	return lines, nil
}

// wordsOf splits a line into words, quoted as in a shell, up to a comment. It refuses what a shell
// would run or expand.
func wordsOf(text string) (words []string, err error) {
	var word []byte
	var quote byte // the open one, or 0
	begun := false
	text += " "
	for i := 0; i < len(text); i++ {
		c, plain := text[i], quote == 0
		switch {
		case !plain && c == quote:
			quote = 0
		case quote == '\'':
			word = append(word, c)
		case c == '\\' && i+2 < len(text) && (plain || strings.IndexByte("\"\\$`", text[i+1]) >= 0):
			i++
			word, begun = append(word, text[i]), true
		case c == '$', c == '`', plain && strings.IndexByte(";&|<>()", c) >= 0:
			return nil, fmt.Errorf("%q has a special meaning in a shell; put it in single quotes", c)
		case plain && (c == '\'' || c == '"'):
			quote, begun = c, true
		case plain && c == '#' && !begun:
			return words, nil
		case !plain || c != ' ' && c != '\t':
			word, begun = append(word, c), true
		case begun:
			words, word, begun = append(words, string(word)), nil, false
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %q is not closed", quote)
	}
	return words, nil
}

// dispatchers runs dispatchers beside the engine of this process, independently of each other,
// until stop is called. One that fails is started again. After stop, sessions keep running, and the
// next dispatchers take them up.
func (a *app) dispatchers(ctx context.Context, c config.Config, e job.Engine, h *hooks, lines []dispatchLine, log *slog.Logger) (stop func()) {
	ctx, end := context.WithCancel(job.WithClient(job.WithPrincipal(context.WithoutCancel(ctx), job.Operator()), "dispatch"))
	var all sync.WaitGroup
	for _, line := range lines {
		all.Go(func() {
			for {
				err := a.dispatcher(ctx, own{Engine: e, config: c, hurry: ctx.Done(), hooks: h}, line.args)
				if ctx.Err() != nil {
					return
				}
				if err == nil {
					log.Info("a dispatcher of DISPATCH_FILE has drained; it waits until that is undone", "line", line.number)
					continue
				}
				log.Error("a dispatcher of DISPATCH_FILE has failed; it is started again", "line", line.number, "err", err, "after", dispatchAgain)
				if sleep.For(ctx, dispatchAgain) != nil {
					return
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
			log.Warn("dispatchers did not end in time")
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
	err := root.ExecuteContext(ctx)
	if err == nil && !o.begun {
		return usage("linus dispatch %s is not a dispatcher: give a queue and its options", strings.Join(args[1:], " "))
	}
	return err
}

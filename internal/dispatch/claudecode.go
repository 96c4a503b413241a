package dispatch

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"al.essio.dev/pkg/shellescape"

	"linus/internal/job"
)

// ClaudeCode is a self-hosted environment of Claude Code, whose runners poll by themselves.
type ClaudeCode struct {
	Secret string // the environment's: its runners have it, in their VMs' memory

	// Replace is how long a runner takes sessions; then it serves the one it has to the end of
	// a turn. It takes one session, and there is another runner in a new VM.
	Replace time.Duration
	Args    []string // more for claude self-hosted-runner
}

// replaceMore is what a runner has to end in after Replace.
const replaceMore = time.Hour

// MaxReplace bounds Replace.
const MaxReplace = job.MaxTimeout*time.Second - replaceMore

// ofClaudeCode is the environment in labels: whose a secret is nobody knows.
const ofClaudeCode = "claude-code"

// KeepClaudeCode keeps a runner in a VM of its own in each place until ctx ends.
func KeepClaudeCode(ctx context.Context, o Options, c ClaudeCode) error {
	if o.Manifest.Timeout == 0 {
		o.Manifest.Timeout = int((c.Replace + replaceMore) / time.Second)
	}
	return Serve(ctx, o, ofClaudeCode, ofClaudeCode, runners{c})
}

// runners is a queue in which there is always a runner to be had.
type runners struct{ ClaudeCode }

func (runners) takes() {}

func (runners) labels(Work) map[string]string {
	return map[string]string{labelEnvironment: ofClaudeCode}
}

// Task runs a runner that takes one session: that is what --capacity 1 and --drain-grace-sec 0
// mean. Nobody asks a VM's runner for its health: that it is a job says it.
func (k runners) Task() string {
	args := append([]string{"--capacity", "1", "--drain-grace-sec", "0", "--health-port", "0"}, k.Args...)
	return fmt.Sprintf(`# Runs Claude Code's self-hosted runner.
PATH=$HOME/.local/bin:$PATH
exec claude self-hosted-runner --environment-secret-file "$item" --base-dir "$HOME/workspace" --retire-at "$(($(date +%%s) + %d))" %s
`, k.Replace/time.Second, shellescape.QuoteCommand(args))
}

func (runners) Waiting(context.Context) ([]Work, error) { return []Work{{ID: rand.Text()}}, nil }

func (runners) Claim(context.Context, Work) (bool, error) { return true, nil }

func (runners) Hold(context.Context, Session, <-chan struct{}) error { return nil }

func (k runners) Handover(context.Context, Session) (Handover, error) {
	return Handover{Secret: []byte(k.Secret)}, nil
}

func (runners) Release(context.Context, Session, *job.Outcome) error { return nil }

package dispatch

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
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
	return Serve(ctx, o, ofClaudeCode, ofClaudeCode, &runners{ClaudeCode: c, began: map[string]time.Time{}})
}

// runners is a queue in which there is always a runner to be had, but for a while after several
// that ended as soon as they had begun.
type runners struct {
	ClaudeCode

	mu    sync.Mutex
	began map[string]time.Time // by sessions' names
	brief int                  // that ended so, one after the other
	until time.Time
}

// atOnce is how long no runner lasts that had a session.
const atOnce = 20 * time.Second

func (*runners) takes() {}

func (*runners) labels(Work) map[string]string {
	return map[string]string{labelEnvironment: ofClaudeCode}
}

// Task runs a runner that takes one session: that is what --capacity 1 and --drain-grace-sec 0
// mean. Nobody asks a VM's runner for its health: that it is a job says it.
func (k *runners) Task() string {
	args := append([]string{"--capacity", "1", "--drain-grace-sec", "0", "--health-port", "0"}, k.Args...)
	return fmt.Sprintf(`# Runs Claude Code's self-hosted runner.
PATH=$HOME/.local/bin:$PATH
exec claude self-hosted-runner --environment-secret-file "$item" --base-dir "$HOME/workspace" --retire-at "$(($(date +%%s) + %d))" %s
`, k.Replace/time.Second, shellescape.QuoteCommand(args))
}

func (k *runners) Waiting(context.Context) ([]Work, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.until) {
		return nil, nil
	}
	return []Work{{ID: rand.Text()}}, nil
}

func (*runners) Claim(context.Context, Work) (bool, error) { return true, nil }

func (*runners) Hold(context.Context, Session, <-chan struct{}) error { return nil }

func (k *runners) Handover(_ context.Context, s Session) (Handover, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.began[s.Name] = time.Now()
	return Handover{Secret: []byte(k.Secret)}, nil
}

func (k *runners) Release(_ context.Context, s Session, _ *job.Outcome) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	began, known := k.began[s.Name]
	delete(k.began, s.Name)
	switch {
	case !known:
	case time.Since(began) > atOnce:
		k.brief = 0
	default:
		if k.brief++; k.brief > 1 {
			k.until = time.Now().Add(min(failedPause<<min(k.brief-2, 10), maxFailed))
		}
	}
	return nil
}

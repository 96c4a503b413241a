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

// ClaudeCode is a self-hosted environment of Claude Code, whose runners poll for sessions themselves.
type ClaudeCode struct {
	Secret string // the environment's; runners have it in their VMs' memory

	// Replace is how long a runner accepts a session; after that it serves the session it has to the end
	// of its turn. A runner serves one session, and is replaced by another one in a new VM.
	Replace time.Duration
	Args    []string // further arguments of claude self-hosted-runner
}

// replaceMore is the time a runner has to end after Replace.
const replaceMore = time.Hour

// MaxReplace bounds Replace.
const MaxReplace = job.MaxTimeout*time.Second - replaceMore

// ofClaudeCode stands for the environment in labels: the secret does not tell which environment it belongs to.
const ofClaudeCode = "claude-code"

// KeepClaudeCode keeps a runner in its own VM in each place until ctx ends.
func KeepClaudeCode(ctx context.Context, o Options, c ClaudeCode) error {
	if o.Manifest.Timeout == 0 {
		o.Manifest.Timeout = int((c.Replace + replaceMore) / time.Second)
	}
	return Serve(ctx, o, ofClaudeCode, ofClaudeCode, &runners{ClaudeCode: c, began: map[string]time.Time{}})
}

// runners is a queue in which a runner is always wanted, except for a while after several runners in a
// row have ended as soon as they started.
type runners struct {
	ClaudeCode

	mu    sync.Mutex
	began map[string]time.Time // by session name
	brief int                  // number of runners in a row that ended at once
	until time.Time
}

// atOnce is less than the lifetime of any runner that had a session.
const atOnce = 20 * time.Second

func (*runners) takes() {}

func (*runners) labels(Work) map[string]string {
	return map[string]string{labelEnvironment: ofClaudeCode}
}

// Task runs a runner for one session (--capacity 1, --drain-grace-sec 0). Its health endpoint is off: the
// state of its job is enough.
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

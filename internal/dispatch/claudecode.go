package dispatch

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
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

// KeepClaudeCode keeps a runner in a VM of its own in each place until ctx ends.
func KeepClaudeCode(ctx context.Context, o Options, c ClaudeCode) error {
	if o.Manifest.Timeout == 0 {
		o.Manifest.Timeout = int((c.Replace + replaceMore) / time.Second)
	}
	k := &runners{newDispatcher(o), c}
	return k.run(ctx, k.keep)
}

type runners struct {
	*dispatcher
	ClaudeCode
}

// ofClaudeCode is the environment in labels: whose a secret is nobody knows.
const ofClaudeCode = "claude-code"

func (k *runners) keep(ctx, sessions context.Context) error {
	on, err := k.takeUp(ctx, ofClaudeCode, func(j job.Summary) {
		k.Log.Info("runner goes on", "job_id", j.ID)
		k.followToEnd(sessions, j.ID)
	})
	if !on {
		return err
	}
	for k.place(ctx) {
		k.begin(func() { k.one(sessions) })
	}
	return nil
}

// one has a runner made and follows it to its end.
func (k *runners) one(ctx context.Context) {
	id, err := k.start(ctx)
	if err == nil {
		k.followToEnd(ctx, id)
		return
	}
	if id != "" {
		k.cancel(ctx, id)
	}
	k.Log.Warn("a runner cannot be started", "job_id", id, "err", err)
	k.coolDown(ctx)
}

func (k *runners) start(ctx context.Context) (id string, err error) {
	name := "linus-dispatch-" + rand.Text()
	// One session: that is what --capacity 1 and --drain-grace-sec 0 mean. Nobody asks a VM's
	// runner for its health: that it is a job says it.
	args := append([]string{"--capacity", "1", "--drain-grace-sec", "0", "--health-port", "0"}, k.Args...)
	task := "# Runs Claude Code's self-hosted runner.\n" + strings.ReplaceAll(awaits, "NAME", name) + fmt.Sprintf(`PATH=$HOME/.local/bin:$PATH
exec claude self-hosted-runner --environment-secret-file "$item" --base-dir "$HOME/workspace" --retire-at "$(($(date +%%s) + %d))" %s
`, k.Replace/time.Second, shellescape.QuoteCommand(args))
	id, err = k.launch(ctx, name, k.manifest(task, map[string]string{labelEnvironment: ofClaudeCode}))
	if err == nil {
		err = k.deliver(ctx, id, name, []byte(k.Secret))
	}
	if err == nil {
		k.Log.Info("runner is started", "job_id", id)
	}
	return id, err
}

func (k *runners) followToEnd(ctx context.Context, id string) {
	j, err := k.follow(ctx, id, ofClaudeCode)
	if err != nil || j.Outcome == nil {
		return // it goes on without us, or was deleted
	}
	if o := j.Outcome; o.Status != job.Success {
		k.Log.Warn("runner has failed", "job_id", id, "reason", o.Reason, "err", o.Error)
		k.coolDown(ctx)
		return
	}
	k.Log.Info("runner has ended", "job_id", id)
}

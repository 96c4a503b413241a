package dispatch_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/dispatch"
	"linus/internal/job"
	"linus/internal/queuetest"
)

// As many runners as asked for, each in its VM, with the secret in that one's memory; one that
// ends has a successor, until the dispatcher is to end. The next goes on with those there are.
func TestClaudeCode_KeepsRunners(t *testing.T) {
	t.Parallel()
	const secret = "sk-env-of-a-pool"
	e, started := newEngine(t), make(chan string, 10)
	e.Run = func(ctx context.Context, vm queuetest.VM) int {
		started <- vm.ID
		<-ctx.Done()
		return 0
	}
	o := dispatch.Options{Engine: e, Name: "here", Sessions: 2, Drain: time.Minute, Log: quiet}
	c := dispatch.ClaudeCode{Secret: secret, Replace: time.Hour, Args: []string{"--client-label", "a b"}}
	keep := func() (stop context.CancelFunc, ended chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		ended = make(chan error, 1)
		go func() { ended <- dispatch.KeepClaudeCode(ctx, o, c) }()
		return cancel, ended
	}
	hurry := make(chan struct{})
	o.Hurry = hurry
	stop, ended := keep()
	first, second := <-started, <-started
	e.End(first, job.Success, job.ReasonExitStatus, 0)
	third := <-started
	stop()
	close(hurry)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "2 jobs keep running") || !strings.Contains(err.Error(), second) || !strings.Contains(err.Error(), third) {
		t.Errorf("it ended with %v", err)
	}
	m, files := e.VMs()[first].Manifest, e.VMs()[first].Files
	if strings.Contains(m.Task, secret) || !strings.Contains(m.Task, `--retire-at "$(($(date +%s) + 3600))"`) || !strings.Contains(m.Task, "--client-label 'a b'") || m.Timeout != 7200 {
		t.Errorf("manifest %+v", m)
	}
	for path, content := range files {
		if !strings.HasPrefix(path, "/dev/shm/") || content != secret {
			t.Errorf("%s has %q", path, content)
		}
	}

	o.Hurry = nil
	stop, ended = keep()
	e.End(second, job.Success, job.ReasonExitStatus, 0)
	fourth := <-started // and no more: the third is one of the two
	stop()
	e.End(third, job.Success, job.ReasonExitStatus, 0)
	e.End(fourth, job.Success, job.ReasonExitStatus, 0)
	if err := <-ended; err != nil || len(started) > 0 || len(e.VMs()) != 4 {
		t.Errorf("%v, %d jobs", err, len(e.VMs()))
	}
}

// A runner that ends as soon as it has begun, and says that all is well, costs no VM after the other.
func TestClaudeCode_RunnersThatEndAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := queuetest.NewEngine(t)
		e.Run = func(context.Context, queuetest.VM) int { return 0 }
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		err := dispatch.KeepClaudeCode(ctx, dispatch.Options{Engine: e, Name: "here", Sessions: 2, Log: quiet}, dispatch.ClaudeCode{Secret: "s", Replace: time.Hour})
		if n := len(e.VMs()); err != nil || n < 5 || n > 40 {
			t.Errorf("%v, %d VMs in an hour", err, n)
		}
	})
}

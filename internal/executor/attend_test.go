package executor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
)

// channelGuest is a guest whose tasks have a channel, and that counts what else it is
// asked.
type channelGuest struct {
	executor.Runner
	follow func(ctx context.Context, j job.Job, take func(job.Piece) error) error
	asked  atomic.Int32
}

func (g *channelGuest) Follow(ctx context.Context, j job.Job, take func(job.Piece) error) error {
	return g.follow(ctx, j, take)
}

func (g *channelGuest) Probe(ctx context.Context, j job.Job) (job.RunState, error) {
	g.asked.Add(1)
	return g.Runner.Probe(ctx, j)
}

func (g *channelGuest) Sums(ctx context.Context, j job.Job, stdout, stderr int64) ([2]string, error) {
	g.asked.Add(1)
	return g.Runner.Sums(ctx, j, stdout, stderr)
}

func (g *channelGuest) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	g.asked.Add(1)
	return g.Runner.ReadOutput(ctx, j, stream, offset, limit)
}

// bring makes pieces of a stream, of that size.
func bring(take func(job.Piece) error, stream string, data []byte, size int) error {
	for at := 0; at < len(data); at += size {
		if err := take(job.Piece{Stream: stream, Offset: int64(at), Data: data[at:min(at+size, len(data))]}); err != nil {
			return err
		}
	}
	return nil
}

// end is how a task ended that wrote this.
func end(code int, stdout, stderr string) job.Piece {
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	return job.Piece{End: &job.RunState{
		Started: true, Exited: true, ExitCode: code, Reason: "exit", Sums: [2]string{sum(stdout), sum(stderr)},
		StdoutBytes: int64(len(stdout)), StderrBytes: int64(len(stderr)),
	}}
}

// channelled makes the engine anew over a guest with channels.
func (r *rig) channelled(follow func(ctx context.Context, j job.Job, take func(job.Piece) error) error) *channelGuest {
	r.t.Helper()
	r.stop()
	g := &channelGuest{Runner: r.fake, follow: follow}
	r.opts.Runner = g
	r.restart()
	return g
}

// What has come by the channel, and the task's end, need nothing more of the VM; and a
// callback that reports that end first does not change that.
func TestChannel_IsEnough(t *testing.T) {
	for name, reports := range map[string]bool{"alone": false, "beside a callback": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			g := r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
				return errors.Join(bring(take, job.Stdout, []byte("out and out"), 4), bring(take, job.Stderr, []byte("err"), 9), take(end(7, "out and out", "err")))
			})
			r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("out and out"), Stderr: []byte("err"), ExitCode: 7})}, reports)
			id := r.submit()
			j := r.wait(id)
			got, err := r.Result(t.Context(), id)
			if err != nil || string(got.Stdout) != "out and out" || string(got.Stderr) != "err" || *j.Outcome.ExitCode != 7 || got.StdoutInfo.Incomplete {
				t.Errorf("%+v, %v", got, err)
			}
			if n := g.asked.Load(); n != 0 {
				t.Errorf("the VM was asked %d times", n)
			}
			r.noLeaks()
		})
	}
}

// What an agent did last is told, though its end comes with it.
func TestChannel_AnAgentsLastStepIsTold(t *testing.T) {
	r := newRig(t, 1)
	out := claudeSays("I look at it.") + claudeEnds
	r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
		return errors.Join(bring(take, job.Stdout, []byte(out), 4096), take(end(0, out, "")))
	})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte(out)})}, false)
	id := r.submit(func(m *job.Manifest) { m.AgentType, m.StatusMode = job.AgentClaude, job.StatusStreaming })
	r.wait(id)
	events, err := r.store.Events(t.Context(), id, 0)
	if err != nil || !slices.ContainsFunc(events, func(e job.Event) bool { return e.Text == "I look at it." }) {
		t.Errorf("%+v, %v", events, err)
	}
}

// Output that comes by the channel is there while the task runs.
func TestChannel_OutputIsThereAtOnce(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{Stdout: []byte("first")})
	came := make(chan struct{})
	r.channelled(func(ctx context.Context, _ job.Job, take func(job.Piece) error) error {
		err := bring(take, job.Stdout, []byte("first"), 9)
		close(came)
		return errors.Join(err, never(ctx))
	})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit()
	<-came
	if data, err := r.store.Output(t.Context(), id, job.Stdout, 0, 9); err != nil || string(data) != "first" {
		t.Errorf("%q, %v", data, err)
	}
	release()
	if j := r.wait(id); j.Status != job.Success {
		t.Errorf("a channel that says nothing of the end: %+v", j.Outcome)
	}
}

// A channel can break at any time, bring what is not the task's, or leave some out: the
// result is what the VM has.
func TestChannel_IsNotTrusted(t *testing.T) {
	truth := string(counted(3000))
	broken := errors.New("the connection ended")
	for name, follow := range map[string]func(take func(job.Piece) error) error{
		"breaks": func(take func(job.Piece) error) error {
			return errors.Join(bring(take, job.Stdout, []byte(truth[:999]), 100), broken)
		},
		"lies": func(take func(job.Piece) error) error {
			return errors.Join(bring(take, job.Stdout, []byte(strings.ToUpper(strings.ReplaceAll(truth, "7", "8"))), 100), take(end(0, truth, "")))
		},
		"says less": func(take func(job.Piece) error) error {
			return errors.Join(bring(take, job.Stdout, []byte(truth[:999]), 100), take(end(0, truth, "")))
		},
		"says more": func(take func(job.Piece) error) error {
			return errors.Join(bring(take, job.Stdout, []byte(truth+truth), 100), take(end(0, truth, "")))
		},
		"has a gap": func(take func(job.Piece) error) error {
			return take(job.Piece{Stream: job.Stdout, Offset: 9, Data: []byte("x")})
		},
		"jumps": func(take func(job.Piece) error) error {
			return errors.Join(bring(take, job.Stdout, []byte(truth[:999]), 100), take(job.Piece{Stream: job.Stdout, Offset: 5, Data: []byte("x")}))
		},
		"has no sums": func(take func(job.Piece) error) error {
			p := end(0, truth, "")
			p.End.Sums = [2]string{}
			return errors.Join(bring(take, job.Stdout, []byte(truth), 100), take(p))
		},
		"is silent": func(func(job.Piece) error) error { return broken },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error { return follow(take) })
			r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte(truth)})}, true)
			id := r.submit()
			j := r.wait(id)
			if got, err := r.Result(t.Context(), id); err != nil || string(got.Stdout) != truth || got.StdoutInfo.Incomplete || j.Status != job.Success {
				t.Errorf("%d bytes of stdout, %+v, %v", len(got.Stdout), got.StdoutInfo, err)
			}
			r.noLeaks()
		})
	}
}

// A flood is stored as far as it is kept, and its tail is fetched.
func TestChannel_AFloodIsBounded(t *testing.T) {
	r := newRig(t, 1)
	flood := bytes.Repeat([]byte("0123456789abcdef"), maxOutput/4)
	r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
		p := end(0, string(flood), "")
		p.End.Sums = [2]string{}
		return errors.Join(bring(take, job.Stdout, flood[:maxOutput], 5000), take(p))
	})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: flood})}, true)
	id := r.submit()
	j := r.wait(id)
	got, err := r.Result(t.Context(), id)
	if err != nil || j.Stdout.Total != int64(len(flood)) || !bytes.HasPrefix(got.Stdout, flood[:maxOutput/2]) || !bytes.HasSuffix(got.Stdout, flood[:maxOutput/2]) {
		t.Errorf("stdout %+v, %d bytes, %v", j.Stdout, len(got.Stdout), err)
	}
}

// A secret is never stored, however it is cut, nor what could be the beginning of one
// before the end.
func TestChannel_SecretsAreHidden(t *testing.T) {
	for _, size := range []int{1, 7, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r, _ := withSecrets(t, 1, map[string]string{"KEY": planted})
			out := "a " + planted + " b " + planted[:5]
			r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
				err := bring(take, job.Stdout, []byte(out), size)
				stored, storeErr := r.store.Output(context.Background(), onlyJob(r), job.Stdout, 0, 1000)
				if want := "a " + stars + " b "; err != nil || storeErr != nil || string(stored) != want {
					t.Errorf("stored before the end: %q, want %q, %v, %v", stored, want, err, storeErr)
				}
				return take(end(0, out, ""))
			})
			r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte(out)})}, false)
			id := r.submit(naming("KEY"))
			r.wait(id)
			want := "a " + stars + " b " + planted[:5]
			if got, err := r.Result(t.Context(), id); err != nil || string(got.Stdout) != want {
				t.Errorf("%q, want %q, %v", got.Stdout, want, err)
			}
		})
	}
}

// onlyJob is the rig's job.
func onlyJob(r *rig) string {
	r.t.Helper()
	page, err := r.store.List(context.Background(), job.Filter{Limit: 1})
	if err != nil || len(page.Jobs) != 1 {
		r.t.Errorf("%d jobs, %v", len(page.Jobs), err)
		return ""
	}
	return page.Jobs[0].ID
}

// A cancel ends the following, and an engine that starts goes on without the channel.
func TestChannel_EndsWithItsEngineAndItsJob(t *testing.T) {
	for _, how := range []string{"cancel", "restart"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, 1)
			do, release := hold(t, providertest.Task{Stdout: []byte("out")})
			var follows atomic.Int32
			following := make(chan struct{}, 9)
			r.channelled(func(ctx context.Context, _ job.Job, take func(job.Piece) error) error {
				if follows.Add(1) > 1 {
					return job.ErrNoChannel
				}
				following <- struct{}{}
				return errors.Join(bring(take, job.Stdout, []byte("o"), 9), never(ctx))
			})
			r.behave(providertest.Behaviour{Task: do}, false)
			id := r.submit()
			<-following
			if how == "cancel" {
				if err := r.Cancel(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			} else {
				r.stop()
				r.restart()
				release()
			}
			j := r.wait(id)
			got, err := r.Result(t.Context(), id)
			if err != nil || string(got.Stdout) != "out" || (j.Outcome.Reason == job.ReasonCancelled) != (how == "cancel") {
				t.Errorf("stdout %q, %+v, %v", got.Stdout, j.Outcome, err)
			}
			if how == "restart" && r.fake.Stats().Starts != 1 {
				t.Errorf("started %d times", r.fake.Stats().Starts)
			}
			r.noLeaks()
		})
	}
}

// A forged report of the end delays nothing for long where the channel is silent.
func TestChannel_AReportIsCheckedWhereItSaysNothing(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{})
	tokens := make(chan string, 1)
	r.channelled(func(ctx context.Context, _ job.Job, _ func(job.Piece) error) error { return never(ctx) })
	r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token }})
	id := r.submit()
	token := <-tokens
	if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportComplete}); err != nil {
		t.Fatal(err)
	}
	r.until(id, func(j job.Job) bool { return j.Contradicted })
	release()
	if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportComplete}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if j := r.wait(id); j.Status != job.Success {
		t.Errorf("%+v after %s", j.Outcome, time.Since(began))
	}
}

// A VM that has no sums of its output to say is compared with byte by byte: it delays
// nothing.
func TestChannel_OfAVMWithoutSums(t *testing.T) {
	r := newRig(t, 1)
	truth := string(counted(3000))
	g := r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
		return errors.Join(bring(take, job.Stdout, []byte("lie"), 9), errors.New("the connection ended"))
	})
	g.Runner = noSums{r.fake}
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte(truth)})}, true)
	id := r.submit()
	r.wait(id)
	if got, err := r.Result(t.Context(), id); err != nil || string(got.Stdout) != truth || got.StdoutInfo.Incomplete {
		t.Errorf("%d bytes of stdout, %+v, %v", len(got.Stdout), got.StdoutInfo, err)
	}
}

// noSums is a guest that returns no sums.
type noSums struct{ executor.Runner }

func (noSums) Sums(context.Context, job.Job, int64, int64) ([2]string, error) {
	return [2]string{}, nil
}

// Of no stream's name the output is that of both in the order in which it came, from any offset,
// while the task runs and afterwards.
func TestChannel_BothStreamsInOrder(t *testing.T) {
	pieces := []job.Piece{
		{Stream: job.Stdout, Data: []byte("o1\n")}, {Stream: job.Stderr, Data: []byte("e1\n")}, {Stream: job.Stdout, Offset: 3, Data: []byte("o2\n")},
		{Stream: job.Stdout, Offset: 6, Data: []byte("o3\n")}, {Stream: job.Stderr, Offset: 3, Data: []byte("e2\n")}, {Stream: job.Stdout, Offset: 9, Data: []byte("o4\n")},
	}
	const all, out, err = "o1\ne1\no2\no3\ne2\no4\n", "o1\no2\no3\no4\n", "e1\ne2\n"
	r := newRig(t, 1)
	came, goOn := make(chan struct{}), make(chan struct{})
	r.channelled(func(_ context.Context, _ job.Job, take func(job.Piece) error) error {
		for _, p := range pieces {
			if err := take(p); err != nil {
				return err
			}
		}
		close(came)
		<-goOn
		return take(end(0, out, err))
	})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte(out), Stderr: []byte(err), Until: goOn})}, false)
	id := r.submit()
	<-came
	shows := func(complete bool) {
		t.Helper()
		for _, tt := range []struct {
			offset, limit int64
			want          string
		}{{0, 0, all}, {4, 6, all[4:10]}, {-5, 0, all[len(all)-5:]}, {int64(len(all)), 0, ""}, {500, 0, ""}} {
			c, err := r.Output(t.Context(), id, "", tt.offset, tt.limit)
			if err != nil || string(c.Data) != tt.want || c.Next != c.Offset+int64(len(tt.want)) || c.Complete != (complete && c.Next >= int64(len(all))) {
				t.Errorf("from %d: %q, %+v, %v", tt.offset, c.Data, c, err)
			}
		}
	}
	shows(false)
	close(goOn)
	r.wait(id)
	shows(true)
	_, wrong := r.Output(t.Context(), id, "both", 0, 0)
	refusal(t, wrong, `"both" is unknown`)
}

package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
)

// hooks is a receiver. It records what comes, and answers in turn; then it takes all.
type hooks struct {
	mu      sync.Mutex
	got     []job.Webhook
	answers []job.WebhookResult
	hang    bool // until the engine stops
	came    chan struct{}
}

func (h *hooks) Send(ctx context.Context, w job.Webhook) job.WebhookResult {
	h.mu.Lock()
	h.got = append(h.got, w)
	r := job.WebhookResult{Host: "ci.example", Status: 204}
	if len(h.answers) > 0 {
		r, h.answers = h.answers[0], h.answers[1:]
	}
	hang := h.hang
	h.mu.Unlock()
	h.came <- struct{}{}
	if hang {
		<-ctx.Done()
	}
	return r
}

// notified is a rig whose jobs' ends go to a receiver.
func notified(t *testing.T, h *hooks) *rig {
	t.Helper()
	r := newRig(t, 2)
	h.came = make(chan struct{}, 100)
	r.stop()
	r.opts.Webhooks = &executor.Webhooks{
		Send: h.Send, Installation: true, Page: "https://linus.example/", Pauses: []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond},
		Private: func(j job.Job) bool { return j.Principal == "" },
	}
	r.restart()
	r.store.VMMessages = r.opts.Webhooks.OfVM
	r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3, Stdout: []byte("s3cret output")})}, true)
	return r
}

// told waits until an event of the job says so.
func (r *rig) told(id, says string) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		events, err := r.store.Events(context.Background(), id, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		if slices.ContainsFunc(events, func(e job.Event) bool { return strings.Contains(e.Text, says) }) {
			return
		}
	}
	r.t.Fatalf("no event of job %s says %q", id, says)
}

func (r *rig) noWebhooks() {
	r.t.Helper()
	left, err := r.store.Webhooks(context.Background(), 10)
	if err != nil || len(left) != 0 {
		r.t.Errorf("webhooks are left: %+v, %v", left, err)
	}
}

// What becomes of a queue is told: that it is served no more, or again, or is to be left alone. One that
// is served from the beginning is no news, and what is told is told once.
func TestWebhooks_TellOfQueues(t *testing.T) {
	h := &hooks{}
	r := notified(t, h)
	ctx := job.WithPrincipal(t.Context(), job.Operator())
	d := job.Dispatcher{Queue: "github:o/r", Name: "here", StartedAt: time.Now(), Waiting: 3}
	report := func(problem string) {
		t.Helper()
		d.Problem = problem
		if _, err := r.ReportDispatcher(ctx, d); err != nil {
			t.Fatal(err)
		}
		r.TellDispatchers(ctx)
		r.TellDispatchers(ctx)
	}
	told := func(want, was string) {
		t.Helper()
		last, kind, data := h.next(t)
		if kind != want || data["was"] != was || data["queue"] != "github:o/r" || data["dispatcher"] != "here" || data["waiting"] != 3.0 || data["owner"] != "operator" || strings.Contains(string(last.Body), "secret") {
			t.Errorf("sent %s: %s", kind, last.Body)
		}
	}
	report("") // begins well
	report("the secret is refused")
	told("queue.failing", "serving")
	report("")
	told("queue.serving", "failing")
	if err := r.DrainDispatcher(ctx, "here"); err != nil {
		t.Fatal(err)
	}
	report("")
	told("queue.draining", "serving")
	d.Ended = true
	report("")
	told("queue.drained", "draining")
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.got) != 4 {
		t.Errorf("sent %d times", len(h.got))
	}
}

// next waits for a message, and returns it with what it says.
func (h *hooks) next(t *testing.T) (last job.Webhook, kind string, data map[string]any) {
	t.Helper()
	<-h.came
	h.mu.Lock()
	defer h.mu.Unlock()
	var body struct {
		Type string
		Data map[string]any
	}
	last = h.got[len(h.got)-1]
	if err := json.Unmarshal(last.Body, &body); err != nil {
		t.Fatal(err)
	}
	return last, body.Type, body.Data
}

// A VM that somebody has asked for is told of when it is ready, and when it is gone; a pool's is
// not.
func TestWebhooks_TellOfVMs(t *testing.T) {
	h := &hooks{answers: []job.WebhookResult{{Host: "ci.example", Err: errors.New("refused")}}}
	r := notified(t, h)
	if _, err := r.CreatePool(t.Context(), job.Pool{Name: "warm", PoolSize: job.PoolSize{Warm: 1}}); err != nil {
		t.Fatal(err)
	}
	v, err := r.CreateVM(t.Context(), job.Submission{Client: "cli", Manifest: job.Manifest{VMName: "dev", Labels: map[string]string{"team": "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want string) {
		t.Helper()
		last, kind, data := h.next(t)
		if kind != want || data["vm"] != v.Job || data["name"] != "dev" || data["link"] != "https://linus.example/vms/"+v.Job || last.JobID != "" {
			t.Errorf("sent %s: %s", kind, last.Body)
		}
	}
	next("vm.ready")
	next("vm.ready") // the first attempt was refused
	if _, err := r.DestroyVM(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	next("vm.destroyed")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		events, err := r.store.VMEvents(context.Background(), v.Job)
		if err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, e := range events {
			if strings.HasPrefix(e.Text, "webhook ") {
				said++
			}
		}
		if said == 3 { // refused, delivered, delivered
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the VM's events: %+v", events)
		}
	}
	r.noWebhooks()
}

func TestWebhooks_TellOfTheEnd(t *testing.T) {
	h := &hooks{}
	r := notified(t, h)
	id := r.submitAs(as(t, "alice", job.RoleRun), func(m *job.Manifest) {
		m.Task, m.Notify = "echo s3cret task", &job.Notify{URL: "https://ci.example/hook"}
		m.Labels = map[string]string{"team": "web"}
	})
	r.wait(id)
	r.told(id, "webhook delivered to ci.example (204), attempt 1")
	<-h.came
	<-h.came
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.got, func(a, b job.Webhook) int { return strings.Compare(a.URL, b.URL) })
	if len(h.got) != 2 || h.got[0].URL != "" || h.got[1].URL != "https://ci.example/hook" || h.got[1].Private || h.got[0].ID == h.got[1].ID {
		t.Fatalf("sent %+v", h.got)
	}
	var body struct {
		Type string
		Data map[string]any
	}
	if err := json.Unmarshal(h.got[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"job_id": id, "status": "failed", "reason": "exit_status", "exit_code": 3.0, "owner": "alice", "link": "https://linus.example/jobs/" + id, "kind": "task",
	} {
		if body.Data[name] != want {
			t.Errorf("%s is %v, want %v", name, body.Data[name], want)
		}
	}
	if labels, _ := body.Data["labels"].(map[string]any); labels["team"] != "web" {
		t.Errorf("labels are %v", body.Data["labels"])
	}
	if body.Type != "job.ended" || body.Data["completed_at"] == nil || strings.Contains(string(h.got[0].Body), "s3cret") {
		t.Errorf("body %s", h.got[0].Body)
	}
}

func TestWebhooks_AreTriedAgainAndGivenUp(t *testing.T) {
	t.Parallel()
	failure := job.WebhookResult{Host: "ci.example", Status: 500, Err: errors.New("the receiver returned 500")}
	gone := job.WebhookResult{Host: "ci.example", Status: 410, Err: errors.New("wants no more"), Final: true}
	for _, tt := range []struct {
		name    string
		answers []job.WebhookResult
		says    string
		sent    int
	}{
		{"later delivered", []job.WebhookResult{failure, failure}, "delivered to ci.example (204), attempt 3", 3},
		{"never delivered", []job.WebhookResult{failure, failure, failure, failure, failure}, "given up after attempt 4", 4},
		{"no more wanted", []job.WebhookResult{gone}, "given up after attempt 1: wants no more", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &hooks{answers: tt.answers}
			r := notified(t, h)
			id := r.submit()
			r.wait(id)
			r.told(id, tt.says)
			if tt.sent > 1 {
				r.told(id, "failed and is tried again")
			}
			r.noWebhooks()
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.got) != tt.sent {
				t.Errorf("sent %d times, want %d", len(h.got), tt.sent)
			}
			for _, w := range h.got {
				if w.ID != h.got[0].ID || string(w.Body) != string(h.got[0].Body) {
					t.Errorf("another message: %+v, %+v", w, h.got[0])
				}
			}
		})
	}
}

// The job shows how far each message about it has come, and metrics count the attempts.
func TestWebhooks_TheJobShowsHowFarTheyHaveCome(t *testing.T) {
	t.Parallel()
	failure := job.WebhookResult{Host: "ci.example", Status: 500, Err: errors.New("the receiver returned 500")}
	for _, tt := range []struct {
		name     string
		answers  []job.WebhookResult
		says     string
		want     job.Delivery
		attempts []job.DeliveryState
	}{
		{"delivered", []job.WebhookResult{failure}, "delivered to", job.Delivery{To: "ci.example", State: job.DeliveryDone, Attempts: 2}, []job.DeliveryState{job.DeliveryPending, job.DeliveryDone}},
		{"given up", []job.WebhookResult{failure, failure, failure, failure}, "given up", job.Delivery{To: "ci.example", State: job.DeliveryGivenUp, Attempts: 4, Error: "the receiver returned 500"},
			[]job.DeliveryState{job.DeliveryPending, job.DeliveryPending, job.DeliveryPending, job.DeliveryGivenUp}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, seen := &hooks{answers: tt.answers}, &witness{}
			r := notified(t, h)
			r.stop()
			r.opts.Observer = seen.observe
			r.opts.Webhooks.Installation = false
			r.restart()
			id := r.submit(func(m *job.Manifest) { m.Notify = &job.Notify{URL: "https://ci.example/secret-path"} })
			r.wait(id)
			r.told(id, tt.says)
			j, err := r.Job(t.Context(), id)
			if err != nil || len(j.Webhooks) != 1 {
				t.Fatalf("%+v, %v", j.Webhooks, err)
			}
			got := j.Webhooks[0]
			if got.ID == "" || got.At.Before(j.CompletedAt) {
				t.Errorf("%+v", got)
			}
			if got.ID, got.At = "", (time.Time{}); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			r.stop() // nothing is observed any more
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if !slices.Equal(seen.notified, tt.attempts) {
				t.Errorf("observed %v, want %v", seen.notified, tt.attempts)
			}
		})
	}
}

// What has not been sent is pending.
func TestWebhooks_ArePendingUntilTheyAreSent(t *testing.T) {
	h := &hooks{hang: true}
	r := notified(t, h)
	id := r.submit()
	r.wait(id)
	<-h.came
	j, err := r.Job(t.Context(), id)
	if err != nil || len(j.Webhooks) != 1 || j.Webhooks[0].State != job.DeliveryPending || j.Webhooks[0].Attempts != 0 || j.Webhooks[0].To != "" {
		t.Errorf("%+v, %v", j.Webhooks, err)
	}
}

// Between two attempts the job shows when the next one is.
func TestWebhooks_ShowWhenTheyAreTriedAgain(t *testing.T) {
	h := &hooks{answers: []job.WebhookResult{{Host: "ci.example", Err: errors.New("no answer")}}}
	r := notified(t, h)
	r.stop()
	r.opts.Webhooks.Pauses = []time.Duration{time.Hour}
	r.restart()
	id := r.submit()
	r.wait(id)
	r.told(id, "failed and is tried again")
	j, err := r.Job(t.Context(), id)
	if err != nil || len(j.Webhooks) != 1 {
		t.Fatalf("%+v, %v", j.Webhooks, err)
	}
	if d := j.Webhooks[0]; d.State != job.DeliveryPending || d.Error != "no answer" || d.NextAt.Before(j.CompletedAt.Add(time.Hour)) || d.NextAt.After(d.At.Add(time.Hour)) {
		t.Errorf("%+v", d)
	}
}

// An engine that ends before a message is delivered leaves it to the next, with its ID.
func TestWebhooks_OutliveTheEngine(t *testing.T) {
	h := &hooks{hang: true}
	r := notified(t, h)
	id := r.submit()
	r.wait(id)
	<-h.came
	if r.Idle() {
		t.Error("the engine is idle with a message to deliver")
	}
	r.stop()
	h.mu.Lock()
	h.hang = false
	h.mu.Unlock()
	r.restart()
	r.told(id, "webhook delivered to ci.example (204), attempt 2")
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.got) != 2 || h.got[0].ID != h.got[1].ID {
		t.Errorf("sent %+v", h.got)
	}
}

// What records the end records the message, or neither.
func TestWebhooks_NoneWithoutAnEnd(t *testing.T) {
	h := &hooks{}
	r := notified(t, h)
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	id := r.submit()
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.noWebhooks()
	if err := r.Cancel(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
	close(hold)
	r.told(id, "webhook delivered")
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.got) != 1 || !strings.Contains(string(h.got[0].Body), `"reason":"cancelled"`) {
		t.Errorf("sent %+v", h.got)
	}
}

// An attempt that takes long does not eat up the pause before the next.
func TestWebhooks_PauseAfterAnAttemptThatHung(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		r.opts.CleanupInterval, r.vms.PoolInterval = 30*time.Second, time.Minute
		const hangs = 14 * time.Second
		began := make(chan time.Time, 10)
		r.opts.Webhooks = &executor.Webhooks{Installation: true, Send: func(context.Context, job.Webhook) job.WebhookResult {
			began <- time.Now()
			time.Sleep(hangs)
			return job.WebhookResult{Host: "ci.example", Err: errors.New("no answer")}
		}}
		r.restart()
		r.behave(providertest.Behaviour{}, true)
		r.wait(r.submit())
		first, second := <-began, <-began
		if pause := second.Sub(first) - hangs; pause < 5*time.Second || pause > 7*time.Second {
			t.Errorf("the second attempt began %s after the first one's end", pause)
		}
	})
}

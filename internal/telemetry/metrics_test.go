package telemetry

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/doctest"
	"linus/internal/job"
	"linus/internal/vm"
)

var update = flag.Bool("update", false, "write the documents' table anew")

// jobs are in a store.
type jobs struct {
	unfinished   []job.Job
	members, vms []vm.VM
	dispatchers  []job.Dispatcher
	err          error
}

func (j jobs) Dispatchers(context.Context) ([]job.Dispatcher, error) { return j.dispatchers, j.err }

func (j jobs) VMs(context.Context) ([]vm.VM, error)     { return j.vms, j.err }
func (j jobs) Members(context.Context) ([]vm.VM, error) { return j.members, j.err }

func (j jobs) Queue(context.Context) (waiting int, since time.Time, err error) {
	for _, of := range j.unfinished {
		if of.Status == job.Pending && of.Outcome == nil {
			waiting, since = waiting+1, of.CreatedAt
		}
	}
	return waiting, since, j.err
}

func (j jobs) InProgress(context.Context) (begun []job.Job, err error) {
	for _, of := range j.unfinished {
		if of.Status != job.Pending || of.Outcome != nil {
			begun = append(begun, of)
		}
	}
	return begun, j.err
}

// scrape returns the samples of our own metrics, by name with labels.
func scrape(t *testing.T, m *Metrics) map[string]string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	samples := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(name, "linus_") {
			samples[name] = value
		}
	}
	return samples
}

func wantSamples(t *testing.T, m *Metrics, want map[string]string) {
	t.Helper()
	got := scrape(t, m)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
}

func TestMetrics_ReportWhatTheStoreHas(t *testing.T) {
	decided := &job.Outcome{Status: job.Failed}
	m := NewMetrics("v1", jobs{
		unfinished: []job.Job{
			{Status: job.Pending, CreatedAt: time.Now().Add(-time.Hour)},
			{Status: job.Pending, CreatedAt: time.Now().Add(-2 * time.Hour), Outcome: decided}, // waits for nothing
			{Status: job.Provisioning},
			{Status: job.Running},
			{Status: job.Running},
			{Status: job.Running, Outcome: decided},
			{Status: job.Failed, Outcome: decided},
		},
		vms: []vm.VM{
			{State: vm.Created, Made: vm.Made{Lifecycle: vm.Ephemeral}},
			{State: vm.LeftAlone, Made: vm.Made{Lifecycle: vm.Ephemeral}},
			{State: vm.LeftAlone, Made: vm.Made{Lifecycle: vm.Persistent}},
		},
	}, slog.New(slog.DiscardHandler))
	wantSamples(t, m, map[string]string{
		`linus_jobs{state="pending"}`:      "1",
		`linus_jobs{state="provisioning"}`: "1",
		`linus_jobs{state="running"}`:      "2",
		`linus_jobs{state="ending"}`:       "3",
		`linus_vms{lifecycle="ephemeral"}`: "1", `linus_vms{lifecycle="persistent"}`: "0", `linus_vms{lifecycle="left_alone"}`: "2",
		`linus_build_info{version="v1"}`: "1",
	})
	var age float64
	if _, err := fmt.Sscan(scrape(t, m)["linus_queue_age_seconds"], &age); err != nil || age < 3600 || age > 3660 {
		t.Errorf("queue age %v, %v; want an hour", age, err)
	}
}

func TestMetrics_OutlastAStoreThatCannotBeRead(t *testing.T) {
	var log bytes.Buffer
	m := NewMetrics("v1", jobs{err: errors.New("disk gone")}, slog.New(slog.NewTextHandler(&log, nil)))
	wantSamples(t, m, map[string]string{"linus_lock_retries_total": "0", `linus_jobs{state="running"}`: ""})
	if !strings.Contains(log.String(), "disk gone") {
		t.Errorf("log: %s", log.String())
	}
}

func TestMetrics_CountEvents(t *testing.T) {
	m := NewMetrics("v1", jobs{}, nil)
	j := job.Job{CreatedAt: time.Now().Add(-3 * time.Second)}
	m.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventStatus, Text: "provisioning"}, {Kind: job.EventProgress}}})
	m.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventStatus, Text: "running"}}})
	m.Observe(job.PhaseEnd{Job: j, Phase: "provision", Began: time.Now().Add(-40 * time.Second), Result: job.PhaseOK})
	m.Observe(job.PhaseEnd{Job: j, Phase: "run", Began: time.Now(), Result: job.PhaseCancelled, Err: context.Canceled})
	j.Outcome = &job.Outcome{Reason: job.ReasonCancelled}
	m.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventStatus, Text: "failed"}, {Kind: job.EventIgnored}}})
	m.Observe(job.Leaked(2))
	m.Reconnected()
	m.LockRetried()
	m.LockRetried()
	m.HostChanged(Record{Action: ActionCreate, Result: ResultOK})
	wantSamples(t, m, map[string]string{
		`linus_phase_duration_seconds_count{phase="queue",result="ok"}`:              "1",
		`linus_phase_duration_seconds_bucket{phase="queue",result="ok",le="2.5"}`:    "0",
		`linus_phase_duration_seconds_bucket{phase="queue",result="ok",le="5"}`:      "1",
		`linus_phase_duration_seconds_bucket{phase="provision",result="ok",le="30"}`: "0",
		`linus_phase_duration_seconds_bucket{phase="provision",result="ok",le="60"}`: "1",
		`linus_phase_duration_seconds_count{phase="run",result="cancelled"}`:         "1",
		`linus_jobs_ended_total{reason="cancelled",status="failed"}`:                 "1",
		`linus_callbacks_ignored_total`:                                              "1",
		`linus_leaked_vms`:                                                           "2",
		`linus_ssh_reconnects_total`:                                                 "1",
		`linus_lock_retries_total`:                                                   "2",
		`linus_host_changes_total{action="create_vm",result="ok"}`:                   "1",
	})
}

// told is a reporter that returns err.
type told struct{ err error }

func (r told) Authorize(context.Context, string, string) error { return r.err }

func (r told) Report(context.Context, string, string, job.Report) error { return r.err }
func (r told) AppendOutput(context.Context, string, string, string, int64, []byte) (int64, error) {
	return 7, r.err
}

func TestReporter_CountsCallbacksAndPassesThemOn(t *testing.T) {
	m := NewMetrics("v1", jobs{}, nil)
	for _, err := range []error{nil, job.ErrNotFound, errors.New("disk full")} {
		c := m.Reporter(told{err})
		if got := c.Report(t.Context(), "id", "token", job.Report{Kind: job.ReportHeartbeat}); !errors.Is(got, err) {
			t.Errorf("Report = %v, want %v", got, err)
		}
		if got := c.Authorize(t.Context(), "id", "token"); !errors.Is(got, err) {
			t.Errorf("Authorize = %v, want %v", got, err)
		}
		if n, got := c.AppendOutput(t.Context(), "id", "token", "stdout", 0, nil); n != 7 || !errors.Is(got, err) {
			t.Errorf("AppendOutput = %d, %v; want 7, %v", n, got, err)
		}
	}
	wantSamples(t, m, map[string]string{
		`linus_callbacks_total{kind="none",result="refused"}`: "1", `linus_callbacks_total{kind="none",result="failed"}`: "1",
	})
	for _, kind := range []string{"heartbeat", "output"} {
		for _, result := range []string{"ok", "refused", "failed"} {
			wantSamples(t, m, map[string]string{fmt.Sprintf(`linus_callbacks_total{kind=%q,result=%q}`, kind, result): "1"})
		}
	}
}

func TestMetrics_CountSandboxes(t *testing.T) {
	t.Parallel()
	is := func(change func(*vm.VM)) vm.VM {
		v := vm.VM{State: vm.Created, Made: vm.Made{Lifecycle: vm.Persistent}, Own: &vm.Own{ReadyAt: time.Now(), Sandbox: &vm.Sandbox{}}}
		change(&v)
		return v
	}
	m := NewMetrics("v1", jobs{vms: []vm.VM{
		is(func(*vm.VM) {}), is(func(*vm.VM) {}), is(func(*vm.VM) {}),
		is(func(v *vm.VM) { v.Off = vm.Suspended }), is(func(v *vm.VM) { v.SuspendedAt = time.Now() }),
		is(func(v *vm.VM) { v.Own.Sandbox = nil }), is(func(v *vm.VM) { v.Own = nil }),
		is(func(v *vm.VM) { v.Own.ReadyAt = time.Time{} }), is(func(v *vm.VM) { v.Unwanted = true }), is(func(v *vm.VM) { v.State = vm.LeftAlone }),
	}}, slog.New(slog.DiscardHandler))
	wantSamples(t, m, map[string]string{`linus_sandboxes{state="running"}`: "3", `linus_sandboxes{state="paused"}`: "2", `linus_vms{lifecycle="persistent"}`: "9"})
	wantSamples(t, NewMetrics("v1", jobs{}, slog.New(slog.DiscardHandler)), map[string]string{`linus_sandboxes{state="running"}`: "0", `linus_sandboxes{state="paused"}`: "0"})
}

// root is the repository's.
const root = "../.."

func TestDocs_HaveTheTableOfMetrics(t *testing.T) {
	var b strings.Builder
	b.WriteString("| metric | type | labels | what |\n| --- | --- | --- | --- |\n")
	for _, m := range NewMetrics("", nil, nil).table {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, doctest.Cell(m.Text))
	}
	doctest.Keep(t, "metrics", b.String(), *update)
}

func TestDashboard_ShowsEveryMetricAndNoOther(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, ".packaging/grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, name := range regexp.MustCompile(`\blinus_[a-z_]+`).FindAllString(string(data), -1) {
		shown[name] = true
	}
	for _, m := range NewMetrics("", nil, nil).table {
		series := []string{m.Name}
		if m.Type == "histogram" {
			series = []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}
		}
		any := false
		for _, s := range series {
			any = any || shown[s]
			delete(shown, s)
		}
		if !any {
			t.Errorf("%s is not on the dashboard", m.Name)
		}
	}
	for name := range shown {
		t.Errorf("the dashboard asks for %s, which does not exist", name)
	}
}

func TestMetrics_OfWebhooks(t *testing.T) {
	t.Parallel()
	m := NewMetrics("v1", jobs{}, slog.New(slog.DiscardHandler))
	for _, state := range []job.DeliveryState{job.DeliveryPending, job.DeliveryPending, job.DeliveryDone, job.DeliveryGivenUp} {
		m.Observe(job.Delivery{State: state})
	}
	wantSamples(t, m, map[string]string{
		`linus_webhook_attempts_total{result="failed"}`:    "2",
		`linus_webhook_attempts_total{result="delivered"}`: "1",
		`linus_webhook_attempts_total{result="given_up"}`:  "1",
	})
}

// Labels of jobs are labels of metrics where the operator has named them, and no more of their
// values than a bounded number.
func TestMetrics_HaveSomeLabels(t *testing.T) {
	team := func(value string) map[string]string {
		return map[string]string{"team": value, "x/y-z": "1", "secret": "s"}
	}
	m := NewMetrics("v1", jobs{vms: []vm.VM{
		{State: vm.Created, Made: vm.Made{Lifecycle: vm.Ephemeral, Labels: team("web")}},
		{State: vm.Created, Made: vm.Made{Lifecycle: vm.Ephemeral, Labels: team("web")}},
		{State: vm.Created, Made: vm.Made{Lifecycle: vm.Persistent}},
	}}, slog.New(slog.DiscardHandler), "team", "x/y-z")
	for i := range mostValues + 3 {
		j := job.Job{Manifest: job.Manifest{Labels: team(fmt.Sprint("t", i))}, Outcome: &job.Outcome{Reason: job.ReasonExitStatus}}
		m.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventStatus, Text: "success"}}})
	}
	m.Observe(job.Change{Job: job.Job{Outcome: &job.Outcome{Reason: job.ReasonLost}}, Events: []job.Event{{Kind: job.EventStatus, Text: "failed"}}})
	wantSamples(t, m, map[string]string{
		`linus_jobs_ended_total{label_team="t0",label_x_y_z="1",reason="exit_status",status="success"}`:    "1",
		`linus_jobs_ended_total{label_team="t49",label_x_y_z="1",reason="exit_status",status="success"}`:   "1",
		`linus_jobs_ended_total{label_team="t50",label_x_y_z="1",reason="exit_status",status="success"}`:   "",
		`linus_jobs_ended_total{label_team="other",label_x_y_z="1",reason="exit_status",status="success"}`: "3",
		`linus_jobs_ended_total{label_team="",label_x_y_z="",reason="lost",status="failed"}`:               "1",
		`linus_vms{label_team="other",label_x_y_z="1",lifecycle="ephemeral"}`:                              "2",
		`linus_vms{label_team="",label_x_y_z="",lifecycle="ephemeral"}`:                                    "0",
		`linus_vms{label_team="",label_x_y_z="",lifecycle="persistent"}`:                                   "1",
	})
}

func TestMetrics_OfQueues(t *testing.T) {
	t.Parallel()
	now := time.Now()
	m := NewMetrics("v1", jobs{dispatchers: []job.Dispatcher{
		{Queue: "github:o/r", Name: "here", HeardAt: now, Sessions: 2, Waiting: 3, Failed: []job.Failing{{Reason: job.ReasonLost, Count: 4}}},
		{Queue: "github:o/r", Name: "here", Principal: "another", HeardAt: now, Waiting: 9},
		{Queue: "github:o/r", Name: "gone", HeardAt: now.Add(-time.Hour), Waiting: 9},
	}}, slog.New(slog.DiscardHandler))
	wantSamples(t, m, map[string]string{
		`linus_queue_waiting{dispatcher="here",queue="github:o/r"}`:                    "3",
		`linus_queue_oldest_seconds{dispatcher="here",queue="github:o/r"}`:             "0",
		`linus_queue_sessions{dispatcher="here",queue="github:o/r"}`:                   "2",
		`linus_queue_failed_total{dispatcher="here",queue="github:o/r",reason="lost"}`: "4",
	})
}

// Package telemetry shows the engine to an operator from outside: metrics for Prometheus, a trace
// of each job for OpenTelemetry, and the audit log of every change on the host. The executor
// notifies it, and it wraps the Provider and the callbacks' Reporter; it changes nothing.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"linus/internal/job"
	"linus/internal/vm"
)

// Metric is one row of the table of metrics.
type Metric struct {
	Name   string
	Type   string // gauge, counter or histogram
	Labels []string
	Text   string
}

// Jobs provides the current numbers at each scrape.
type Jobs interface {
	// Queue returns how many jobs wait for a slot, and since when the first one has waited.
	Queue(ctx context.Context) (waiting int, since time.Time, err error)
	// InProgress returns every other job that is not done.
	InProgress(ctx context.Context) ([]job.Job, error)
	// VMs returns the VMs that are requested, intended, created or left alone.
	VMs(ctx context.Context) ([]vm.VM, error)
	// Members returns the VMs of pools that still exist.
	Members(ctx context.Context) ([]vm.VM, error)
	// Dispatchers returns the dispatchers of queues, as they last reported.
	Dispatchers(ctx context.Context) ([]job.Dispatcher, error)
}

// Metrics are the engine's numbers. Its methods may be called from any goroutine.
type Metrics struct {
	table    []Metric
	labelled *labelled
	registry *prometheus.Registry

	ended       *prometheus.CounterVec
	phases      *prometheus.HistogramVec
	leaked      prometheus.Gauge
	changes     *prometheus.CounterVec
	callbacks   *prometheus.CounterVec
	ignored     prometheus.Counter
	reconnects  prometheus.Counter
	lockRetries prometheus.Counter
	egress      *prometheus.CounterVec
	egressBytes *prometheus.CounterVec
	claims      *prometheus.CounterVec
	claimed     *prometheus.HistogramVec
	refills     *prometheus.CounterVec
	webhooks    *prometheus.CounterVec
	refusals    *prometheus.CounterVec
}

// NewMetrics returns the metrics of an engine. jobs is queried at each scrape. labels are the keys
// of job and VM labels that metrics have, too.
func NewMetrics(version string, jobs Jobs, log *slog.Logger, labels ...string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), labelled: newLabelled(labels)}
	stored := &stored{jobs: jobs, log: log, labelled: m.labelled}
	stored.states = m.desc("linus_jobs", "Unfinished jobs: pending, provisioning, running, or ending (collected and destroyed).", "state")
	stored.vms = m.desc("linus_vms", "VMs that exist or are being created, by lifecycle: ephemeral, persistent, pooled, or left_alone for those that were to be destroyed and are not proven to be ours.", m.labelled.names("lifecycle")...)
	stored.sandboxes = m.desc("linus_sandboxes", "VMs that programs use as sandboxes, by state: running, or paused (suspended or stopped).", "state")
	stored.members = m.desc("linus_pool_members", "VMs of a pool by state: making, warm, hibernated, claimed, or doomed (being destroyed).", "pool", "state")
	stored.queueAge = m.desc("linus_queue_age_seconds", "Age of the job that has waited longest for a slot; 0 when none waits.")
	stored.queueWaiting = m.desc("linus_queue_waiting", "Pieces of work that wait in a queue that a dispatcher serves, when it last asked.", "queue", "dispatcher")
	stored.queueOldest = m.desc("linus_queue_oldest_seconds", "How long the oldest of them has waited; 0 when none waits, or the queue does not say.", "queue", "dispatcher")
	stored.queueSessions = m.desc("linus_queue_sessions", "Sessions that a dispatcher has.", "queue", "dispatcher")
	stored.queueFailed = m.desc("linus_queue_failed_total", "Sessions of a dispatcher that have failed since it was started, by the reason of their jobs' end.", "queue", "dispatcher", "reason")
	m.table[len(m.table)-1].Type = "counter"
	m.registry.MustRegister(stored, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	m.ended = m.counter("linus_jobs_ended_total", "Jobs that reached a terminal status, with the reason.", m.labelled.names("status", "reason")...)
	m.phases = m.histogram("linus_phase_duration_seconds", "Duration of a phase of a job, queue included, by result: ok, failed, cancelled or interrupted (by the engine's end).",
		[]float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400}, "phase", "result")
	m.changes = m.counter("linus_host_changes_total", "Changes on the host, as in the audit log, by result: ok, refused or foreign (a destroy that touched nothing), failed or interrupted.", "action", "result")
	m.leaked = m.gauge("linus_leaked_vms", "VMs with our marker that the last search found on the host and that should not be there.").WithLabelValues()
	m.callbacks = m.counter("linus_callbacks_total", "Callbacks of job runners, by kind (complete, status, heartbeat, output; none: rejected before it was read) and result: ok, refused or failed.", "kind", "result")
	m.ignored = m.counter("linus_callbacks_ignored_total", "Late or contradictory reports, recorded and without effect; many of one job count as one.").WithLabelValues()
	m.reconnects = m.counter("linus_ssh_reconnects_total", "SSH connections to the host, or to VMs through it, reestablished after one was lost.").WithLabelValues()
	m.lockRetries = m.counter("linus_lock_retries_total", "Changes retried because a lock of Proxmox timed out.").WithLabelValues()
	m.egress = m.counter("linus_egress_connections_total", "Connections that jobs with egress allow have asked their proxy for, by result: allowed or refused.", "result")
	m.egressBytes = m.counter("linus_egress_bytes_total", "Bytes of those that were allowed and have ended, by direction: sent or received.", "direction")
	m.webhooks = m.counter("linus_webhook_attempts_total", "Attempts to deliver messages about ended jobs, by result: delivered, failed (it is tried again), or given_up.", "result")
	m.claims = m.counter("linus_pool_claims_total", "Jobs that asked a pool for a VM, by result: hit, miss (none was ready), or fell_through (a claimed one did not answer, and the job continued without it).", "pool", "result")
	m.claimed = m.histogram("linus_pool_claim_seconds", "Time from a job's asking a pool until the VM it was given has answered.",
		[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "pool")
	m.refills = m.counter("linus_pool_refill_failures_total", "VMs that a pool could not make.", "pool")
	m.refusals = m.counter("linus_node_refusals_total", "Times a node of the cluster was not taken for a VM, with the reason: offline, maintenance, cordoned, unreachable (over SSH), template, storage, volume, bridge, limit or memory. A VM that waits is tried again every few seconds.", "node", "reason")
	build := m.gauge("linus_build_info", "1, with the version of the engine.", "version")

	build.WithLabelValues(version).Set(1)
	return m
}

// Handler serves scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Observe counts what happens.
func (m *Metrics) Observe(h job.Happening) {
	switch h := h.(type) {
	case job.Change:
		m.changed(h.Job, h.Events)
	case job.PhaseEnd:
		m.phases.WithLabelValues(h.Phase, string(h.Result)).Observe(time.Since(h.Began).Seconds())
	case job.Leaked:
		m.leaked.Set(float64(h))
	case job.Delivery:
		result := string(h.State)
		if h.State == job.DeliveryPending {
			result = "failed"
		}
		m.webhooks.WithLabelValues(result).Inc()
	case job.PoolEvent:
		m.pooled(h)
	}
}

// changed counts ended jobs, and jobs that stop waiting.
func (m *Metrics) changed(j job.Job, events []job.Event) {
	for _, event := range events {
		switch {
		case event.Kind == job.EventIgnored:
			m.ignored.Inc()
		case event.Kind == job.EventStatus && event.Text == string(job.Provisioning):
			m.phases.WithLabelValues(job.PhaseQueue, string(job.PhaseOK)).Observe(time.Since(j.CreatedAt).Seconds())
		case event.Kind == job.EventStatus && job.Status(event.Text).Terminal():
			m.ended.WithLabelValues(m.labelled.values(j.Manifest.Labels, event.Text, string(j.Outcome.Reason))...).Inc()
		}
	}
}

func (m *Metrics) pooled(e job.PoolEvent) {
	switch e.Kind {
	case job.PoolHit, job.PoolMiss, job.PoolFell:
		result := map[job.PoolEventKind]string{job.PoolHit: "hit", job.PoolMiss: "miss", job.PoolFell: "fell_through"}[e.Kind]
		m.claims.WithLabelValues(e.Pool, result).Inc()
		if e.Kind == job.PoolHit {
			m.claimed.WithLabelValues(e.Pool).Observe(e.Took.Seconds())
		}
	case job.PoolFailed:
		m.refills.WithLabelValues(e.Pool).Inc()
	}
}

// Reconnected counts an SSH connection that was reestablished.
func (m *Metrics) Reconnected() { m.reconnects.Inc() }

// Connected counts a connection through a job's proxy when it starts, and its bytes when it has ended.
func (m *Metrics) Connected(c job.Connection) {
	result := "allowed"
	if !c.Allowed {
		result = "refused"
	}
	if c.Ended {
		m.egressBytes.WithLabelValues("sent").Add(float64(c.Out))
		m.egressBytes.WithLabelValues("received").Add(float64(c.In))
		return
	}
	m.egress.WithLabelValues(result).Inc()
}

// LockRetried counts a change that was retried because a lock of Proxmox timed out.
func (m *Metrics) LockRetried() { m.lockRetries.Inc() }

// NodeRefused counts a node that was refused for a VM.
func (m *Metrics) NodeRefused(r job.Refusal) {
	m.refusals.WithLabelValues(r.Node, string(r.Reason)).Inc()
}

// HostChanged counts a change recorded in the audit log.
func (m *Metrics) HostChanged(r Record) { m.changes.WithLabelValues(r.Action, r.Result).Inc() }

// added adds a metric that is not read from the store to the table and the registry.
func added[C prometheus.Collector](m *Metrics, kind, name, text string, labels []string, c C) C {
	m.table = append(m.table, Metric{Name: name, Type: kind, Labels: labels, Text: text})
	m.registry.MustRegister(c)
	return c
}

// desc describes a gauge that is read at each scrape.
func (m *Metrics) desc(name, text string, labels ...string) *prometheus.Desc {
	m.table = append(m.table, Metric{Name: name, Type: "gauge", Labels: labels, Text: text})
	return prometheus.NewDesc(name, text, labels, nil)
}

func (m *Metrics) gauge(name, text string, labels ...string) *prometheus.GaugeVec {
	return added(m, "gauge", name, text, labels, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: text}, labels))
}

func (m *Metrics) counter(name, text string, labels ...string) *prometheus.CounterVec {
	return added(m, "counter", name, text, labels, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: text}, labels))
}

func (m *Metrics) histogram(name, text string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return added(m, "histogram", name, text, labels, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: text, Buckets: buckets}, labels))
}

// scrapeTime bounds one query of the store.
const scrapeTime = 5 * time.Second

// stored reads the current numbers from the store at each scrape.
type stored struct {
	jobs     Jobs
	log      *slog.Logger
	labelled *labelled

	states, vms, sandboxes, members, queueAge             *prometheus.Desc
	queueWaiting, queueOldest, queueSessions, queueFailed *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s *stored) Describe(to chan<- *prometheus.Desc) {
	to <- s.states
	to <- s.vms
	to <- s.sandboxes
	to <- s.members
	to <- s.queueAge
	to <- s.queueWaiting
	to <- s.queueOldest
	to <- s.queueSessions
	to <- s.queueFailed
}

// Collect implements prometheus.Collector. It reports nothing if any number cannot be read.
func (s *stored) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	waiting, since, queueErr := s.jobs.Queue(ctx)
	begun, err := s.jobs.InProgress(ctx)
	there, vmsErr := s.jobs.VMs(ctx)
	members, membersErr := s.jobs.Members(ctx)
	dispatchers, dispatchersErr := s.jobs.Dispatchers(ctx)
	if err := errors.Join(queueErr, err, vmsErr, membersErr, dispatchersErr); err != nil {
		s.log.Error("metrics not read from the store", "err", err)
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	states := map[string]int{string(job.Pending): waiting, string(job.Provisioning): 0, string(job.Running): 0, endingState: 0}
	queueAge := 0.0
	if waiting > 0 {
		queueAge = time.Since(since).Seconds()
	}
	for _, j := range begun {
		state := string(j.Status)
		if j.Outcome != nil {
			state = endingState
		}
		states[state]++
	}
	for state, n := range states {
		gauge(s.states, float64(n), state)
	}
	vms, series := map[string]int{}, map[string][]string{}
	count := func(n int, values []string) {
		key := strings.Join(values, "\x00")
		vms[key], series[key] = vms[key]+n, values
	}
	for _, lifecycle := range []string{string(vm.Ephemeral), string(vm.Persistent), string(vm.Pooled), string(vm.LeftAlone)} {
		count(0, s.labelled.values(nil, lifecycle))
	}
	sandboxes := map[string]int{"running": 0, "paused": 0}
	for _, v := range there {
		switch {
		case v.Sandbox() == nil || v.State != vm.Created || v.Unwanted || v.BeingMade():
		case v.Off != "" || !v.SuspendedAt.IsZero():
			sandboxes["paused"]++
		default:
			sandboxes["running"]++
		}
		lifecycle := string(v.Lifecycle)
		if v.State == vm.LeftAlone {
			lifecycle = string(vm.LeftAlone)
		}
		count(1, s.labelled.values(v.Labels, lifecycle))
	}
	for key, n := range vms {
		gauge(s.vms, float64(n), series[key]...)
	}
	for state, n := range sandboxes {
		gauge(s.sandboxes, float64(n), state)
	}
	byPool := map[string]map[vm.MemberState]int{}
	for _, m := range members {
		if byPool[m.Member.Pool] == nil {
			byPool[m.Member.Pool] = map[vm.MemberState]int{}
		}
		byPool[m.Member.Pool][m.Member.State]++
	}
	for pool, states := range byPool {
		for _, state := range vm.MemberStates {
			gauge(s.members, float64(states[state]), pool, string(state))
		}
	}
	gauge(s.queueAge, queueAge)
	said := map[[2]string]bool{} // only one of several principals' dispatchers with the same name and queue is reported
	for _, d := range dispatchers {
		key := [2]string{d.Queue, d.Name}
		if status := d.Status(); status == "away" || status == "drained" || said[key] {
			continue
		}
		said[key] = true
		oldest := 0.0
		if !d.Oldest.IsZero() {
			oldest = max(0, time.Since(d.Oldest).Seconds())
		}
		gauge(s.queueWaiting, float64(d.Waiting), d.Queue, d.Name)
		gauge(s.queueOldest, oldest, d.Queue, d.Name)
		gauge(s.queueSessions, float64(d.Sessions), d.Queue, d.Name)
		for _, f := range d.Failed {
			to <- prometheus.MustNewConstMetric(s.queueFailed, prometheus.CounterValue, float64(f.Count), d.Queue, d.Name, string(f.Reason))
		}
	}
}

// endingState is the state of a job from the decision of its outcome until it is done.
const endingState = "ending"

package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"linus/internal/job"
)

// TraceOptions configure a tracer. Exporter or Endpoint is required.
type TraceOptions struct {
	Endpoint string // base URL of an OTLP collector over HTTP; traces go to /v1/traces below it
	Exporter sdktrace.SpanExporter
	Version  string // of the engine
	Instance string // the installation's ID
	Log      *slog.Logger
}

// Tracer creates a trace of each job: a span for the job, and below it one span for the wait for a
// slot and one for each run of a phase, with the host's steps as events. The job's ID is the
// trace's ID, and the ID of the job's span is derived from it. So the spans of an engine and of its
// predecessors on the same job form one trace, and no state has to be kept.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer

	mu    sync.Mutex
	steps map[string][]step // of a job's current phase, by job ID
}

// step is an event while a phase runs.
type step struct {
	at         time.Time
	name, text string
}

// NewTracer returns a tracer. It connects to the collector in the background, so a collector that
// does not answer delays nothing. The exporter itself reads headers from the environment
// (OTEL_EXPORTER_OTLP_HEADERS).
func NewTracer(ctx context.Context, o TraceOptions) (*Tracer, error) {
	if o.Exporter == nil {
		var err error
		o.Exporter, err = otlptrace.New(ctx, newCollector(o.Endpoint))
		if err != nil {
			return nil, fmt.Errorf("export traces to %s: %w", o.Endpoint, err)
		}
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "linus"),
		attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.Instance),
	), resource.WithFromEnv())
	if err != nil {
		o.Log.Warn("invalid attributes for traces ignored", "err", err) // the others are used
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(logged{o.Exporter, o.Log}),
		sdktrace.WithIDGenerator(jobIDs{}),
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithResource(about),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("linus"), steps: map[string][]step{}}, nil
}

// flushTime bounds the last export: a stopping engine does not wait for a collector that is gone.
const flushTime = 3 * time.Second

// Close exports the remaining spans.
func (t *Tracer) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("export the last traces: %w", err)
	}
	return nil
}

// Observe exports spans for changes and phases of jobs.
func (t *Tracer) Observe(h job.Happening) {
	switch h := h.(type) {
	case job.Change:
		t.changed(h.Job, h.Events)
	case job.PhaseEnd:
		t.phaseEnded(h)
	}
}

// changed records the steps of a phase, and exports the wait for a slot.
func (t *Tracer) changed(j job.Job, events []job.Event) {
	for _, event := range events {
		switch event.Kind {
		case job.EventPhaseStarted:
			t.mu.Lock()
			t.steps[j.ID] = []step{} // earlier steps belong to an interrupted run
			t.mu.Unlock()
		case job.EventProgress, job.EventWarning, job.EventIgnored:
			t.addStep(j.ID, step{time.Now(), cmp.Or(event.Phase, event.Kind), event.Text})
		case job.EventStatus:
			if event.Text == string(job.Provisioning) {
				t.child(j, job.PhaseQueue, j.CreatedAt, nil).End()
			}
		}
	}
}

// phaseEnded exports a phase's span and, after the last phase, the job's.
func (t *Tracer) phaseEnded(r job.PhaseEnd) {
	span := t.child(r.Job, r.Phase, r.Began, t.takeSteps(r.Job.ID))
	span.SetAttributes(attribute.String("linus.result", string(r.Result)))
	if r.Err != nil {
		span.SetStatus(codes.Error, r.Err.Error())
	}
	span.End()
	if (r.Phase == job.PhaseDestroy || r.Phase == job.PhaseRelease) && r.Result == job.PhaseOK {
		t.job(r.Job)
	}
}

// maxSteps bounds the steps exported with one phase: an agent may report many.
const maxSteps = 128

func (t *Tracer) addStep(id string, s step) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if steps, underWay := t.steps[id]; underWay && len(steps) < maxSteps {
		t.steps[id] = append(steps, s)
	}
}

func (t *Tracer) takeSteps(id string) []step {
	t.mu.Lock()
	defer t.mu.Unlock()
	steps := t.steps[id]
	delete(t.steps, id)
	return steps
}

// child starts a span below the job's span.
func (t *Tracer) child(j job.Job, name string, began time.Time, steps []step) trace.Span {
	traceID, spanID := idsOf(j.ID)
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled,
	}))
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attribute.String("linus.job_id", j.ID)))
	for _, s := range steps {
		span.AddEvent(s.name, trace.WithTimestamp(s.at), trace.WithAttributes(attribute.String("text", s.text)))
	}
	return span
}

// job exports the span of a whole job.
func (t *Tracer) job(j job.Job) {
	ctx := context.WithValue(context.Background(), idsKey{}, j.ID)
	_, span := t.tracer.Start(ctx, "job", trace.WithTimestamp(j.CreatedAt), trace.WithAttributes(
		attribute.String("linus.job_id", j.ID),
		attribute.String("linus.kind", string(j.Kind)),
		attribute.String("linus.client", j.Client),
		attribute.String("linus.status", string(j.Status)),
	))
	defer span.End()
	if vm := j.VM; vm != nil {
		span.SetAttributes(attribute.Int("linus.vm_id", vm.ID), attribute.String("linus.vm_name", vm.Name), attribute.String("linus.node", vm.Node))
	}
	if o := j.Outcome; o != nil {
		span.SetAttributes(attribute.String("linus.reason", string(o.Reason)))
		if o.ExitCode != nil {
			span.SetAttributes(attribute.Int("linus.exit_code", *o.ExitCode))
		}
		if o.Status != job.Success {
			span.SetStatus(codes.Error, o.Error)
		}
	}
}

// idsKey is the context key of the ID of a root span's job.
type idsKey struct{}

// jobIDs derives the IDs of a job's span from the job's ID.
type jobIDs struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g jobIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id, _ := ctx.Value(idsKey{}).(string)
	return idsOf(id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (jobIDs) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// idsOf returns the IDs of a job's trace and of its root span: the UUID, and its random part.
func idsOf(jobID string) (t trace.TraceID, s trace.SpanID) {
	id, err := uuid.Parse(jobID)
	if err != nil {
		id = uuid.NewSHA1(uuid.NameSpaceOID, []byte(jobID))
	}
	copy(t[:], id[:])
	copy(s[:], id[8:])
	return t, s
}

// logged is an exporter that logs its failures.
type logged struct {
	sdktrace.SpanExporter
	log *slog.Logger
}

// ExportSpans implements sdktrace.SpanExporter.
func (l logged) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.log.Warn("traces not exported", "spans", len(spans), "err", err)
	}
	return nil
}

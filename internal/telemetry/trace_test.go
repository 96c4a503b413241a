package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"linus/internal/job"
	"linus/internal/vm"
)

func newTracer(t *testing.T, o TraceOptions) *Tracer {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	tracer, err := NewTracer(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// kept is an exporter that keeps its spans after Shutdown.
type kept struct{ *tracetest.InMemoryExporter }

func (kept) Shutdown(context.Context) error { return nil }

// spans ends the tracer and returns what it has exported, by name.
func spans(t *testing.T, tracer *Tracer, to kept) map[string]tracetest.SpanStub {
	t.Helper()
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	named := map[string]tracetest.SpanStub{}
	for _, s := range to.GetSpans() {
		if _, twice := named[s.Name]; twice {
			t.Errorf("two spans %s", s.Name)
		}
		named[s.Name] = s
	}
	to.Reset()
	return named
}

func TestTracer_AJobIsOneTraceAcrossEngines(t *testing.T) {
	to := kept{tracetest.NewInMemoryExporter()}
	j := job.Job{ID: jobID, Kind: job.KindTask, Client: "cli", Status: job.Provisioning, CreatedAt: time.Now().Add(-time.Minute)}

	first := newTracer(t, TraceOptions{Exporter: to})
	first.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventPhaseStarted, Phase: "provision"}}})
	first.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventStatus, Text: "provisioning"}}})
	first.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventProgress, Phase: "start_vm", Text: "starting the VM"}}})
	began := time.Now().Add(-10 * time.Second)
	first.Observe(job.PhaseEnd{Job: j, Phase: "provision", Began: began, Result: job.PhaseInterrupted, Err: job.ErrDetach})
	before := spans(t, first, to)

	second := newTracer(t, TraceOptions{Exporter: to})
	second.Observe(job.PhaseEnd{Job: j, Phase: "provision", Began: began, Result: job.PhaseOK})
	code := 3
	j.Status, j.Outcome = job.Failed, &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 3"}
	j.VM = &vm.VM{ID: 101, Name: "box", Node: "pve"}
	second.Observe(job.PhaseEnd{Job: j, Phase: "destroy", Began: time.Now(), Result: job.PhaseOK})
	after := spans(t, second, to)

	root, ok := after["job"]
	if !ok || len(before) != 2 || len(after) != 3 {
		t.Fatalf("spans before %v, after %v", before, after)
	}
	if want := strings.ReplaceAll(jobID, "-", ""); root.SpanContext.TraceID().String() != want || root.Parent.IsValid() {
		t.Errorf("the job's trace is %s below %v, want %s below nothing", root.SpanContext.TraceID(), root.Parent, want)
	}
	for _, s := range []tracetest.SpanStub{before["queue"], before["provision"], after["provision"], after["destroy"]} {
		if s.SpanContext.TraceID() != root.SpanContext.TraceID() || s.Parent.SpanID() != root.SpanContext.SpanID() {
			t.Errorf("%s is in trace %s below %s, want %s below %s", s.Name,
				s.SpanContext.TraceID(), s.Parent.SpanID(), root.SpanContext.TraceID(), root.SpanContext.SpanID())
		}
	}
	if s := before["provision"]; !s.StartTime.Equal(began) || s.Status.Code != codes.Error || len(s.Events) != 1 || s.Events[0].Name != "start_vm" {
		t.Errorf("provision: began %v, %v, events %+v", s.StartTime, s.Status, s.Events)
	}
	if s := before["queue"]; !s.StartTime.Equal(j.CreatedAt) {
		t.Errorf("queue began %v", s.StartTime)
	}
	if !root.StartTime.Equal(j.CreatedAt) || root.Status.Description != "exit status 3" {
		t.Errorf("job: began %v, %v", root.StartTime, root.Status)
	}
	attributes := map[string]string{}
	for _, a := range root.Attributes {
		attributes[string(a.Key)] = a.Value.String()
	}
	for key, want := range map[string]string{
		"linus.job_id": jobID, "linus.client": "cli", "linus.status": "failed",
		"linus.reason": "exit_status", "linus.exit_code": "3", "linus.vm_id": "101", "linus.node": "pve",
	} {
		if attributes[key] != want {
			t.Errorf("%s is %q, want %q", key, attributes[key], want)
		}
	}
}

func TestTracer_AJobIsExportedOnce(t *testing.T) {
	to := kept{tracetest.NewInMemoryExporter()}
	j := job.Job{ID: jobID, Status: job.Success, Outcome: &job.Outcome{Status: job.Success}, VM: &vm.VM{State: vm.Created}}
	tracer := newTracer(t, TraceOptions{Exporter: to})
	tracer.Observe(job.PhaseEnd{Job: j, Phase: "destroy", Began: time.Now(), Result: job.PhaseFailed, Err: errors.New("host is away")}) // will be tried again
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range to.GetSpans() {
		if s.Name != "destroy" {
			t.Errorf("span %s", s.Name)
		}
	}
}

func TestTracer_KeepsNothingOfWhatHappensBetweenPhases(t *testing.T) {
	tracer := newTracer(t, TraceOptions{Exporter: kept{tracetest.NewInMemoryExporter()}})
	j := job.Job{ID: jobID}
	tracer.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventIgnored, Text: "late"}}})
	if len(tracer.steps) != 0 {
		t.Errorf("kept %v", tracer.steps)
	}
	tracer.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventPhaseStarted}}})
	for range 2 * maxSteps {
		tracer.Observe(job.Change{Job: j, Events: []job.Event{{Kind: job.EventProgress}}})
	}
	if n := len(tracer.steps[jobID]); n != maxSteps {
		t.Errorf("%d steps kept, want %d", n, maxSteps)
	}
	tracer.Observe(job.PhaseEnd{Job: j, Phase: "run", Began: time.Now(), Result: job.PhaseOK})
	if len(tracer.steps) != 0 {
		t.Errorf("kept %v after the phase", tracer.steps)
	}
}

func TestTracer_ExportsToTheCollectorBelowItsEndpoint(t *testing.T) {
	asked := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type")
	}))
	defer collector.Close()
	tracer := newTracer(t, TraceOptions{Endpoint: collector.URL + "/otlp/"})
	tracer.Observe(job.PhaseEnd{Job: job.Job{ID: jobID}, Phase: "push", Began: time.Now(), Result: job.PhaseOK})
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got != "POST /otlp/v1/traces application/x-protobuf" {
		t.Errorf("the collector was asked %s", got)
	}
}

// refusing is a collector that takes nothing.
type refusing struct{ sdktrace.SpanExporter }

func (refusing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	return errors.New("collector is full")
}
func (refusing) Shutdown(context.Context) error { return nil }

func TestTracer_WhatIsNotExportedIsALineInTheLog(t *testing.T) {
	var log strings.Builder
	tracer := newTracer(t, TraceOptions{Exporter: refusing{}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	tracer.Observe(job.PhaseEnd{Job: job.Job{ID: jobID}, Phase: "push", Began: time.Now(), Result: job.PhaseOK})
	if err := tracer.Close(t.Context()); err != nil {
		t.Errorf("Close = %v", err)
	}
	if !strings.Contains(log.String(), "collector is full") {
		t.Errorf("log: %s", log.String())
	}
}

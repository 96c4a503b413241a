package daemon

import (
	"context"
	"log/slog"
	"path/filepath"

	"linus/internal/job"
	"linus/internal/store"
	"linus/internal/telemetry"
)

// auditSize is the size, in bytes, at which audit.log is rotated.
const auditSize = 10 << 20

// auditOptions returns the options of the state directory's audit log. Only the engine, of which
// there is one, rotates it.
func auditOptions(o Options) telemetry.AuditOptions {
	return telemetry.AuditOptions{Path: filepath.Join(o.Config.StateDir, "audit.log"), Log: o.Log}
}

// watch is what operators observe of an engine: metrics, traces and the audit log.
type watch struct {
	metrics *telemetry.Metrics
	tracer  *telemetry.Tracer // nil: no traces
	audit   *telemetry.Audit
}

func openWatch(ctx context.Context, o Options, owner string, st *store.Store) (*watch, error) {
	w := &watch{metrics: telemetry.NewMetrics(o.Version, st, o.Log, o.Config.LabelKeys()...)}
	audit := auditOptions(o)
	audit.MaxSize = auditSize
	audit.OnEnd = w.metrics.HostChanged
	audit.Submitter = func(ctx context.Context, id string) job.Caller {
		j, err := st.Job(context.WithoutCancel(ctx), id)
		if err == nil {
			return j.Submitter()
		}
		if v, err := st.VM(context.WithoutCancel(ctx), id); err == nil && v.AskedFor() {
			return job.StandInJob(v).Submitter()
		}
		return job.Caller{} // the VM of no job here
	}
	w.audit = telemetry.NewAudit(audit)
	if o.Config.TraceEndpoint == "" {
		return w, nil
	}
	var err error
	w.tracer, err = telemetry.NewTracer(ctx, telemetry.TraceOptions{
		Endpoint: o.Config.TraceEndpoint, Version: o.Version, Instance: owner, Log: o.Log,
	})
	return w, err
}

// observe passes on what the engine does.
func (w *watch) observe(h job.Happening) {
	w.metrics.Observe(h)
	w.audit.Observe(h)
	if w.tracer != nil {
		w.tracer.Observe(h)
	}
}

// close exports the last traces. A failure is only logged.
func (w *watch) close(ctx context.Context, log *slog.Logger) {
	if w.tracer == nil {
		return
	}
	if err := w.tracer.Close(ctx); err != nil {
		log.Warn("traces not exported", "err", err)
	}
}

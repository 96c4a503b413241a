package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/store"
	"linus/internal/telemetry"
)

// auditSize is how large audit.log grows before it is renamed.
const auditSize = 10 << 20

// auditOptions are those of the state directory's audit log. Only the engine,
// of which there is one, renames it.
func auditOptions(c config.Config, log *slog.Logger) telemetry.AuditOptions {
	return telemetry.AuditOptions{Path: filepath.Join(c.StateDir, "audit.log"), Log: log}
}

// watch is what an operator sees of an engine from outside.
type watch struct {
	metrics *telemetry.Metrics
	tracer  *telemetry.Tracer // nil: no traces
	audit   *telemetry.Audit
}

func openWatch(ctx context.Context, c config.Config, owner string, st *store.Store, log *slog.Logger) (*watch, error) {
	w := &watch{metrics: telemetry.NewMetrics(buildVersion(), st, log)}
	o := auditOptions(c, log)
	o.MaxSize = auditSize
	o.OnEnd = w.metrics.HostChanged
	o.ClientOf = func(ctx context.Context, id string) string {
		j, err := st.Job(context.WithoutCancel(ctx), id)
		if err != nil {
			return "" // a VM of no job here
		}
		return j.Client
	}
	w.audit = telemetry.NewAudit(o)
	if c.TraceEndpoint == "" {
		return w, nil
	}
	var err error
	w.tracer, err = telemetry.NewTracer(ctx, telemetry.TraceOptions{
		Endpoint: c.TraceEndpoint, Version: buildVersion(), Instance: owner, Log: log,
	})
	return w, err
}

// observer is told what the engine does.
func (w *watch) observer() job.Observer {
	if w.tracer == nil {
		return w.metrics
	}
	return telemetry.Observers{w.metrics, w.tracer}
}

// close exports the last traces. Those that cannot be are no fault of the engine's.
func (w *watch) close(ctx context.Context, log *slog.Logger) {
	if w.tracer == nil {
		return
	}
	if err := w.tracer.Close(ctx); err != nil {
		log.Warn("traces not exported", "err", err)
	}
}

// auditedTemplates writes what is done to templates to the audit log.
type auditedTemplates struct {
	templates
	audit *telemetry.Audit
}

// BuildTemplate makes a template.
func (t auditedTemplates) BuildTemplate(ctx context.Context, spec proxmox.TemplateSpec, progress func(job.Progress)) (job.VM, error) {
	var vm job.VM
	r := telemetry.Record{Action: telemetry.ActionBuildTemplate, VMName: spec.Name, Detail: spec.OS}
	err := t.audit.Do(job.WithClient(ctx, "cli"), r, func(r *telemetry.Record) (err error) {
		vm, err = t.templates.BuildTemplate(ctx, spec, progress)
		ofVM(r, vm)
		return err
	})
	return vm, err
}

// RemoveTemplate removes a template.
func (t auditedTemplates) RemoveTemplate(ctx context.Context, nameOrID string) (job.VM, error) {
	var vm job.VM
	r := telemetry.Record{Action: telemetry.ActionRemoveTemplate, VMName: nameOrID}
	err := t.audit.Do(job.WithClient(ctx, "cli"), r, func(r *telemetry.Record) (err error) {
		vm, err = t.templates.RemoveTemplate(ctx, nameOrID)
		ofVM(r, vm)
		return err
	})
	return vm, err
}

// ofVM completes a record with what became known of its template.
func ofVM(r *telemetry.Record, vm job.VM) {
	if vm.ID != 0 {
		r.Job, r.VMID, r.VMName, r.Node = vm.Job, vm.ID, vm.Name, vm.Node
		r.Proof = &telemetry.Proof{Name: vm.Name, Job: vm.Job, Owner: vm.Owner}
	}
}

package daemon

import (
	"context"

	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/store"
	"linus/internal/telemetry"
)

// TemplateSpec is a template to build.
type TemplateSpec = proxmox.TemplateSpec

// TemplateStore manages the templates on the host. This needs no engine, so the verbs
// contact the host themselves.
type TemplateStore interface {
	BuildTemplate(ctx context.Context, spec TemplateSpec, progress func(job.Progress)) (job.VM, error)
	Templates(ctx context.Context) ([]job.VM, error)
	RemoveTemplate(ctx context.Context, nameOrID string) (job.VM, error)
}

// WithTemplates calls work with the templates of the configured host. Changes are
// written to the audit log.
func WithTemplates(ctx context.Context, o Options, work func(TemplateStore) error) error {
	c := o.Config
	if err := c.NeedHost(); err != nil {
		return err
	}
	st, err := store.Open(ctx, store.Options{Dir: c.StateDir, MaxOutput: int64(c.MaxOutputSize)})
	if err != nil {
		return err
	}
	owner, err := st.InstallationID(ctx)
	if closeErr := st.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	b := o.Backend(c, Installation{owner: owner}, o.Log)
	defer b.Close()
	return work(auditedTemplates{b.Templates, telemetry.NewAudit(auditOptions(o))})
}

// auditedTemplates writes changes of templates to the audit log.
type auditedTemplates struct {
	TemplateStore
	audit *telemetry.Audit
}

func (t auditedTemplates) BuildTemplate(ctx context.Context, spec TemplateSpec, progress func(job.Progress)) (job.VM, error) {
	var vm job.VM
	r := telemetry.Record{Action: telemetry.ActionBuildTemplate, VMName: spec.Name, Detail: spec.OS}
	err := t.audit.Do(job.WithClient(ctx, "cli"), r, func(r *telemetry.Record) (err error) {
		vm, err = t.TemplateStore.BuildTemplate(ctx, spec, progress)
		ofVM(r, vm)
		return err
	})
	return vm, err
}

func (t auditedTemplates) RemoveTemplate(ctx context.Context, nameOrID string) (job.VM, error) {
	var vm job.VM
	r := telemetry.Record{Action: telemetry.ActionRemoveTemplate, VMName: nameOrID}
	err := t.audit.Do(job.WithClient(ctx, "cli"), r, func(r *telemetry.Record) (err error) {
		vm, err = t.TemplateStore.RemoveTemplate(ctx, nameOrID)
		ofVM(r, vm)
		return err
	})
	return vm, err
}

// ofVM adds to a record what is known of its template.
func ofVM(r *telemetry.Record, vm job.VM) {
	if vm.ID != 0 {
		r.Job, r.VMID, r.VMName, r.Node = vm.Job, vm.ID, vm.Name, vm.Node
		r.Proof = &telemetry.Proof{Name: vm.Name, Job: vm.Job, Owner: vm.Owner}
	}
}

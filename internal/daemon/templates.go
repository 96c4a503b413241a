package daemon

import (
	"context"
	"errors"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/store"
	"linus/internal/telemetry"
	"linus/internal/vm"
)

// TemplateStore manages the templates on the host, and removes what linus keeps there. That needs
// no engine, so the verbs contact the host themselves.
type TemplateStore interface {
	BuildTemplate(ctx context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error)
	Templates(ctx context.Context) ([]vm.VM, error)
	RemoveTemplate(ctx context.Context, nameOrID string) (vm.VM, error)
	RenameTemplate(ctx context.Context, from, to string) (vm.VM, error)
	Uninstall(ctx context.Context, spec job.UninstallSpec) (job.Uninstalled, error)
}

// EngineRuns reports whether the state directory has an engine that responds.
func EngineRuns(ctx context.Context, c config.Config) bool {
	there, err := ask(ctx, c, func(*control.Conn) error { return nil })
	return there && err == nil
}

// NewBuild returns the ID of a new template build.
func NewBuild() string { return proxmox.NewBuild() }

// WithTemplates calls work with the templates of the configured host. Changes are written to the
// audit log.
func WithTemplates(ctx context.Context, o Options, work func(TemplateStore) error) error {
	return withBackend(ctx, o, func(b Backend, audit *telemetry.Audit) error {
		return work(auditedTemplates{b.Templates, audit, o})
	})
}

// OnEveryNode calls work with the templates of each node that VMs are spread over, one after the
// other, even after a failure. The inventory is from before the first call.
func OnEveryNode(ctx context.Context, o Options, work func(inv job.Inventory, n job.Node, t TemplateStore) error) error {
	return withBackend(ctx, o, func(b Backend, audit *telemetry.Audit) error {
		inv, err := b.Provider.Nodes(ctx)
		if err != nil {
			return err
		}
		if !inv.Spread || b.TemplatesOn == nil {
			return &job.FieldError{Field: "--all-nodes", Problem: "VMs are not spread over several nodes", Remedy: "set PROXMOX_NODES, or leave the option out"}
		}
		var failed []error
		for _, n := range inv.Nodes {
			t, err := b.TemplatesOn(ctx, n.Name)
			if err == nil {
				err = work(inv, n, auditedTemplates{t, audit, o})
			}
			if ctx.Err() != nil {
				return err
			}
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	})
}

// withBackend calls work with the backend, without an engine.
func withBackend(ctx context.Context, o Options, work func(Backend, *telemetry.Audit) error) error {
	c := o.Config
	if err := c.NeedHost(); err != nil {
		return err
	}
	st, err := store.Open(ctx, storeOptions(c, nil))
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
	b := o.Backend(c, Installation{owner: owner, version: o.Version}, o.Log)
	defer b.Close()
	return work(b, telemetry.NewAudit(auditOptions(o)))
}

// auditedTemplates writes changes of templates to the audit log. A removed template no longer
// counts as anybody's disk.
type auditedTemplates struct {
	TemplateStore
	audit *telemetry.Audit
	o     Options
}

// byClient names the command line as the client of a call that no other client made.
func byClient(ctx context.Context) context.Context {
	if job.ClientFrom(ctx) != "" {
		return ctx
	}
	return job.WithClient(ctx, "cli")
}

func (t auditedTemplates) BuildTemplate(ctx context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error) {
	r := telemetry.Record{Action: telemetry.ActionBuildTemplate, VMName: spec.Name, Detail: spec.OS}
	return telemetry.Change(byClient(ctx), t.audit, r, func(r *telemetry.Record) (vm.VM, error) {
		v, err := t.TemplateStore.BuildTemplate(ctx, spec, progress)
		ofVM(r, v)
		return v, err
	})
}

func (t auditedTemplates) RemoveTemplate(ctx context.Context, nameOrID string) (vm.VM, error) {
	r := telemetry.Record{Action: telemetry.ActionRemoveTemplate, VMName: nameOrID}
	return telemetry.Change(byClient(ctx), t.audit, r, func(r *telemetry.Record) (vm.VM, error) {
		v, err := t.TemplateStore.RemoveTemplate(ctx, nameOrID)
		ofVM(r, v)
		if err == nil {
			err = t.stored(ctx, v.ID, v.Name, func(st *store.Store, row vm.SavedTemplate) error { return st.DeleteSaved(ctx, row.ID) })
		}
		return v, err
	})
}

func (t auditedTemplates) RenameTemplate(ctx context.Context, from, to string) (vm.VM, error) {
	r := telemetry.Record{Action: telemetry.ActionRenameTemplate, VMName: from, Detail: "from " + from}
	return telemetry.Change(byClient(ctx), t.audit, r, func(r *telemetry.Record) (vm.VM, error) {
		v, err := t.TemplateStore.RenameTemplate(ctx, from, to)
		ofVM(r, v)
		if err == nil {
			err = t.stored(ctx, v.ID, from, func(st *store.Store, row vm.SavedTemplate) error {
				row.Name = to
				return st.UpdateSaved(ctx, row)
			})
		}
		return v, err
	})
}

// stored changes the row of a saved template. An engine would find out only later that the template
// is gone.
func (t auditedTemplates) stored(ctx context.Context, id int, name string, change func(*store.Store, vm.SavedTemplate) error) (err error) {
	st, err := store.Open(ctx, storeOptions(t.o.Config, nil))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	rows, err := st.SavedTemplates(ctx)
	for _, row := range rows {
		if row.VMID == id && row.Name == name {
			err = errors.Join(err, change(st, row))
		}
	}
	return err
}

func (t auditedTemplates) Uninstall(ctx context.Context, spec job.UninstallSpec) (job.Uninstalled, error) {
	if spec.Plan {
		return t.TemplateStore.Uninstall(ctx, spec)
	}
	r := telemetry.Record{Action: telemetry.ActionUninstall}
	return telemetry.Change(byClient(ctx), t.audit, r, func(r *telemetry.Record) (job.Uninstalled, error) {
		done, err := t.TemplateStore.Uninstall(ctx, spec)
		r.Node = done.Node
		return done, err
	})
}

// ofVM adds what is known of the template to a record.
func ofVM(r *telemetry.Record, v vm.VM) {
	if v.ID != 0 {
		r.Job, r.VMID, r.VMName, r.Node = v.Job, v.ID, v.Name, v.Node
		r.Proof = &telemetry.Proof{Name: v.Name, Job: v.Job, Owner: v.Owner}
	}
}

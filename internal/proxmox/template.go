package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// NewBuild returns the ID of a new build of a template: a UUID that sorts by time.
func NewBuild() string { return uuid.Must(uuid.NewV7()).String() }

// BuildTemplate builds a template from a cloud image, which takes minutes. If ctx ends, the script is
// stopped, and has undone its work when BuildTemplate returns.
func (p *Provider) BuildTemplate(ctx context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error) {
	run := NewBuild() // systemd may know an earlier run of spec.Build, whose template the node has lost
	build := cmp.Or(spec.Build, run)
	env := p.machineEnvironment()
	if p.o.Member {
		env["TEMPLATE_NAME_IN"] = "node"
	}
	env["LINUS_JOB"] = build
	setText(env, "LINUS_OWNER", p.o.Owner)
	setText(env, "TEMPLATE_NAME", spec.Name)
	setText(env, "VM_OS", spec.OS)
	setText(env, "VM_IMAGE_URL", spec.ImageURL)
	setText(env, "VM_IMAGE_SHA256", spec.ImageSHA256)
	setText(env, "VM_BOOTSTRAP", spec.Bootstrap)
	for part, from := range spec.Runners {
		name := "VM_" + strings.ToUpper(strings.ReplaceAll(part, "-", "_"))
		setText(env, name, from.URL)
		setText(env, name+"_SHA256", from.SHA256)
	}
	const op = "build a template"
	id := "template-" + run
	res, err := p.operate(ctx, id, call{op: op, script: "build-template", guest: "job-runner", env: env, onLine: telling(progress)})
	p.discard(ctx, op, id) // even if ctx detached: no engine continues a build
	v := vm.VM{Job: build, Owner: p.o.Owner, Name: res.Get("LINUS_TEMPLATE_NAME"), Node: res.Get("LINUS_VM_NODE")}
	if err != nil {
		return v, err
	}
	v.ID, err = strconv.Atoi(res.Get("LINUS_VM_ID"))
	if err != nil {
		return v, p.failure(op, job.HostVM, "build-template reported success without an ID", "")
	}
	return v, nil
}

// Templates returns the templates that this installation built. Like List, it returns what it found and
// an error if a node could not be asked.
func (p *Provider) Templates(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list templates", "template")
}

// RemoveTemplate removes a template that this installation built, by its name or ID, once the host has
// proven that it is one. Proxmox refuses while clones use its disk.
func (p *Provider) RemoveTemplate(ctx context.Context, nameOrID string) (vm.VM, error) {
	op := "remove template " + nameOrID
	t, err := p.template(ctx, op, nameOrID)
	if err != nil {
		return vm.VM{}, err
	}
	return t, p.destroy(ctx, op, t, "VM_KIND", "template")
}

// RenameTemplate renames a template that this installation built. No VM may have the new name. Once
// begun, the rename completes even without the engine.
func (p *Provider) RenameTemplate(ctx context.Context, nameOrID, name string) (vm.VM, error) {
	t, err := p.template(ctx, "rename template "+nameOrID, nameOrID)
	if err != nil {
		return vm.VM{}, err
	}
	_, err = p.power(ctx, powerCall{what: "rename", action: "rename", vm: t, name: name})
	if err == nil {
		t.Name = name
	}
	return t, err
}

// template returns the only template with a name or ID that this installation built.
func (p *Provider) template(ctx context.Context, op, nameOrID string) (vm.VM, error) {
	templates, err := p.Templates(ctx)
	var found []vm.VM
	var ids []string
	for _, t := range templates {
		if id := strconv.Itoa(t.ID); t.Name == nameOrID || id == nameOrID {
			found, ids = append(found, t), append(ids, id)
		}
	}
	if len(found) != 1 {
		if err != nil {
			return vm.VM{}, err
		}
		text := fmt.Sprintf("this installation built no template called %q; remove others by hand", nameOrID)
		if len(found) > 1 {
			text = fmt.Sprintf("%q is the name of several templates: %s", nameOrID, strings.Join(ids, ", "))
		}
		return vm.VM{}, p.failure(op, job.HostInvalid, text, string(job.ListTemplates)+" shows them; give an ID")
	}
	return found[0], nil
}

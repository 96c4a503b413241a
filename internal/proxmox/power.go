package proxmox

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/result"
	"linus/internal/term"
	"linus/internal/vm"
)

// SetNetwork changes where a VM's packets may go.
func (p *Provider) SetNetwork(ctx context.Context, v vm.VM, n vm.Network) error {
	_, err := p.power(ctx, powerCall{what: "change the network of", action: "network", vm: v, network: n})
	return err
}

// StartVM starts a VM and waits, as Create does, until it is usable.
func (p *Provider) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, powerCall{what: "start", action: "start", vm: v, progress: progress})
}

// StopVM shuts a VM down, and powers it off if it does not react.
func (p *Provider) StopVM(ctx context.Context, v vm.VM) error {
	_, err := p.power(ctx, powerCall{what: "stop", action: "shutdown", vm: v})
	return err
}

// SuspendVM writes a VM's memory to its storage and turns it off.
func (p *Provider) SuspendVM(ctx context.Context, v vm.VM) error {
	_, err := p.power(ctx, powerCall{what: "suspend", action: "suspend", vm: v})
	return err
}

// ResumeVM continues a suspended VM, sets its clock, and waits until it is usable.
func (p *Provider) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, powerCall{what: "resume", action: "resume", vm: v, progress: progress})
}

// saveOperation returns the ID of the only save that a VM can have.
func saveOperation(v vm.VM) string { return "checkpoint-" + v.Job }

// SaveCheckpoint makes a checkpoint of a VM that is ready. The VM does not run again. If ctx ends, the
// script is stopped, and has undone its work when SaveCheckpoint returns.
func (p *Provider) SaveCheckpoint(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.Checkpoint, error) {
	op := fmt.Sprintf("save checkpoint %d (%s)", v.ID, v.Name)
	env := p.machineEnvironment()
	maps.Copy(env, proof(v))
	setText(env, "PROXMOX_NODE", v.Node)
	setText(env, "VM_TEMPLATE", v.Template)
	res, err := p.operateOnce(ctx, saveOperation(v), call{op: op, script: "checkpoint-vm", env: env, onLine: telling(progress)})
	c := vm.Checkpoint{Generation: res.Get("LINUS_CHECKPOINT_GENERATION"), Host: res.Get("LINUS_CHECKPOINT_HOST")}
	if err == nil {
		if c.Bytes, err = strconv.ParseInt(res.Get("LINUS_CHECKPOINT_BYTES"), 10, 64); err != nil {
			err = p.failure(op, job.HostVM, "checkpoint-vm reported success without a size", "")
		}
	}
	return c, err
}

// unsaid are the characters that are replaced in SAVED_BY, which ends up in a template's description.
var unsaid = lazyregexp.New(`[^A-Za-z0-9._@:+-]`)

// SaveVM makes a template of a copy of a VM, or of the VM itself. The script continues if the connection
// is lost or the engine stops: its copy ends up as a template, or is removed.
func (p *Provider) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (job.SavedTemplate, error) {
	op := fmt.Sprintf("save VM %d (%s) as template %s", v.ID, v.Name, spec.Name)
	env := p.machineEnvironment()
	maps.Copy(env, proof(v))
	by := unsaid.ReplaceAllString(spec.By, "_")
	by = by[:min(len(by), 64)]
	build := NewBuild()
	env["TEMPLATE_NAME"], env["LINUS_BUILD"], env["SAVE_MODE"] = spec.Name, build, "copy"
	if spec.InPlace {
		env["SAVE_MODE"] = "in-place"
	}
	setText(env, "PROXMOX_NODE", v.Node)
	setText(env, "VM_TEMPLATE", v.Template)
	setText(env, "VM_SSH_USER", v.User)
	setText(env, "SAVED_BY", by)
	res, err := p.operateOnce(ctx, "save-"+build, call{op: op, script: "save-vm", env: env, onLine: telling(progress)})
	if err != nil {
		return job.SavedTemplate{}, err
	}
	if spec.InPlace { // the VM is gone, and its create operation with it
		p.discard(ctx, op, p.createOperation(v.Job))
	}
	t := job.SavedTemplate{
		Name: res.Get("LINUS_TEMPLATE_NAME"), Node: res.Get("LINUS_VM_NODE"), InPlace: res.Get("LINUS_SAVED") == "in-place",
		Saved: vm.Provenance{VM: v.Name, Template: v.Template, By: by, At: readSeconds(res.Get("LINUS_SAVED_AT"))},
	}
	for _, left := range res.All("LINUS_LEFT") {
		t.Left = append(t.Left, term.Text(left))
	}
	if t.VMID, err = readID(res.Get("LINUS_VM_ID")); err != nil {
		return t, p.failure(op, job.HostVM, "save-vm reported success without an ID", "")
	}
	return t, nil
}

// readSeconds parses a time in seconds since 1970. It returns the zero time if text is invalid.
func readSeconds(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// ForkVM makes a VM ready to be copied. Another engine that continues the same fork joins the operation.
func (p *Provider) ForkVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (job.ForkPoint, error) {
	c := powerCall{what: "fork", action: "fork", vm: v, progress: progress}
	if v.Forking.Active() {
		c.id = "fork-" + v.Forking.IDs[0]
	}
	res, err := p.power(ctx, c)
	if err != nil {
		return job.ForkPoint{}, err
	}
	at := job.ForkPoint{Live: res.Get("LINUS_FORK") == "live", Why: job.Bounded(res.Get("LINUS_FORK_WHY"))}
	at.PauseMS, _ = strconv.ParseInt(res.Get("LINUS_FORK_PAUSE"), 10, 64) // absent: not known
	return at, nil
}

// EndFork removes the snapshot that ForkVM may have taken.
func (p *Provider) EndFork(ctx context.Context, v vm.VM) error {
	_, err := p.power(ctx, powerCall{what: "remove the snapshot for the forks of", action: "unfork", vm: v})
	return err
}

// SnapshotVM takes a named snapshot of the VM's disk and, if memory is set, of its memory.
func (p *Provider) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	_, err := p.power(ctx, powerCall{what: "take snapshot " + name + " of", action: "snapshot", vm: v, snapshot: name, memory: memory})
	return err
}

// RevertVM reverts a VM to a snapshot and starts it, as StartVM does.
func (p *Provider) RevertVM(ctx context.Context, v vm.VM, name string, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, powerCall{what: "revert to snapshot " + name + " of", action: "revert", vm: v, snapshot: name, progress: progress})
}

// DeleteSnapshot removes a snapshot of a VM.
func (p *Provider) DeleteSnapshot(ctx context.Context, v vm.VM, name string) error {
	_, err := p.power(ctx, powerCall{what: "remove snapshot " + name + " of", action: "delete-snapshot", vm: v, snapshot: name})
	return err
}

// powerCall is one run of power-vm.
type powerCall struct {
	what     string // what is done to the VM, for errors
	action   string // power-vm's argument
	vm       vm.VM
	snapshot string
	id       string             // of the operation; empty: a new one
	name     string             // new name of a template
	network  vm.Network         // new network of the VM
	memory   bool               // the snapshot includes the VM's memory
	progress func(job.Progress) // nil: progress is not reported
}

func (c powerCall) op() string { return fmt.Sprintf("%s VM %d (%s)", c.what, c.vm.ID, c.vm.Name) }

// boot runs a power-vm action after which the VM is running, and returns the VM's new state.
func (p *Provider) boot(ctx context.Context, c powerCall) (vm.VM, error) {
	res, err := p.power(ctx, c)
	if err != nil {
		return c.vm, err
	}
	return p.booted(c.op(), c.vm, res)
}

// power runs power-vm as an operation. If the connection is lost or the engine stops, the operation
// continues until another one starts on the VM, and it is not run twice.
func (p *Provider) power(ctx context.Context, c powerCall) (result.Result, error) {
	env := p.machineEnvironment()
	maps.Copy(env, proof(c.vm))
	env["ACTION"] = c.action
	setText(env, "PROXMOX_NODE", c.vm.Node)
	setText(env, "SNAPSHOT", c.snapshot)
	setText(env, "NEW_NAME", c.name)
	if c.memory {
		env["SNAPSHOT_MEMORY"] = "true"
	}
	setEgress(env, c.network)
	setText(env, "VM_SSH_USER", c.vm.User)
	all := "power-" + c.vm.Job + "-" // only one may run per VM: any other belongs to an engine that has ended
	id := cmp.Or(c.id, all+strings.ToLower(rand.Text()))
	return p.operateOnce(ctx, id, call{op: c.op(), script: "power-vm", env: env, replaces: all, onLine: telling(c.progress)})
}

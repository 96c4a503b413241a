package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/result"
	"linus/internal/vm"
)

// Destroy stops an unfinished create of the VM's job, and destroys the VM once the host has proven its
// identity. Without an ID it only stops the create.
func (p *Provider) Destroy(ctx context.Context, v vm.VM) error {
	op := fmt.Sprintf("destroy VM %d (%s)", v.ID, v.Name)
	if err := p.settle(ctx, op, p.createOperation(v.Job)); err != nil || v.ID == 0 {
		return err
	}
	if v.Checkpoint != nil {
		if err := p.settle(ctx, op, saveOperation(v)); err != nil {
			return err
		}
	}
	return p.destroy(ctx, op, v, "VM_KIND", "vm")
}

// destroy runs destroy-vm with one more input, which names v's kind or the action.
func (p *Provider) destroy(ctx context.Context, op string, v vm.VM, input, value string) error {
	env := proof(v)
	env[input] = value
	setText(env, "PROXMOX_NODE", cmp.Or(v.Node, p.o.Node))
	_, err := p.run(ctx, call{op: op, script: "destroy-vm", env: env, patience: p.o.Patience / 10})
	return err
}

// List returns every VM of this installation. If a node could not be asked, it returns what it found and
// an error of class HostOffline: a VM that is not in the list may then still exist.
func (p *Provider) List(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list VMs", "vm")
}

func (p *Provider) list(ctx context.Context, op, kind string) ([]vm.VM, error) {
	env := map[string]string{"VM_KIND": kind}
	setText(env, "LINUS_OWNER", p.o.Owner)
	patience := p.o.Patience / 10
	if p.o.Member {
		env["LIST_NODES"] = "own"
		patience = 0 // the lists of other nodes do not wait for this one
	}
	res, err := p.run(ctx, call{op: op, script: "list-vms", env: env, patience: patience})
	if err != nil {
		return nil, err
	}
	p.noteQuarantine(ctx, res.All("LINUS_QUARANTINED"))
	p.noteLeftAlone(ctx, res.All("LINUS_LEFT_ALONE"))
	var vms []vm.VM
	for _, line := range res.All("LINUS_VM") {
		v, err := readVM(line)
		if err != nil {
			return nil, p.failure(op, job.HostVM, err.Error(), "")
		}
		vms = append(vms, v)
	}
	if warnings := res.All("LINUS_WARNING"); len(warnings) > 0 {
		return vms, p.failure(op, job.HostOffline, strings.Join(warnings, "; "), "bring the node back online, or remove it from the cluster")
	}
	return vms, nil
}

// readVM parses `id=101 node=pve name=... status=... job=<uuid> owner=<uuid>`. An operator may have
// changed or removed the VM's name.
func readVM(line string) (vm.VM, error) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		if _, twice := values[key]; twice {
			return vm.VM{}, fmt.Errorf("list-vms returned a VM with two of %s: %q", key, line)
		}
		values[key] = value
	}
	id, err := readID(values["id"])
	if err != nil {
		return vm.VM{}, fmt.Errorf("list-vms returned a VM without ID: %q", line)
	}
	for key, form := range map[string]*lazyregexp.Regexp{"node": nodeForm, "name": nameForm, "job": uuidForm, "owner": uuidForm} {
		if len(values[key]) > 253 || !form.MatchString(values[key]) {
			return vm.VM{}, fmt.Errorf("list-vms returned VM %d with %s %q", id, key, values[key])
		}
	}
	var saved *vm.Provenance
	if values["from"] != "" {
		saved = &vm.Provenance{VM: values["from"], Template: values["before"], By: values["by"], At: readSeconds(values["at"])}
	}
	return vm.VM{
		Provenance: saved,
		ID:         id, Name: values["name"], Node: values["node"],
		Job: values["job"], Owner: values["owner"], State: vm.Created, Status: readStatus(values["status"]),
	}, nil
}

// readStatus converts Proxmox's status of a VM, or show-vm's if there is no such VM.
func readStatus(word string) vm.Status {
	switch word {
	case "running":
		return vm.Running
	case "stopped":
		return vm.Stopped
	case "suspended":
		return vm.Suspended
	case "gone", "foreign": // foreign: the ID now belongs to another VM
		return vm.Gone
	case "left_alone", "moved":
		return vm.Unproven
	}
	return vm.Unknown
}

// Status asks the host for the VM's status, and does not wait for a host that does not respond. The
// status of a VM on another node, as after a migration, is Unproven (for a Member it is a
// *job.MovedError). A VM that is neither running, stopped nor suspended is Unknown.
func (p *Provider) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	op := fmt.Sprintf("check VM %d (%s)", v.ID, v.Name)
	res, err := p.show(ctx, op, proof(v))
	if err != nil {
		return vm.Unknown, err
	}
	return readStatus(res.Get("LINUS_VM_STATUS")), nil
}

// show runs show-vm. It returns a *job.MovedError for a VM on another node that has its own Provider.
func (p *Provider) show(ctx context.Context, op string, env map[string]string) (result.Result, error) {
	res, err := p.run(ctx, call{op: op, script: "show-vm", env: env})
	if node := p.movedTo(res); err == nil && node != "" {
		err = &job.MovedError{Node: node, Err: p.failure(op, job.HostLeftAlone, "it is on node '"+node+"'", "")}
	}
	return res, err
}

// Look is Status, and also asks the guest of a running VM.
func (p *Provider) Look(ctx context.Context, v vm.VM) (job.Seen, error) {
	op := fmt.Sprintf("check VM %d (%s) and its guest", v.ID, v.Name)
	env := proof(v)
	env["LOOK_INSIDE"], env["VM_ROUTED"] = "true", strconv.FormatBool(p.o.Routed)
	setNumber(env, "VM_SSH_PORT", p.o.GuestPort)
	res, err := p.show(ctx, op, env)
	if err != nil {
		return job.Seen{Status: vm.Unknown}, err
	}
	seen := job.Seen{Status: readStatus(res.Get("LINUS_VM_STATUS"))}
	if boot := res.Get("LINUS_VM_BOOT_ID"); uuidForm.MatchString(boot) {
		seen.BootID = boot
	}
	if said := res.Get("LINUS_VM_IP"); said != "" {
		ip, err := p.checkAddress(said)
		if err != nil {
			p.o.Log.WarnContext(ctx, "address reported by the guest refused", "vm_id", v.ID, "err", err)
			return seen, nil
		}
		seen.IP = ip.String()
	}
	return seen, nil
}

// proof returns the inputs by which a script verifies a VM's identity.
func proof(v vm.VM) map[string]string {
	return map[string]string{
		"VM_ID": strconv.Itoa(v.ID), "VM_NAME": v.OnHost(), "LINUS_JOB": v.Job, "LINUS_OWNER": v.Owner,
	}
}

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"linus/internal/job"
)

// Destroy ends what a create for the VM's job has left under way, and removes
// the VM once the host has proven that it is vm. Without an ID it does the
// former only.
func (p *Provider) Destroy(ctx context.Context, vm job.VM) error {
	op := fmt.Sprintf("destroy VM %d (%s)", vm.ID, vm.Name)
	if err := p.settle(ctx, op, p.createOperation(vm.Job)); err != nil || vm.ID == 0 {
		return err
	}
	return p.destroy(ctx, op, vm, "vm")
}

// destroy runs destroy-vm for a vm or a template.
func (p *Provider) destroy(ctx context.Context, op string, vm job.VM, kind string) error {
	env := proof(vm)
	env["VM_KIND"] = kind
	setText(env, "PROXMOX_NODE", cmp.Or(vm.Node, p.o.Node))
	_, err := p.run(ctx, call{op: op, script: "destroy-vm", env: env, patience: p.o.Patience / 10})
	return err
}

// List finds every VM of this installation. When a node could not be asked it
// answers what it found and an error of class HostOffline: a VM that is not in
// the list may then still exist.
func (p *Provider) List(ctx context.Context) ([]job.VM, error) {
	return p.list(ctx, "list VMs", "vm")
}

func (p *Provider) list(ctx context.Context, op, kind string) ([]job.VM, error) {
	env := map[string]string{"VM_KIND": kind}
	setText(env, "LINUS_OWNER", p.o.Owner)
	res, err := p.run(ctx, call{op: op, script: "list-vms", env: env, patience: p.o.Patience / 10})
	if err != nil {
		return nil, err
	}
	p.noteQuarantine(ctx, res.All("LINUS_QUARANTINED"))
	p.noteLeftAlone(ctx, res.All("LINUS_LEFT_ALONE"))
	var vms []job.VM
	for _, line := range res.All("LINUS_VM") {
		vm, err := readVM(line)
		if err != nil {
			return nil, &job.HostError{Op: op, Host: p.o.Host.Login(), Class: job.HostVM, Text: err.Error()}
		}
		vms = append(vms, vm)
	}
	if warnings := res.All("LINUS_WARNING"); len(warnings) > 0 {
		return vms, &job.HostError{
			Op: op, Host: p.o.Host.Login(), Class: job.HostOffline, Text: strings.Join(warnings, "; "),
			Remedy: "bring the node back, or remove it from the cluster",
		}
	}
	return vms, nil
}

// readVM reads `id=101 node=pve name=... status=... job=<uuid> owner=<uuid>`. An
// operator may have given the VM another name, or none.
func readVM(line string) (job.VM, error) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		if _, twice := values[key]; twice {
			return job.VM{}, fmt.Errorf("list-vms answered a VM with two of %s: %q", key, line)
		}
		values[key] = value
	}
	id, err := readID(values["id"])
	if err != nil {
		return job.VM{}, fmt.Errorf("list-vms answered a VM without ID: %q", line)
	}
	for key, form := range map[string]*regexp.Regexp{"node": nodeForm, "name": nameForm, "job": uuidForm, "owner": uuidForm} {
		if !form.MatchString(values[key]) {
			return job.VM{}, fmt.Errorf("list-vms answered VM %d with %s %q", id, key, values[key])
		}
	}
	return job.VM{
		ID: id, Name: values["name"], Node: values["node"],
		Job: values["job"], Owner: values["owner"], State: job.VMCreated, Status: readStatus(values["status"]),
	}, nil
}

// readStatus reads Proxmox's word for what a VM does, and show-vm's where there
// is none to do anything.
func readStatus(word string) job.VMStatus {
	switch word {
	case "running":
		return job.VMRunning
	case "stopped":
		return job.VMStopped
	case "gone", "foreign": // foreign: the ID is another VM's by now
		return job.VMGone
	case "left_alone", "moved":
		return job.VMUnproven
	}
	return job.VMUnknown
}

// Status asks the host how vm is, and does not wait for a host that does not
// answer. A VM that another node has, as after a migration, is unproven; one that
// is neither running nor stopped is unknown.
func (p *Provider) Status(ctx context.Context, vm job.VM) (job.VMStatus, error) {
	op := fmt.Sprintf("look at VM %d (%s)", vm.ID, vm.Name)
	res, err := p.run(ctx, call{op: op, script: "show-vm", env: proof(vm)})
	if err != nil {
		return job.VMUnknown, err
	}
	return readStatus(res.Get("LINUS_VM_STATUS")), nil
}

// Look is Status, and asks the guest of a VM that runs.
func (p *Provider) Look(ctx context.Context, vm job.VM) (job.Seen, error) {
	op := fmt.Sprintf("look at VM %d (%s) and into it", vm.ID, vm.Name)
	env := proof(vm)
	env["LOOK_INSIDE"], env["VM_ROUTED"] = "true", strconv.FormatBool(p.o.Routed)
	setNumber(env, "VM_SSH_PORT", p.o.GuestPort)
	res, err := p.run(ctx, call{op: op, script: "show-vm", env: env})
	if err != nil {
		return job.Seen{Status: job.VMUnknown}, err
	}
	seen := job.Seen{Status: readStatus(res.Get("LINUS_VM_STATUS"))}
	if boot := res.Get("LINUS_VM_BOOT_ID"); uuidForm.MatchString(boot) {
		seen.BootID = boot
	}
	if said := res.Get("LINUS_VM_IP"); said != "" {
		ip, err := p.checkAddress(said)
		if err != nil {
			p.o.Log.WarnContext(ctx, "what the guest says of its address cannot be", "vm_id", vm.ID, "err", err)
			return seen, nil
		}
		seen.IP = ip.String()
	}
	return seen, nil
}

// proof is what a script needs to tell a VM of ours from any other.
func proof(vm job.VM) map[string]string {
	return map[string]string{
		"VM_ID": strconv.Itoa(vm.ID), "VM_NAME": vm.Name, "LINUS_JOB": vm.Job, "LINUS_OWNER": vm.Owner,
	}
}

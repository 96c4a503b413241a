package mcptool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// vmArg is the argument of the tools for one VM.
type vmArg struct {
	VMID string `json:"vm_id" jsonschema_description:"The VM's name or ID, as text."`
}

const whichVM = "give the name or ID of a VM; list_vms shows them"

func (a vmArg) check() error {
	var bad faults
	bad.required("vm_id", a.VMID, whichVM)
	return bad.err()
}

type vmOutput struct {
	VMID      string     `json:"vm_id,omitempty" jsonschema_description:"Proxmox VM ID; the VM's name is accepted as well wherever a vm_id is expected. Absent until there is one."`
	Name      string     `json:"name"`
	Status    vm.Status  `json:"status" jsonschema:"enum=provisioning,enum=running,enum=stopped,enum=suspended,enum=destroying,enum=left_alone,enum=gone,enum=unknown" jsonschema_description:"suspended: off, its memory on disk. left_alone: it exists, is not proven ours, and is not touched. gone: the host has no such VM. unknown: the host did not respond."`
	Reason    string     `json:"reason,omitempty" jsonschema_description:"Why it is left alone, and what to do."`
	IP        string     `json:"ip,omitempty"`
	User      string     `json:"user,omitempty" jsonschema_description:"SSH user."`
	SSH       string     `json:"ssh,omitempty" jsonschema_description:"Shell command that logs in, from the machine linus runs on."`
	Node      string     `json:"node,omitempty"`
	Source    string     `json:"source,omitempty" jsonschema_description:"Template or operating system it was created from."`
	CPU       int        `json:"cpu,omitempty"`
	Memory    string     `json:"memory,omitempty"`
	Disk      string     `json:"disk,omitempty"`
	Egress    vm.Egress  `json:"egress,omitempty"`
	Lifecycle string     `json:"lifecycle,omitempty" jsonschema_description:"persistent: it stays and takes commands. ephemeral: it is destroyed with its job."`
	JobID     string     `json:"job_id" jsonschema_description:"The job that created it."`
	Jobs      []string   `json:"jobs,omitempty" jsonschema_description:"Unfinished jobs in it."`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" jsonschema_description:"When it is destroyed, once no job runs in it."`
}

func (o Options) vmOutput(v job.VMInfo) vmOutput {
	out := vmOutput{
		Name: v.Name, Status: v.Status, IP: v.IP, User: v.User, Node: v.Node, Source: v.Source,
		CPU: v.Resources.CPU, Memory: v.Resources.Memory, Disk: v.Resources.Disk, Lifecycle: string(v.Lifecycle),
		JobID: v.Job, Jobs: v.Jobs, CreatedAt: known(v.CreatedAt), ExpiresAt: known(v.ExpiresAt),
	}
	if v.Reason != "" {
		out.Reason = v.Reason + "; " + v.Remedy
	}
	if v.Network.Limited() {
		out.Egress = v.Network.Egress
	}
	if v.ID != 0 {
		out.VMID = strconv.Itoa(v.ID)
	}
	if v.Status == vm.Running && v.IP != "" {
		out.SSH = o.sshCommand(v.VM)
	}
	return out
}

func (o Options) sshCommand(v vm.VM) string {
	if o.SSHCommand != nil {
		return o.SSHCommand(v)
	}
	return fmt.Sprintf("ssh %s@%s", v.User, v.IP)
}

// changedVM is a VM after an operation on it.
type changedVM struct {
	VMID   string    `json:"vm_id,omitempty"`
	Name   string    `json:"name"`
	Status vm.Status `json:"status" jsonschema:"enum=provisioning,enum=running,enum=stopped,enum=suspended,enum=destroying,enum=left_alone,enum=gone,enum=unknown"`
	SSH    string    `json:"ssh,omitempty" jsonschema_description:"Shell command that logs in."`
	Note   string    `json:"note,omitempty" jsonschema_description:"What is happening and what to do next."`
}

func (o Options) changedVM(v job.VMInfo, note string) changedVM {
	out := o.vmOutput(v)
	return changedVM{VMID: out.VMID, Name: out.Name, Status: out.Status, SSH: out.SSH, Note: note}
}

// act performs an operation on a VM that may outlast the call: then it
// continues, and the result says so and gives the VM's current status.
func (o Options) act(ctx context.Context, b *background, ref, doing string, f func(context.Context, string) (job.VMInfo, error)) (changedVM, error) {
	result := make(chan job.VMInfo, 1)
	ended, err := b.within(ctx, callTime, func(ctx context.Context) error {
		v, err := f(ctx, ref)
		result <- v
		return err
	})
	switch {
	case err != nil:
		return changedVM{}, vmError(err)
	case ended:
		return o.changedVM(<-result, ""), nil
	}
	now, err := o.Engine.VM(ctx, ref)
	if err != nil {
		return changedVM{}, vmError(err)
	}
	return o.changedVM(now, doing+" takes longer than a call may, and goes on. Call get_vm for its status."), nil
}

// acting returns the work of a tool that does nothing but act.
func (o Options) acting(b *background, doing string, f func(job.Engine, context.Context, string) (job.VMInfo, error)) func(context.Context, vmArg) (changedVM, error) {
	return func(ctx context.Context, in vmArg) (changedVM, error) {
		if err := in.check(); err != nil {
			return changedVM{}, err
		}
		return o.act(ctx, b, in.VMID, doing, func(ctx context.Context, ref string) (job.VMInfo, error) { return f(o.Engine, ctx, ref) })
	}
}

// vmError returns an error of a VM with the names of the tools' arguments.
func vmError(err error) error {
	if errors.Is(err, job.ErrNotFound) {
		var bad faults
		bad.add("vm_id", "is not a VM of ours", whichVM)
		return bad.err()
	}
	return renamed(err)
}

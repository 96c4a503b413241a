package mcptool

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/mcptask"
	"linus/internal/vm"
)

type vmArg struct {
	VMID string `json:"vm_id"` // list_vms describes it once for all tools
}

const whichVM = "give the name or ID of a VM; list_vms shows them"

func (a vmArg) check(bad *faults) { bad.required("vm_id", a.VMID, whichVM) }

func (vmArg) named(err error) error { return vmError(err) }

type vmOutput struct {
	VMID      string     `json:"vm_id,omitempty" jsonschema_description:"Proxmox VM ID; the name is accepted wherever a vm_id is. Absent until there is one."`
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
	if !v.SuspendedAt.IsZero() {
		out.Reason = "suspended since " + v.SuspendedAt.UTC().Format(time.RFC3339) + " because it was idle; its next use resumes it"
	}
	if v.Network.Limited() {
		out.Egress = v.Network.Egress
	}
	if v.ID != 0 {
		out.VMID = strconv.Itoa(v.ID)
	}
	if v.Status == vm.Running && v.IP != "" {
		out.SSH = o.SSHCommand(v.VM)
	}
	return out
}

// changedVM is a VM after an operation on it. Only get_vm and list_vms list its possible statuses,
// because many tools return a changedVM.
type changedVM struct {
	VMID   string    `json:"vm_id,omitempty"`
	Name   string    `json:"name"`
	Status vm.Status `json:"status"`
	SSH    string    `json:"ssh,omitempty" jsonschema_description:"Shell command that logs in."`
	Note   string    `json:"note,omitempty" jsonschema_description:"What is happening and what to do next."`
}

func (o Options) changedVM(v job.VMInfo, note string) changedVM {
	out := o.vmOutput(v)
	return changedVM{VMID: out.VMID, Name: out.Name, Status: out.Status, SSH: out.SSH, Note: note}
}

// act performs an operation on a VM. If the operation outlasts the call, it continues, and the
// result says so and gives the VM's current status.
func (o Options) act(ctx context.Context, ref, doing string, f func(context.Context, string) (job.VMInfo, error)) (changedVM, error) {
	v, ended, err := finish(ctx, o.background, func(ctx context.Context) (job.VMInfo, error) { return f(ctx, ref) })
	switch {
	case err != nil:
		return changedVM{}, err
	case ended:
		return o.changedVM(v, ""), nil
	}
	now, err := o.Engine.VM(ctx, ref)
	return o.changedVM(now, doing+" takes longer than a call may, and continues. Call get_vm for its status."), err
}

// acting returns a tool that does nothing but act.
func (o Options) acting(name, title, description string, h hints, doing string, f func(job.Engine, context.Context, string) (job.VMInfo, error)) server.ServerTool {
	return define(name, title, description, h, func(ctx context.Context, in vmArg) (changedVM, error) {
		return o.act(ctx, in.VMID, doing, func(ctx context.Context, ref string) (job.VMInfo, error) { return f(o.Engine, ctx, ref) })
	})
}

// vmError returns an error of a VM with the names of the tools' arguments.
func vmError(err error) error {
	if errors.Is(err, job.ErrNotFound) {
		var bad faults
		bad.add("vm_id", "is not a VM of ours", whichVM)
		return bad.err()
	}
	return renamed(err, reflect.TypeFor[vmArg]())
}

type provisionInput struct {
	Name     string     `json:"name" is:"vmName" jsonschema_description:"Works as vm_id."`
	OS       string     `json:"os,omitempty" is:"os" bare:"true" jsonschema_description:"Such as debian-13: its cloud image, not a template."`
	Template string     `json:"template,omitempty" is:"vmTemplate" jsonschema_description:"Name or ID; default agent-template."`
	CPU      int        `json:"cpu,omitempty" is:"resources.cpu" jsonschema_description:"Default 2."`
	Memory   string     `json:"memory,omitempty" is:"resources.memory" jsonschema_description:"512M to 512G; default 2G."`
	Disk     string     `json:"disk,omitempty" is:"resources.disk" jsonschema_description:"5G to 10000G; default 10G."`
	Network  vm.Network `json:"network,omitzero" bare:"true" jsonschema_description:"egress lan, internet, allow or none; ip dhcp or 10.0.0.50/24."`
	TTL      int        `json:"ttl,omitempty" is:"ttl" jsonschema_description:"Seconds until it is destroyed; default never."`
	Idle     int        `json:"idle_suspend,omitempty" is:"idleSuspend" jsonschema_description:"Seconds without use until it is suspended; use resumes it."`
	DryRun   bool       `json:"dry_run,omitempty" jsonschema_description:"Only return the host's commands."`
	Wait     *int       `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Default 40."`
}

func (in provisionInput) check(bad *faults) {
	bad.required("name", in.Name, "give a host name such as dev1")
}

type provisionOutput struct {
	VMID   string    `json:"vm_id,omitempty" jsonschema_description:"Proxmox VM ID, for the other tools. Absent until there is one."`
	Name   string    `json:"name"`
	Status vm.Status `json:"status,omitempty" jsonschema:"enum=provisioning,enum=running" jsonschema_description:"running: it answers SSH. Absent for dry_run."`
	IP     string    `json:"ip,omitempty"`
	User   string    `json:"user,omitempty" jsonschema_description:"SSH user."`
	SSH    string    `json:"ssh,omitempty" jsonschema_description:"Shell command that logs in, from the machine linus runs on."`
	JobID  string    `json:"job_id,omitempty" jsonschema_description:"The job that creates it."`
	Plan   []string  `json:"plan,omitempty" jsonschema_description:"dry_run: what would run on the host."`
	Note   string    `json:"note,omitempty" jsonschema_description:"What to do next."`
}

func (o Options) provisionVM() server.ServerTool {
	return defineCall("provision_vm", "Create a VM",
		"Create a VM that stays until destroy_vm or its ttl; returns its address and an ssh command. execute_command runs commands in it. "+
			"If it takes longer than wait_seconds, that continues: get_vm. For one task submit_job is simpler.",
		hints{openWorld: true},
		func(ctx context.Context, in provisionInput, c call) (provisionOutput, error) {
			s := job.Submission{Client: clientName(ctx), Manifest: job.Manifest{
				VMName: in.Name, OS: in.OS, VMTemplate: in.Template, Lifecycle: vm.Persistent, TTL: in.TTL, IdleSuspend: in.Idle, Network: in.Network,
				Resources: vm.Resources{CPU: in.CPU, Memory: in.Memory, Disk: in.Disk},
			}}
			if in.DryRun {
				plan, err := o.Engine.Plan(ctx, s)
				return provisionOutput{Name: in.Name, Plan: plan}, err
			}
			asked, err := o.Engine.CreateVM(ctx, s)
			if err != nil {
				return provisionOutput{}, err
			}
			wait := time.Duration(given(in.Wait, defaultReady)) * time.Second
			if mcptask.Declared(ctx) {
				wait = 0
			}
			j, err := follow(ctx, o.Engine, c, asked.Job, wait)
			if err == nil {
				err = o.asTask(ctx, j, in.Wait)
			}
			if err != nil {
				return provisionOutput{}, err
			}
			return o.provisioned(j)
		})
}

// provisioned returns the status of the job that creates a VM.
func (o Options) provisioned(j job.Job) (provisionOutput, error) {
	out := provisionOutput{Name: j.Manifest.VMName, JobID: j.ID, Status: vm.Provisioning}
	if j.VM != nil {
		v := o.vmOutput(job.VMInfo{VM: *j.VM})
		out.VMID, out.Name, out.IP, out.User = v.VMID, v.Name, v.IP, v.User
	}
	switch j.Status {
	case job.Success:
		out.Status = vm.Running
		out.SSH = o.SSHCommand(*j.VM)
	case job.Failed, job.Timeout:
		return out, fmt.Errorf("the VM could not be created (job %s, %s): %s", j.ID, j.Outcome.Reason, j.Outcome.Error)
	default:
		out.Note = fmt.Sprintf("It is still being created: %s. That continues; call get_vm with vm_id %q, or get_job_status of the job with wait_seconds.", statusLine(j), out.Name)
	}
	return out, nil
}

func statusLine(j job.Job) string {
	if j.Progress != "" {
		return string(j.Status) + ", " + j.Progress
	}
	return string(j.Status)
}

type listVMsOutput struct {
	VMs []vmOutput `json:"vms" jsonschema_description:"Oldest first."`
}

// inText leaves out the ssh commands, which are long: get_vm has them.
func (l listVMsOutput) inText() any {
	l.VMs = slices.Clone(l.VMs)
	for i := range l.VMs {
		l.VMs[i].SSH = ""
	}
	return l
}

func (o Options) listVMs() server.ServerTool {
	return define("list_vms", "List VMs",
		"The VMs linus has created, with status, address and the jobs in them. A vm_id is a VM's name or ID.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in labelled) (listVMsOutput, error) {
			vms, err := o.Engine.VMs(ctx)
			if err == nil {
				vms, err = job.Select(vms, in.query())
			}
			return listVMsOutput{VMs: each(vms, o.vmOutput)}, err
		})
}

func (o Options) getVM() server.ServerTool {
	return define("get_vm", "VM",
		"A VM's status, address, user, ssh command, jobs and expiry.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (vmOutput, error) {
			v, err := o.Engine.VM(ctx, in.VMID)
			return o.vmOutput(v), err
		})
}

func (o Options) startVM() server.ServerTool {
	return o.acting("start_vm", "Start a VM",
		"Start a stopped persistent VM; returns when it accepts logins, or after 45 seconds while that continues.",
		hints{idempotent: true, openWorld: true}, "The start", job.Engine.StartVM)
}

func (o Options) stopVM() server.ServerTool {
	return o.acting("stop_vm", "Stop a VM",
		"Shut down a persistent VM; its disk stays.",
		hints{destructive: true, idempotent: true, openWorld: true}, "The shutdown", job.Engine.StopVM)
}

func (o Options) suspendVM() server.ServerTool {
	return o.acting("suspend_vm", "Suspend a VM",
		"Write a persistent VM's memory to disk and turn it off; resume_vm continues it where it was.",
		hints{idempotent: true, openWorld: true}, "The suspend", job.Engine.SuspendVM)
}

func (o Options) resumeVM() server.ServerTool {
	return o.acting("resume_vm", "Resume a VM",
		"Continue a suspended VM where it was.",
		hints{idempotent: true, openWorld: true}, "The resume", job.Engine.ResumeVM)
}

type snapshotInput struct {
	vmArg

	Snapshot string `json:"snapshot"`
	Memory   bool   `json:"memory,omitempty" jsonschema_description:"With what runs in it. Refused while jobs do."`
}

func (in snapshotInput) check(bad *faults) { bad.snapshot(in.vmArg, in.Snapshot) }

func (o Options) snapshotVM() server.ServerTool {
	return define("snapshot_vm", "Snapshot a VM",
		"Take a snapshot of a persistent VM's disk, for revert_vm.",
		hints{openWorld: true},
		func(ctx context.Context, in snapshotInput) (changedVM, error) {
			return o.act(ctx, in.VMID, "The snapshot", func(ctx context.Context, ref string) (job.VMInfo, error) {
				return o.Engine.SnapshotVM(ctx, ref, in.Snapshot, in.Memory)
			})
		})
}

type revertInput struct {
	vmArg

	Snapshot string `json:"snapshot"`
	Confirm  bool   `json:"confirm,omitempty" jsonschema_description:"Else the user is asked."`
}

func (in revertInput) check(bad *faults) { bad.snapshot(in.vmArg, in.Snapshot) }

// snapshot checks the arguments of the tools about a VM's snapshot.
func (f *faults) snapshot(of vmArg, name string) {
	of.check(f)
	f.required("snapshot", name, "give a name such as clean")
}

func (o Options) revertVM() server.ServerTool {
	return defineCall("revert_vm", "Revert a VM",
		"Revert a persistent VM to a snapshot and start it, or continue what ran in it if the snapshot has its memory; all changes since are lost.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in revertInput, c call) (changedVM, error) {
			question := fmt.Sprintf("Revert VM %s to snapshot %s? All changes since are lost.", in.VMID, in.Snapshot)
			if err := c.confirmed(ctx, in.Confirm, question); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, in.VMID, "The revert", func(ctx context.Context, ref string) (job.VMInfo, error) {
				return o.Engine.RevertVM(ctx, ref, in.Snapshot)
			})
		})
}

type listSnapshotsOutput struct {
	Snapshots []job.Snapshot `json:"snapshots" jsonschema_description:"Oldest first."`
}

func (o Options) listSnapshots() server.ServerTool {
	return define("list_snapshots", "List snapshots",
		"A persistent VM's snapshots.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (listSnapshotsOutput, error) {
			all, err := o.Engine.ListSnapshots(ctx, in.VMID)
			return listSnapshotsOutput{Snapshots: all}, err
		})
}

type deletedSnapshot struct {
	Deleted bool   `json:"deleted"`
	Note    string `json:"note,omitempty"`
}

func (o Options) deleteSnapshot() server.ServerTool {
	return defineCall("delete_snapshot", "Remove a snapshot",
		"Remove a snapshot; the VM stays as it is.",
		hints{destructive: true, openWorld: true},
		func(ctx context.Context, in revertInput, c call) (deletedSnapshot, error) {
			if err := c.confirmed(ctx, in.Confirm, fmt.Sprintf("Remove snapshot %s of VM %s?", in.Snapshot, in.VMID)); err != nil {
				return deletedSnapshot{}, err
			}
			out, err := o.act(ctx, in.VMID, "The removal", func(ctx context.Context, ref string) (job.VMInfo, error) {
				return o.Engine.DeleteSnapshot(ctx, ref, in.Snapshot)
			})
			return deletedSnapshot{Deleted: err == nil && out.Note == "", Note: strings.Replace(out.Note, "get_vm for its status", "list_snapshots", 1)}, err
		})
}

type exposeInput struct {
	vmArg

	Port int    `json:"port"`
	Name string `json:"name,omitempty"`
}

type exposeOutput struct {
	URL  string `json:"url"`
	Note string `json:"note,omitempty" jsonschema_description:"Why nothing answers there yet."`
}

func (o Options) exposePort() server.ServerTool {
	return define("expose_port", "Expose a port",
		"Give a port of a VM's localhost a URL for people who may reach the VM; they log in. It ends with the VM.",
		hints{idempotent: true, openWorld: true},
		func(ctx context.Context, in exposeInput) (exposeOutput, error) {
			p, err := o.Engine.ExposePort(ctx, job.PortSpec{VM: in.VMID, Port: in.Port, Name: in.Name})
			return exposeOutput{p.URL, p.Note}, err
		})
}

type destroyInput struct {
	vmArg

	Confirm bool `json:"confirm,omitempty" jsonschema_description:"Else the user is asked."`
}

func (o Options) destroyVM() server.ServerTool {
	return defineCall("destroy_vm", "Destroy a VM",
		"Destroy a persistent VM and its disk, irreversibly. Refused while jobs run in it: kill or cancel them first. "+
			"A single job's VM goes with it (cancel_job).",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in destroyInput, c call) (changedVM, error) {
			v, err := o.Engine.VM(ctx, in.VMID)
			if err == nil {
				err = c.confirmed(ctx, in.Confirm, fmt.Sprintf("Destroy VM %d (%s) and its disk?", v.ID, v.Name))
			}
			if err == nil {
				v, err = o.Engine.DestroyVM(ctx, in.VMID)
			}
			return o.changedVM(v, ""), err
		})
}

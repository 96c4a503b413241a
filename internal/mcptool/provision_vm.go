package mcptool

import (
	"context"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/vm"
)

type provisionInput struct {
	Name     string     `json:"name" jsonschema_description:"Name of the VM: letters, digits and dashes, at most 63. Accepted wherever a vm_id is expected."`
	OS       string     `json:"os,omitempty" jsonschema:"enum=@systems" jsonschema_description:"Create it from this operating system's cloud image. Default: the template."`
	Template string     `json:"template,omitempty" jsonschema_description:"Name or ID of the template to clone. Default agent-template."`
	CPU      int        `json:"cpu,omitempty" jsonschema:"minimum=1,maximum=32" jsonschema_description:"Cores, 1 to 32. Default 2."`
	Memory   string     `json:"memory,omitempty" jsonschema_description:"Memory, e.g. 8G; 512M to 512G. Default 2G."`
	Disk     string     `json:"disk,omitempty" jsonschema_description:"Disk, e.g. 50G; 5G to 10000G. Default 10G."`
	Network  vm.Network `json:"network,omitzero" jsonschema_description:"Where it differs from the server's settings."`
	TTL      int        `json:"ttl,omitempty" jsonschema:"minimum=60,maximum=31536000" jsonschema_description:"Seconds after which it is destroyed, once no job runs in it. Default: never."`
	DryRun   bool       `json:"dry_run,omitempty" jsonschema_description:"Only return the commands that would run on the host."`
	Wait     *int       `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Seconds to wait until it is ready, 0 to 45. Default 40."`
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

func provisionVM(o Options) server.ServerTool {
	return defineCall("provision_vm", "Create a VM",
		"Create a VM that stays until destroy_vm or its ttl, and return its address and an ssh command; execute_command runs commands in it. "+
			"If it is not ready within wait_seconds, creating it goes on: call get_vm. For a single task with a result submit_job is simpler.",
		hints{openWorld: true},
		func(ctx context.Context, in provisionInput, c call) (provisionOutput, error) {
			var bad faults
			bad.required("name", in.Name, "give a host name such as dev1")
			wait := bad.number("wait_seconds", in.Wait, defaultReady, 0, mostWait)
			if err := bad.err(); err != nil {
				return provisionOutput{}, err
			}
			s := job.Submission{Kind: job.KindVM, Client: clientName(ctx), Manifest: job.Manifest{
				VMName: in.Name, OS: in.OS, VMTemplate: in.Template, Lifecycle: vm.Persistent, TTL: in.TTL, Network: in.Network,
				Resources: vm.Resources{CPU: in.CPU, Memory: in.Memory, Disk: in.Disk},
			}}
			named := func(err error) error {
				return renamed(err, "vmName", "name", "vmTemplate", "template", "resources.cpu", "cpu", "resources.memory", "memory", "resources.disk", "disk")
			}
			if in.DryRun {
				plan, err := o.Engine.Plan(ctx, s)
				return provisionOutput{Name: in.Name, Plan: plan}, named(err)
			}
			j, err := o.Engine.Submit(ctx, s)
			if err != nil {
				return provisionOutput{}, named(err)
			}
			if j, err = follow(ctx, o.Engine, c, j.ID, time.Duration(wait)*time.Second); err != nil {
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
		out.SSH = o.sshCommand(*j.VM)
	case job.Failed, job.Timeout:
		return out, fmt.Errorf("the VM could not be created (job %s, %s): %s", j.ID, j.Outcome.Reason, j.Outcome.Error)
	default:
		out.Note = fmt.Sprintf("It is still being created: %s. That goes on; call get_vm with vm_id %q, or get_job_status of the job with wait_seconds.", statusLine(j), out.Name)
	}
	return out, nil
}

// statusLine is the status of a job, in a few words.
func statusLine(j job.Job) string {
	if j.Progress != "" {
		return string(j.Status) + ", " + j.Progress
	}
	return string(j.Status)
}

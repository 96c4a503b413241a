package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/vm"
)

type executeInput struct {
	Command    string            `json:"command" jsonschema_description:"Shell command or script; bash runs it."`
	VMID       string            `json:"vm_id,omitempty" jsonschema_description:"Name or ID of a persistent VM to run in. Default: a new VM for this command."`
	Cwd        string            `json:"cwd,omitempty" jsonschema_description:"Absolute directory. Default: the user's home."`
	Env        map[string]string `json:"env,omitempty" jsonschema_description:"Environment variables. Not for secrets."`
	Timeout    int               `json:"timeout,omitempty" jsonschema:"minimum=1,maximum=86400" jsonschema_description:"Time limit in seconds, 1 to 86400. Default 3600."`
	Sudo       bool              `json:"sudo,omitempty" jsonschema_description:"Run as root."`
	TTY        bool              `json:"tty,omitempty" jsonschema_description:"Run on a 24x80 terminal, for programs that need one; stderr is then part of stdout."`
	Template   string            `json:"template,omitempty" jsonschema_description:"New VM: name or ID of the template. Default agent-template."`
	OS         string            `json:"os,omitempty" jsonschema:"enum=@systems" jsonschema_description:"New VM: from this system's cloud image instead of a template."`
	Resources  vm.Resources      `json:"resources,omitzero" jsonschema_description:"New VM: its size."`
	Network    executeNetwork    `json:"network,omitzero" jsonschema_description:"New VM: what it reaches, as in submit_job."`
	Persistent bool              `json:"persistent,omitempty" jsonschema_description:"New VM: it stays until destroy_vm."`
	Wait       *int              `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Seconds to wait for the command to finish, 0 to 45. Default 0: the job_id at once."`
}

// executeNetwork is the part of a job's network that a command's VM has a choice of.
type executeNetwork struct {
	Egress vm.Egress `json:"egress,omitempty" jsonschema:"enum=lan,enum=internet,enum=allow,enum=none"`
	Allow  []string  `json:"allow,omitempty"`
}

func executeCommand(e job.Engine) server.ServerTool {
	return defineCall("execute_command", "Execute a command",
		"Run a shell command in a persistent VM (vm_id, from provision_vm; up to 16 at once) or in a new one. "+
			"With wait_seconds its exit code and output are in the same call if it finishes in time; if not, or if the call is cancelled, it goes on: "+
			"get_job_output, get_job_result, kill_job. "+
			"Its stdin is open: interact_with_job types into it; a program that reads all of its input waits for close.",
		hints{openWorld: true},
		func(ctx context.Context, in executeInput, c call) (startedOutput, error) {
			wait, err := waitTime(in.Wait)
			if err != nil {
				return startedOutput{}, err
			}
			m := job.Manifest{
				Task: in.Command, AgentType: job.AgentScript, Stdin: job.StdinOpen, StatusMode: job.StatusStreaming,
				VM: in.VMID, Cwd: in.Cwd, Env: in.Env, Timeout: in.Timeout, Sudo: in.Sudo, TTY: in.TTY,
				VMTemplate: in.Template, OS: in.OS, Resources: in.Resources, Network: vm.Network{Egress: in.Network.Egress, Allow: in.Network.Allow},
			}
			if in.Persistent {
				m.Lifecycle = vm.Persistent
			}
			j, err := e.Submit(ctx, job.Submission{Manifest: m, Client: clientName(ctx)})
			if err != nil {
				return startedOutput{}, renamed(err, "task", "command", "vmTemplate", "template", "vm", "vm_id", "lifecycle", "persistent")
			}
			return started(ctx, e, c, j, wait), nil
		})
}

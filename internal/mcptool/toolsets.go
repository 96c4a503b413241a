package mcptool

import (
	"slices"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// tool is a row of the table of tools.
type tool struct {
	name    string
	toolset string      // the toolset that a principal must have
	verb    job.AnyVerb // the engine's verb that the principal's role must include
	define  func(Options) server.ServerTool
}

// allTools returns the table of tools.
var allTools = sync.OnceValue(func() []tool {
	return []tool{
		{"submit_job", "jobs", job.VerbSubmit, Options.submitJob},
		{"get_job_status", "jobs", job.VerbJob, Options.getJobStatus},
		{"get_job_result", "jobs", job.VerbResult, Options.getJobResult},
		{"cancel_job", "jobs", job.VerbCancel, Options.cancelJob},
		{"list_jobs", "jobs", job.VerbList, Options.listJobs},
		{"schedule", "jobs", job.VerbCreateSchedule, Options.schedule},

		{"execute_command", "exec", job.VerbSubmit, Options.executeCommand},
		{"get_job_output", "exec", job.VerbOutput, Options.getJobOutput},
		{"tail_job_output", "exec", job.VerbOutput, Options.tailJobOutput},
		{"interact_with_job", "exec", job.VerbInput, Options.interactWithJob},
		{"kill_job", "exec", job.VerbKill, Options.killJob},

		{"provision_vm", "vm", job.VerbCreateVM, Options.provisionVM},
		{"list_vms", "vm", job.VerbVMs, Options.listVMs},
		{"get_vm", "vm", job.VerbVM, Options.getVM},
		{"start_vm", "vm", job.VerbStartVM, Options.startVM},
		{"stop_vm", "vm", job.VerbStopVM, Options.stopVM},
		{"suspend_vm", "vm", job.VerbSuspendVM, Options.suspendVM},
		{"resume_vm", "vm", job.VerbResumeVM, Options.resumeVM},
		{"fork_vm", "vm", job.VerbForkVM, Options.forkVM},
		{"snapshot_vm", "vm", job.VerbSnapshotVM, Options.snapshotVM},
		{"revert_vm", "vm", job.VerbRevertVM, Options.revertVM},
		{"list_snapshots", "vm", job.VerbListSnapshots, Options.listSnapshots},
		{"delete_snapshot", "vm", job.VerbDeleteSnapshot, Options.deleteSnapshot},
		{"expose_port", "vm", job.VerbExposePort, Options.exposePort},
		{"save_vm", "vm", job.VerbSaveVM, Options.saveVM},
		{"destroy_vm", "vm", job.VerbDestroyVM, Options.destroyVM},
		{"list_volumes", "vm", job.VerbVolumes, Options.listVolumes},
		{"create_volume", "vm", job.VerbCreateVolume, Options.createVolume},
		{"attach_volume", "vm", job.VerbAttachVolume, Options.attachVolume},
		{"detach_volume", "vm", job.VerbDetachVolume, Options.detachVolume},
		{"delete_volume", "vm", job.VerbRemoveVolume, Options.deleteVolume},

		{"list_files", "files", job.VerbListFiles, Options.listFiles},
		{"read_file", "files", job.VerbReadFile, Options.readFile},
		{"write_file", "files", job.VerbWriteFile, Options.writeFile},
		{"edit_file", "files", job.VerbEditFile, Options.editFile},

		{"check_host", "admin", job.VerbCheckHost, Options.checkHost},
		{"list_templates", "admin", job.VerbNodes, Options.listTemplates},
		{"cleanup_completed_jobs", "admin", job.VerbCleanup, Options.cleanupCompletedJobs},
	}
})

// tools returns the tools that the options allow.
func tools(o Options) []server.ServerTool {
	var all []server.ServerTool
	for _, row := range allTools() {
		if len(o.Toolsets) > 0 && !slices.Contains(o.Toolsets, row.toolset) {
			continue
		}
		t := row.define(o)
		does := t.Tool.Annotations
		if (*does.ReadOnlyHint || !o.ReadOnly) && (!*does.DestructiveHint || !o.DisableDestructive) {
			all = append(all, t)
		}
	}
	return all
}

// having records which tools a server has.
type having map[string]bool

func havingTools(tools []server.ServerTool) having {
	h := having{}
	for _, t := range tools {
		h[t.Tool.Name] = true
	}
	return h
}

// all reports whether the server has all of the tools.
func (h having) all(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !h[n] })
}

// any reports whether the server has one of the tools.
func (h having) any(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return h[n] })
}

// instructions tell a model how to use the available tools together.
func instructions(has having) string {
	var text strings.Builder
	say := func(there bool, line string) {
		if there {
			text.WriteString(line + "\n")
		}
	}
	say(true, "Runs jobs (scripts, commands, agents) in Proxmox virtual machines. Creating a VM takes from seconds to a few minutes.")
	say(has.all("submit_job", "get_job_result"),
		"- A task with a result: submit_job runs it in a VM of its own, destroyed afterwards. With wait_seconds 45 the result of a short one is in the same call; else call get_job_result with wait_seconds until it is complete.")
	say(has.all("provision_vm", "execute_command"),
		"- Several commands, or an interactive one: provision_vm once, execute_command with its vm_id as often as needed (with wait_seconds one call runs a command and returns its output)"+ifAll(has, ", destroy_vm at the end", "destroy_vm")+
			". get_job_output or tail_job_output read a running command, interact_with_job types into it.")
	say(has.all("execute_command") && !has["provision_vm"],
		"- execute_command starts a command in a VM; with wait_seconds the same call returns its output. get_job_output or tail_job_output read it while it runs, interact_with_job types into it.")
	say(has.all("read_file", "write_file", "edit_file"), "- Files in a running VM: list_files, read_file, write_file and edit_file, with its vm_id or a running job's job_id.")
	say(has.any("submit_job", "execute_command"), "- A command on files of this machine: run `linus run -- CMD` in a shell here; it sends the directory, and brings back what you ask for.")
	say(true, "Everything is a job with a job_id."+ifAll(has, " check_host says whether the Proxmox host is ready, and what to do when it is not.", "check_host"))
	say(!has.any("submit_job", "execute_command", "provision_vm"), "This server is read-only: it starts nothing.")
	return strings.TrimSuffix(text.String(), "\n")
}

// ifAll returns text if the server has all of the tools.
func ifAll(has having, text string, names ...string) string {
	if has.all(names...) {
		return text
	}
	return ""
}

package mcptool

import (
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// toolset returns all tools of a group.
func toolset(name string, o Options, b *background) []server.ServerTool {
	e := o.Engine
	switch name {
	case "jobs":
		return []server.ServerTool{submitJob(e), getJobStatus(e), getJobResult(e), cancelJob(e), listJobs(e)}
	case "exec":
		return []server.ServerTool{executeCommand(e), getJobOutput(e), tailJobOutput(e), interactWithJob(e), killJob(e)}
	case "vm":
		return []server.ServerTool{
			provisionVM(o), listVMs(o), getVM(o), startVM(o, b), stopVM(o, b), suspendVM(o, b), resumeVM(o, b), snapshotVM(o, b), revertVM(o, b), destroyVM(o),
		}
	case "files":
		return []server.ServerTool{listFiles(e), readFile(e), writeFile(e), editFile(e)}
	case "admin":
		return []server.ServerTool{checkHost(e), cleanupCompletedJobs(e)}
	}
	return nil
}

// tools lists the tools that the options allow.
func tools(o Options, b *background) []server.ServerTool {
	var all []server.ServerTool
	for _, name := range job.Toolsets {
		if len(o.Toolsets) > 0 && !slices.Contains(o.Toolsets, name) {
			continue
		}
		for _, t := range toolset(name, o, b) {
			does := t.Tool.Annotations
			if (*does.ReadOnlyHint || !o.ReadOnly) && (!*does.DestructiveHint || !o.DisableDestructive) {
				all = append(all, t)
			}
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

// all reports whether all of the tools are there.
func (h having) all(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !h[n] })
}

// any reports whether one of the tools is there.
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
	say(true, "Runs jobs (scripts, commands, Claude agents) in Proxmox virtual machines. Creating a VM takes from seconds to a few minutes.")
	say(has.all("submit_job", "get_job_result"),
		"- A task with a result: submit_job runs it in a VM of its own, destroyed afterwards. With wait_seconds 45 the result of a short one is in the same call; else call get_job_result with wait_seconds until it is complete.")
	say(has.all("provision_vm", "execute_command"),
		"- Several commands, or an interactive one: provision_vm once, execute_command with its vm_id as often as needed (with wait_seconds one call runs a command and returns its output)"+ifAll(has, ", destroy_vm at the end", "destroy_vm")+
			". get_job_output or tail_job_output read a running command, interact_with_job types into it.")
	say(has.all("execute_command") && !has["provision_vm"],
		"- execute_command starts a command in a VM; with wait_seconds the same call returns its output. get_job_output or tail_job_output read it while it runs, interact_with_job types into it.")
	say(has.all("read_file", "write_file", "edit_file"), "- Files in a running VM: list_files, read_file, write_file and edit_file, with its vm_id or a running job's job_id.")
	say(true, "Everything is a job with a job_id."+ifAll(has, " check_host says whether the Proxmox host is ready, and what to do when it is not.", "check_host"))
	say(!has.any("submit_job", "execute_command", "provision_vm"), "This server is read-only: it starts nothing.")
	return strings.TrimSuffix(text.String(), "\n")
}

// ifAll returns text if the tools it is about are there.
func ifAll(has having, text string, names ...string) string {
	if has.all(names...) {
		return text
	}
	return ""
}

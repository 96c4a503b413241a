package field

import (
	"fmt"
	"strings"

	"linus/internal/job"
)

// Where fields apply; NewVM: to a VM that does not exist yet.
const (
	NewVM     = "vm=^$"
	staying   = NewVM + " lifecycle=^persistent$"
	ending    = NewVM + " lifecycle=^(ephemeral)?$"
	ownScript = "agentType=^script$ agent.command=^$"
)

// agents are the types of jobs that are agents.
func agents() (names []string) {
	for _, t := range job.AgentTypes() {
		if _, ok := t.Agent(); ok {
			names = append(names, string(t))
		}
	}
	return names
}

// Manifest returns the fields of a manifest.
func Manifest() []Field {
	return []Field{
		{Name: "agentType", Flag: "agent-type", In: Submit | Run, Values: append([]string{"script", "custom"}, agents()...), Help: "script (default), custom, or an agent (" + strings.Join(agents(), ", ") + "): what follows -- is then the command's input, or the prompt",
			Label: "Type", Hint: "script: a bash script; custom: input for the command below; the others: a prompt for that agent"},
		{Name: "task", NoFlag: "it is what follows --", Lines: true,
			Label: "Script, prompt or input"},
		{Name: "agent.command", Flag: "agent-command", In: Submit, Help: "shell command that reads what follows -- from its stdin: for custom, or another interpreter for a script; for an agent, what starts it, as \"$@\"",
			Label: "Command", Hint: "that reads the task from its stdin: for custom, or another interpreter for a script; for an agent, what starts it, as \"$@\""},
		{Name: "agent.model", Flag: "model", In: Submit | Run, Help: "model for an agent, as in sonnet for claude (default: the agent's own)",
			Label: "Model", Hint: "as in sonnet for claude; empty: the agent's default", When: "agentType=^(" + strings.Join(agents(), "|") + ")$"},
		{Name: "agent.claudeModel", Flag: "claude-model", In: Submit, Help: "the same, for claude",
			Label: "Claude model", Hint: "as in sonnet; empty: the CLI's default", When: "agentType=^claude$"},
		{Name: "timeout", Flag: "timeout", In: tasks | Dispatch, Seconds: true, Help: "the task's time limit: seconds, or as in 90m or 1h30m",
			Label: "Time limit", Hint: "as in 90m, at most 1d; empty: the server's default"},
		{Name: "artifacts", Flag: "artifact", In: Submit | Exec, Each: true, Lines: true, Help: "path or pattern such as 'dist/**' of files to collect at the end; may be repeated",
			Label: "Artifacts", Hint: "files to collect at the end: a path or a pattern such as dist/** on each line"},
		{Name: "files", Flag: "file", In: tasks, Help: "LOCAL:REMOTE[:MODE], a file to copy into the VM; may be repeated",
			Label: "Files"},
		{Name: "repository.url", Flag: "repo", In: Submit | Exec, Help: "URL of a git repository that the engine fetches, and the task finds in the VM, as in https://github.com/acme/app",
			Label: "Repository", Hint: "https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH"},
		{Name: "repository.ref", Flag: "ref", In: Submit | Exec, Help: "its branch, tag or commit (default: its default branch)",
			Label: "Branch, tag or commit", Hint: "empty: the default branch", When: "repository.url=."},
		{Name: "repository.path", Flag: "repo-path", In: Submit | Exec, Help: "absolute directory for it in the VM (default: its name, in the home directory); the task runs there unless --cwd is given",
			Label: "Its directory", Hint: "absolute; empty: its name, in the home directory", When: "repository.url=."},
		{Name: "repository.credential", Flag: "repo-credential", In: tasks, Help: "name of the credential that reads it, and pushes; the VM does not have it",
			Label: "Its credential", Hint: "as in linus credential list; empty: it is public", When: "repository.url=."},
		{Name: "repository.submodules", Flag: "submodules", In: tasks, Help: "also fetch its submodules",
			Label: "With its submodules", When: "repository.url=."},
		{Name: "repository.lfs", Flag: "lfs", In: tasks, Help: "also fetch its large files (Git LFS)",
			Label: "With its large files (LFS)", When: "repository.url=."},
		{Name: "push.branch", Flag: "push", In: tasks, Help: "new branch to push its commits to if the task succeeds, or one that a job of yours pushed before",
			Label: "Push to", Hint: "a new branch, if the task succeeds", When: "repository.url=."},
		{Name: "vm", Flag: "vm", In: tasks, Help: "name or VM ID of an existing VM to run in, instead of a new one",
			Label: "Existing VM", Hint: "name or ID of a persistent VM to run in; empty: a new one"},
		{Name: "vmTemplate", Flag: "template", In: all, Help: "name or VM ID of the template to clone",
			Label: "Template", Hint: "name or VM ID; empty: the server's default", When: NewVM + " os=^$"},
		{Name: "os", Flag: "os", In: all, Values: append([]string{""}, job.Systems...), Help: "create the VM from a cloud image instead: " + strings.Join(job.Systems, ", "),
			Label: "Operating system", Hint: "its cloud image, instead of a template", When: NewVM + " vmTemplate=^$"},
		{Name: "resources.cpu", Flag: "cpu", In: all, Help: "cores, 1 to 32",
			Label: "Cores", Hint: "1 to 32", When: NewVM},
		{Name: "resources.memory", Flag: "memory", In: all, Help: "memory, as in 2G",
			Label: "Memory", Hint: "as in 2G", When: NewVM},
		{Name: "resources.disk", Flag: "disk", In: all, Help: "disk, as in 20G",
			Label: "Disk", Hint: "as in 20G", When: NewVM},
		{Name: "network.bridge", Flag: "bridge", In: all, Help: "bridge on the host, as in vmbr0",
			Label: "Bridge", Hint: "of the host, as in vmbr0"},
		{Name: "network.vlan", Flag: "vlan", In: all, Help: "VLAN tag, 1 to 4094",
			Label: "VLAN tag", Hint: "1 to 4094"},
		{Name: "network.ip", Flag: "ip", In: all, Help: "dhcp, auto6 or dhcp6, or an address with its prefix length, as in 10.0.0.50/24, or a pool of them, as in 10.0.0.50-10.0.0.99/24",
			Label: "Address", Hint: "dhcp, auto6, dhcp6, or an address with its prefix length, as in 10.0.0.50/24"},
		{Name: "network.gateway", Flag: "gateway", In: all, Help: "gateway to use with --ip",
			Label: "Gateway", Hint: "of a fixed address", When: "network.ip=/"},
		{Name: "network.egress", Flag: "egress", In: all, Values: []string{"", "lan", "internet", "allow", "none"}, Help: "where the VM may connect to: lan, internet, allow (names only) or none",
			Label: "Network access", Hint: "lan: anything; internet: public addresses; allow: the names below; none: nothing"},
		{Name: "network.allow", Flag: "allow", In: all, Help: "names the VM may reach, as in github.com,*.npmjs.org; implies --egress allow",
			Label: "Allowed names", Hint: "with allow, as in github.com *.npmjs.org", When: "network.egress=^(allow)?$"},
		{Name: "env", Flag: "env", In: tasks | Dispatch, Help: "environment variable NAME=VALUE for the task; may be repeated",
			Label: "Variables"},
		{Name: "secrets", Flag: "secret", In: tasks | Dispatch, Each: true, Help: "name of a configured secret, passed to the task as an environment variable; may be repeated",
			Label: "Secrets", Hint: "names of secrets that are configured on the server, never their values"},
		{Name: "credentials", Flag: "credential", In: tasks | Dispatch, Each: true, Help: "name of a credential that requests to its host get on the way, and the VM does not have; may be repeated",
			Label: "Credentials", Hint: "names of credentials, as in linus credential list"},
		{Name: "cwd", Flag: "cwd", In: Submit | Exec | Dispatch, Help: "absolute directory to run in (default: the VM user's home)",
			Label: "Directory", Hint: "absolute; empty: the VM user's home"},
		{Name: "sudo", Flag: "sudo", In: tasks | Dispatch, Help: "run as root",
			Label: "Run as root"},
		{Name: "tty", Flag: "tty", In: tasks, Help: "run on a terminal the size of this one",
			Label: "Run on a terminal", When: ownScript},
		{Name: "ttySize", Flag: "tty-size", In: Submit, Help: "size of that terminal instead, ROWSxCOLUMNS, as in 24x80",
			Label: "Terminal size", Hint: "ROWSxCOLUMNS, as in 24x80", When: "tty=^on$"},
		{Name: "stdin", Flag: "stdin", In: Submit, On: "open", Help: "leave the task's stdin open, for linus job input and attach",
			Label: "Keep its input open", When: ownScript},
		{Name: "statusMode", Flag: "status-mode", In: tasks, Values: []string{"streaming", "simple", "detailed", ""}, Help: "simple, detailed or streaming",
			Label: "Output", Hint: "streaming: as it is written; simple: at the end"},
		{Name: "lifecycle", Flag: "keep", In: tasks, Values: []string{"", "ephemeral", "persistent"}, On: "persistent", Help: "keep the VM after the job (lifecycle persistent); implied by --name and --ttl",
			Label: "Lifecycle", Hint: "ephemeral: it is destroyed at the end; persistent: it stays", When: NewVM},
		{Name: "vmName", Flag: "name", In: tasks, Help: "name of the VM, which is then persistent",
			Label: "VM's name", Hint: "letters, digits and dashes", When: staying},
		{Name: "ttl", Flag: "ttl", In: vms, Seconds: true, Help: "destroy the VM after this time, as in 8h, once no job runs in it",
			Label: "Destroy it after", Hint: "as in 8h or 7d, once no job runs in it; empty: never", When: staying},
		{Name: "keep", Flag: "keep-on-failure", In: tasks, Values: []string{"", "never", "on_failure", "always"}, On: "on_failure", Help: "keep the VM for --keep-for if the task fails or times out",
			Label: "Keep the VM", Hint: "on_failure: it stays for a time if the task fails or times out; always: or succeeds", When: ending},
		{Name: "keepFor", Flag: "keep-for", In: tasks, Seconds: true, Help: "how long to keep the VM, as in 2h (default 1h); implies --keep-on-failure, unless --keep-always is given",
			Label: "Keep it for", Hint: "as in 2h; empty: an hour", When: ending + " keep=^(on_failure|always)$"},
		{Name: "idleSuspend", Flag: "idle-suspend", In: vms, Seconds: true, Help: "suspend the VM, if it stays, when it was not used for this time, as in 30m; its next use resumes it",
			Label: "Suspend it when idle for", Hint: "as in 30m without use; empty: never, and with keep 10m", When: NewVM},
		{Name: "start", Flag: "start", In: tasks | Dispatch, Values: []string{"", "any", "restore", "cold"}, Help: "any (default): in a VM of a pool, or one restored from a checkpoint, if there is one like this; restore: only from a checkpoint; cold: in one that boots",
			Label: "Start", Hint: "any: in a VM of a pool, or restored from a checkpoint, if there is one; restore: only from a checkpoint; cold: in one that boots", When: NewVM},
		{Name: "volumes", Flag: "volume", In: tasks | Dispatch, Each: true, Lines: true, Help: "volume NAME:/PATH[:ro] to mount in the VM before the task starts; may be repeated",
			Label: "Volumes", Hint: "NAME:/PATH or NAME:/PATH:ro on each line, mounted before the task starts", When: NewVM},
		{Name: "retry", Flag: "retry", In: Submit | Run, Values: []string{"", "lost", "offline"}, Help: "run it again, as a new job: lost: when its VM is gone; offline: or its node does not answer (may run twice)",
			Label: "Retry", Hint: "lost: when its VM is gone; offline: or its node does not answer (may run twice)", When: ending},
		{Name: "retries", Flag: "retries", In: Submit | Run, Help: "how often --retry runs it again at most, 1 to 5 (default 1)",
			Label: "Retries", Hint: "at most, 1 to 5", When: ending + " retry=."},
		{Name: "labels", Flag: "label", In: all, Lines: true, Help: "label KEY=VALUE to find it and its VM by, as in team=web; may be repeated",
			Label: "Labels", Hint: "KEY=VALUE on each line, as in team=web"},
		{Name: "notify.url", Flag: "notify", In: tasks | Dispatch, Help: "URL that receives a signed POST when the job ends",
			Label: "Notify", Hint: "URL that receives a signed POST when the job ends"},
	}
}

// PoolSize returns the fields of a pool's size.
func PoolSize() []Field {
	return []Field{
		{Name: "warm", Flag: "warm", Zero: true, Help: fmt.Sprintf("VMs that run and wait, 0 to %d", job.MaxPoolMembers),
			Label: "Warm", Hint: fmt.Sprintf("VMs that run and wait, 0 to %d", job.MaxPoolMembers)},
		{Name: "hibernated", Flag: "hibernated", Zero: true, Help: fmt.Sprintf("VMs that wait suspended to disk, without memory, 0 to %d", job.MaxPoolMembers),
			Label: "Hibernated", Hint: fmt.Sprintf("VMs suspended to disk, which take no memory, 0 to %d", job.MaxPoolMembers)},
		{Name: "idle_limit", Flag: "idle-limit", Zero: true, Seconds: true, Help: "keep no VM once no job has asked for one for this long, until one does (default: never)",
			Label: "Idle limit", Hint: "as in 1h without a job asking, after which it keeps none until one does; 0: never"},
		{Name: "max_age", Flag: "max-age", Seconds: true, Help: "replace a VM that is this old (default 24h)",
			Label: "Replace a VM after", Hint: "as in 12h; empty: a day"},
	}
}

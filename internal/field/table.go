package field

import (
	"slices"
	"strings"
	"sync"

	"linus/internal/agent"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// Where is the condition of a form's group that applies to new VMs only.
const Where = "vm=^$"

// The groups of the form of a job, in its order.
const (
	Task       = "Task"
	Repository = "Repository"
	Machine    = "VM"
	Network    = "Network"
	Within     = "Environment"
	Terminal   = "Terminal and input"
	Afterwards = "Afterwards"
)

// The forms of texts.
var (
	DNSLabel   = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	Template   = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`) // a name or a VM ID
	Credential = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

	templateRef = Like{Template, 63, "%q is neither", "give a template's name (letters, digits, dots, dashes) or its VM ID"}
	vmRef       = Like{Template, 63, "%q is neither", "give the name or the VM ID of a persistent VM; {vm list} shows them"}
	label       = Like{DNSLabel, 63, "%q is not a host name", "use letters, digits and dashes, at most 63"}
	model       = Like{lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`), 128, "%q is not a model name", "give a model's name, such as sonnet"}
	bridge      = Like{lazyregexp.New(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`), 0, "%q is not a bridge's name", "name a bridge of the host, as in vmbr0"}
	size        = Like{lazyregexp.New(`^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$`), 0, "%q is not a size", "give ROWSxCOLUMNS, as in 24x80"}
	credential  = Like{Credential, 64, "%.80q is not a credential's name", "linus credential list shows them"}
)

const (
	minute = 60 // seconds
	year   = 365 * 24 * 3600
)

// agents returns the job types that are agents.
func agents() (names []string) {
	for _, a := range agent.All() {
		names = append(names, a.Name)
	}
	return names
}

// manifest is the table, built once.
var manifest = sync.OnceValue(func() []Field {
	var (
		some       = strings.Join(agents(), "|")
		newVM      = Need{Where: Where, Problem: "has no meaning for an existing VM", Remedy: "remove it, or remove manifest.vm to get a new VM"}
		cloned     = Need{Where: "os=^$"}
		repository = Need{Where: "repository.url=."}
		ownScript  = "agentType=^(script)?$ agent.command=^$"
	)
	staying := []Need{newVM, {Where: "lifecycle=^persistent$", Problem: "has no meaning for an ephemeral VM", Remedy: "remove it, or set manifest.lifecycle=persistent"}}
	ending := func(problem, remedy string, more ...Need) []Need {
		return append([]Need{newVM, {Where: "lifecycle=^(ephemeral)?$", Problem: problem, Remedy: remedy, Of: "^(on_failure|always|lost|offline|[1-9].*)$"}}, more...)
	}
	fanOut := []Need{
		{Where: "vm=^$", Problem: "is for jobs with VMs of their own", Remedy: "remove it, or remove manifest.vm"},
		{Where: "vmName=^$", Problem: "makes several VMs, which cannot have one name", Remedy: "remove manifest.vmName"},
		{Where: "tty=^$ stdin=^$", Problem: "is for tasks that take no input", Remedy: "remove manifest.tty and manifest.stdin"},
		{Where: "push.branch=^$", Problem: "makes several jobs, which cannot push to one branch", Remedy: "remove manifest.push"},
	}
	const stays, forATime = "has no meaning for a persistent VM, which stays anyway", "remove it, and give manifest.ttl for a time"
	const goes, leave = "is for jobs whose VM is destroyed with them", "remove it, or leave manifest.lifecycle out"

	return []Field{
		{Name: "agentType", Required: true, Values: append(agents(), "script", "custom"), Text: "script runs the task in bash; custom runs agent.command with the task on stdin; the others are agents, with the task as their prompt.", Brief: "custom: agent.command runs.",
			Flag: "agent-type", In: Submit | Run, Help: "script (default), custom, or an agent (" + strings.Join(agents(), ", ") + "): what follows -- is then the command's input, or the prompt",
			Group: Task, Label: "Type", Preset: "script", Hint: "script: a bash script; custom: input for the command below; the others: a prompt for that agent"},
		{Name: "task", Lines: true, Text: "What to run, byte for byte, at most 1 MiB. For agentType script without agent.command: a bash script. For custom: the command's stdin. For an agent: the prompt.", Brief: "script: run by bash. custom: the command's stdin. Else the agent's prompt.",
			NoFlag: "it is what follows --", Group: Task, Label: "Script, prompt or input"},
		{Name: "agent", Text: "Options of the agent.", Brief: "-"},
		{Name: "agent.command", Text: "Shell command that runs the task (given on stdin, and as $LINUS_TASK_FILE). Required for custom. For an agent: what starts it, with the agent as \"$@\".", Brief: "Required for custom.",
			Flag: "agent-command", In: Submit, Help: "shell command that reads what follows -- from its stdin: for custom, or another interpreter for a script; for an agent, what starts it, as \"$@\"",
			Group: Task, Label: "Command", Hint: "that reads the task from its stdin: for custom, or another interpreter for a script; for an agent, what starts it, as \"$@\""},
		{Name: "agent.model", Like: &model, Text: "Model of an agent.", Brief: "-",
			Needs: []Need{{Where: "agentType=^(" + some + ")?$", Problem: "has no meaning for agentType %s", Remedy: "remove it"}},
			Flag:  "model", In: Submit | Run, Help: "model for an agent, as in sonnet for claude (default: the agent's own)",
			Group: Task, Label: "Model", Hint: "as in sonnet for claude; empty: the agent's default"},
		{Name: "agent.claudeModel", Like: &model, Text: "claude: the same.", Brief: "-",
			Needs: []Need{{Where: "agentType=^(claude)?$", Problem: "has no meaning for agentType %s", Remedy: "remove it"}, {Where: "agent.model=^$", Problem: "is given together with model", Remedy: "remove it", Shown: true}},
			Flag:  "claude-model", In: Submit, Help: "the same, for claude",
			Group: Task, Label: "Claude model", Hint: "as in sonnet; empty: the CLI's default"},
		{Name: "timeout", Seconds: true, Least: 1, Most: 86400, NoZero: true, Default: "3600", Text: "The task's time limit in seconds, 1 to 86400.", Brief: "Seconds; default 3600.",
			Flag: "timeout", In: tasks | Dispatch, Help: "the task's time limit: seconds, or as in 90m or 1h30m",
			Group: Task, Label: "Time limit", Hint: "as in 90m, at most 1d; empty: the server's default"},
		{Name: "artifacts", Each: true, Lines: true, Text: "Files to collect at the end, successful or not: paths or patterns such as dist/** from the working directory, or absolute.", Brief: "Files to collect at the end: paths, or patterns such as dist/**.",
			Flag: "artifact", In: Submit | Exec | Dispatch, Help: "path or pattern such as 'dist/**' of files to collect at the end; may be repeated",
			Group: Task, Label: "Artifacts", Hint: "files to collect at the end: a path or a pattern such as dist/** on each line"},
		{Name: "files", Text: "Files to copy into the VM first: at most 20000, 64 MiB together. For more, use an archive that the task unpacks.", Brief: "Copied in first; 64 MiB at most.",
			Flag: "file", In: tasks, Offers: LocalFiles, Help: "LOCAL:REMOTE[:MODE], a file to copy into the VM; may be repeated",
			Label: "Files"},
		{Name: "files[].path", Text: "Absolute path in the VM.", Brief: "Absolute."},
		{Name: "files[].content", Text: "Content, base64 (standard, padded).", Brief: "Base64."},
		{Name: "files[].mode", Text: "Octal permissions, e.g. 0755.", Default: "0644", Brief: "Default 0644."},
		{Name: "repository", Text: "Git repository for the task; what it commits is kept as repository.bundle and repository.patch.", Brief: "Its commits are kept as repository.bundle and .patch."},
		{Name: "repository.url", Text: "https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH.", Brief: "https://HOST/PATH or ssh://USER@HOST/PATH.",
			Flag: "repo", In: Submit | Exec, Help: "URL of a git repository that the engine fetches, and the task finds in the VM, as in https://github.com/acme/app",
			Group: Repository, Label: "Repository", Hint: "https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH"},
		{Name: "repository.ref", Needs: []Need{repository}, Text: "Branch, tag or commit. Default: the default branch.", Brief: "Default: the default branch.",
			Flag: "ref", In: Submit | Exec, Help: "its branch, tag or commit (default: its default branch)",
			Group: Repository, Label: "Branch, tag or commit", Hint: "empty: the default branch"},
		{Name: "repository.path", Path: true, Needs: []Need{repository}, Text: "Absolute directory, also the default of cwd. Default: its name, in the home.", Brief: "Absolute; cwd's default. Default: its name, in the home.",
			Flag: "repo-path", In: Submit | Exec, Help: "absolute directory for it in the VM (default: its name, in the home directory); the task runs there unless --cwd is given",
			Group: Repository, Label: "Its directory", Hint: "absolute; empty: its name, in the home directory"},
		{Name: "repository.credential", Like: &credential, Needs: []Need{repository}, Text: "Name of its credential.", Brief: "-",
			Flag: "repo-credential", In: tasks, Help: "name of the credential that reads it, and pushes; the VM does not have it",
			Group: Repository, Label: "Its credential", Hint: "as in linus credential list; empty: it is public"},
		{Name: "repository.submodules", Needs: []Need{repository}, Text: "Also fetch its submodules.", Brief: "-",
			Flag: "submodules", In: tasks, Help: "also fetch its submodules",
			Group: Repository, Label: "With its submodules"},
		{Name: "repository.lfs", Needs: []Need{repository}, Text: "Also fetch its large files (Git LFS). HTTPS only.", Brief: "-",
			Flag: "lfs", In: tasks, Help: "also fetch its large files (Git LFS)",
			Group: Repository, Label: "With its large files (LFS)"},
		{Name: "push", Text: "Where the task's commits are pushed.", Brief: "-"},
		{Name: "push.branch", Needs: []Need{{Where: "repository.url=.", Problem: "has no meaning without a repository", Remedy: "give manifest.repository.url as well"}}, Text: "New branch for its commits, if the task succeeds; or one that a job of yours has pushed.", Brief: "New branch, if the task succeeds; or one a job of yours pushed.",
			Flag: "push", In: tasks, Help: "new branch to push its commits to if the task succeeds, or one that a job of yours pushed before",
			Group: Repository, Label: "Push to", Hint: "a new branch, if the task succeeds"},
		{Name: "vm", Like: &vmRef, Text: "Name or ID of a persistent VM of ours to run in, instead of a new one.", Brief: "Run in this persistent VM (name or ID).",
			Flag: "vm", In: tasks, Offers: VMs, Help: "name or VM ID of an existing VM to run in, instead of a new one",
			Group: Machine, Label: "Existing VM", Hint: "name or ID of a persistent VM to run in; empty: a new one"},
		{Name: "vmTemplate", Like: &templateRef, Needs: []Need{newVM, cloned}, Default: "agent-template", Text: "Name or VM ID of the Proxmox template to clone.", Brief: "Name or ID; default agent-template.",
			Flag: "template", In: all, Offers: Templates, Help: "name or VM ID of the template to clone",
			Group: Machine, Label: "Template", Hint: "name or VM ID; empty: the server's default"},
		{Name: "os", Values: vm.Systems, Needs: []Need{newVM, {Where: "vmTemplate=^$", Problem: "is given together with manifest.vmTemplate", Remedy: "give either manifest.os or manifest.vmTemplate"}}, Text: "Create the VM from this system's cloud image, not a template.", Brief: "A cloud image, not a template.",
			Flag: "os", In: all, Help: "create the VM from a cloud image instead: " + strings.Join(vm.Systems, ", "),
			Group: Machine, Label: "Operating system", Hint: "its cloud image, instead of a template"},
		{Name: "resources", Text: "Size of the VM.", Brief: "-"},
		{Name: "resources.cpu", Least: 1, Most: 32, NoZero: true, Needs: []Need{newVM}, Default: "2", Text: "Cores, 1 to 32.", Brief: "Default 2.",
			Flag: "cpu", In: all, Help: "cores, 1 to 32",
			Group: Machine, Label: "Cores", Hint: "1 to 32"},
		{Name: "resources.memory", Smallest: "512M", Largest: "512G", Example: "2G", Needs: []Need{newVM}, Default: "2G", Text: "Memory, e.g. 2G or 512M; 512M to 512G.", Brief: "512M to 512G; default 2G.",
			Flag: "memory", In: all, Help: "memory, as in 2G",
			Group: Machine, Label: "Memory", Hint: "as in 2G"},
		{Name: "resources.disk", Smallest: "5G", Largest: "10000G", Example: "20G", Needs: []Need{newVM}, Default: "10G", Text: "Disk, e.g. 10G; 5G to 10000G.", Brief: "5G to 10000G; default 10G.",
			Flag: "disk", In: all, Help: "disk, as in 20G",
			Group: Machine, Label: "Disk", Hint: "as in 20G"},
		{Name: "network", Text: "The VM's network, where it differs from the server's settings.", Brief: "-"},
		{Name: "network.bridge", Like: &bridge, Needs: []Need{newVM}, Text: "Bridge of the host, e.g. vmbr0.", Brief: "-",
			Flag: "bridge", In: all, Help: "bridge on the host, as in vmbr0",
			Group: Network, Label: "Bridge", Hint: "of the host, as in vmbr0"},
		{Name: "network.vlan", Least: 1, Most: 4094, Needs: []Need{newVM}, Text: "VLAN tag.", Brief: "-",
			Flag: "vlan", In: all, Help: "VLAN tag, 1 to 4094",
			Group: Network, Label: "VLAN tag", Hint: "1 to 4094"},
		{Name: "network.ip", Needs: []Need{newVM}, Text: "dhcp, auto6 or dhcp6, an address with its prefix length (10.0.0.50/24), or a pool of them (10.0.0.50-10.0.0.99/24).", Brief: "dhcp, or 10.0.0.50/24.",
			Flag: "ip", In: all, Help: "dhcp, auto6 or dhcp6, or an address with its prefix length, as in 10.0.0.50/24, or a pool of them, as in 10.0.0.50-10.0.0.99/24",
			Group: Network, Label: "Address", Hint: "dhcp, auto6, dhcp6, or an address with its prefix length, as in 10.0.0.50/24"},
		{Name: "network.gateway", Needs: []Need{newVM, {Where: "network.ip=/", Problem: "has no meaning without a fixed address", Remedy: "give manifest.network.ip as an address with its prefix length as well"}}, Text: "Gateway of a fixed address.", Brief: "-",
			Flag: "gateway", In: all, Help: "gateway to use with --ip",
			Group: Network, Label: "Gateway", Hint: "of a fixed address"},
		{Name: "network.egress", Values: Words(vm.Egresses), Needs: []Need{newVM}, Text: "What the VM reaches. lan: anything. internet: public addresses. allow: what allow lists, names by HTTP(S). none: nothing.", Brief: "internet: public addresses. allow: what it lists.",
			Flag: "egress", In: all, Help: "where the VM may connect to: lan, internet, allow (what is listed) or none",
			Group: Network, Label: "Network access", Hint: "lan: anything; internet: public addresses; allow: what is listed below; none: nothing"},
		{Name: "network.allow", Needs: []Need{newVM, {Where: "network.egress=^(allow)?$", Problem: "has no meaning with egress %s", Remedy: "remove it, or set manifest.network.egress=allow"}}, Text: "For egress allow: names such as github.com or *.npmjs.org, public addresses and ranges such as 9.9.9.0/24.", Brief: "E.g. *.npmjs.org.",
			Flag: "allow", In: all, Help: "names and public addresses the VM may reach, as in github.com,*.npmjs.org,9.9.9.0/24; implies --egress allow",
			Group: Network, Label: "Allowed", Hint: "with allow, as in github.com *.npmjs.org 9.9.9.0/24"},
		{Name: "network.deny", Needs: []Need{newVM, {Where: "network.egress=^(internet)?$", Problem: "has no meaning with egress %s", Remedy: "remove it, or set manifest.network.egress=internet"}}, Text: "For egress internet: addresses and ranges that are not reached, such as 9.9.9.0/24.", Brief: "-",
			Flag: "deny", In: all, Help: "addresses the VM may not reach, as in 9.9.9.9,9.9.8.0/24; implies --egress internet",
			Group: Network, Label: "Denied", Hint: "with internet, as in 9.9.9.9 9.9.8.0/24"},
		{Name: "env", Text: "Environment variables of the task, at most 128 KiB each and 1 MiB together. Not for secrets.", Brief: "Not for secrets.",
			Flag: "env", In: tasks | Dispatch, Help: "environment variable NAME=VALUE for the task; may be repeated",
			Label: "Variables"},
		{Name: "secrets", Each: true, Text: "Names of secrets on the server; each becomes an environment variable of the task and is masked in its output.", Brief: "Names: variables of the task, masked in its output.",
			Flag: "secret", In: tasks | Dispatch, Help: "name of a configured secret, passed to the task as an environment variable; may be repeated",
			Group: Within, Label: "Secrets", Hint: "names of secrets that are configured on the server, never their values"},
		{Name: "credentials", Each: true, Text: "Names of credentials, which are added to requests to their hosts on the way; the VM never has them.", Brief: "Names: added to requests to their hosts; the VM never has them.",
			Flag: "credential", In: tasks | Dispatch, Help: "name of a credential that is added to requests to its host on the way, so that the VM never has it; may be repeated",
			Group: Within, Label: "Credentials", Hint: "names of credentials, as in linus credential list"},
		{Name: "cwd", Path: true, Text: "Absolute directory the task runs in. Default: the VM user's home.", Brief: "Default: the home.",
			Flag: "cwd", In: Submit | Exec | Dispatch, Help: "absolute directory to run in (default: the VM user's home)",
			Group: Within, Label: "Directory", Hint: "absolute; empty: the VM user's home"},
		{Name: "sudo", Text: "Run the task as root.", Brief: "-",
			Flag: "sudo", In: tasks | Dispatch, Help: "run as root",
			Group: Within, Label: "Run as root"},
		{Name: "tty", Needs: []Need{{Where: ownScript, Problem: "is for agentType script without agent.command", Remedy: "put the command into manifest.task, with agentType script"}}, Text: "Run the task on a terminal; its stderr is then part of stdout.", Brief: "-",
			Flag: "tty", In: tasks, Help: "run on a terminal the size of this one",
			Group: Terminal, Label: "Run on a terminal"},
		{Name: "ttySize", Like: &size, Needs: []Need{{Where: "tty=^on$", Problem: "has no meaning without manifest.tty", Remedy: "remove it, or set manifest.tty=true"}}, Text: "ROWSxCOLUMNS of the terminal.", Default: "24x80", Brief: "Default 24x80.",
			Flag: "tty-size", In: Submit, Help: "size of that terminal instead, ROWSxCOLUMNS, as in 24x80",
			Group: Terminal, Label: "Terminal size", Hint: "ROWSxCOLUMNS, as in 24x80"},
		{Name: "stdin", Values: []string{"closed", "open"}, Tick: true, Needs: []Need{{Where: ownScript, Problem: "cannot be open: the agent's input is the task", Remedy: "put the command into manifest.task, with agentType script", Of: "^open$"}}, Text: "open: stdin takes input while the task runs; it is kept on the VM's disk until the job ends.", Default: "closed", Brief: "open: input can be typed while it runs.",
			Flag: "stdin", In: Submit, On: "open", Help: "leave the task's stdin open, for linus job input and attach",
			Group: Terminal, Label: "Keep its input open"},
		{Name: "statusMode", Values: []string{"simple", "detailed", "streaming"}, Text: "simple (default): output at the end. detailed: progress and output every few seconds. streaming: output as it is written.", Brief: "Default simple.",
			Flag: "status-mode", In: tasks, Help: "simple, detailed or streaming",
			Group: Terminal, Label: "Output", Preset: "streaming", Hint: "streaming: as it is written; simple: at the end"},
		{Name: "lifecycle", Values: []string{"ephemeral", "persistent"}, Needs: []Need{newVM}, Text: "ephemeral (default): the VM is destroyed at the end. persistent: it stays.", Brief: "persistent: the VM stays.",
			Flag: "keep", In: tasks, On: "persistent", Help: "keep the VM after the job (lifecycle persistent); implied by --name and --ttl",
			Group: Afterwards, Label: "Lifecycle", Hint: "ephemeral: it is destroyed at the end; persistent: it stays"},
		{Name: "vmName", Like: &label, Needs: staying, Text: "Name of the new VM when it is persistent.", Brief: "If persistent.",
			Flag: "name", In: tasks, Help: "name of the VM, which is then persistent",
			Group: Afterwards, Label: "VM's name", Hint: "letters, digits and dashes"},
		{Name: "ttl", Seconds: true, Least: 1, Most: year, NoZero: true, Needs: staying, Text: "Seconds after which a persistent VM is destroyed, once no job runs in it. Default: never.", Brief: "Seconds until a persistent VM is destroyed.",
			Flag: "ttl", In: vms, Help: "destroy the VM after this time, as in 8h, once no job runs in it",
			Group: Afterwards, Label: "Destroy it after", Hint: "as in 8h or 7d, once no job runs in it; empty: never"},
		{Name: "atEnd", Values: Words(vm.Ends), Needs: append(slices.Clone(staying), Need{Where: "ttl=.", Problem: "has no meaning without manifest.ttl", Remedy: "remove it, or give manifest.ttl"}), Text: "What happens when ttl is over. destroy (default): the VM is destroyed. suspend: it is suspended, and stays until it is resumed or destroyed.", Brief: "-",
			Flag: "at-end", In: vms, Help: "what happens when --ttl is over: destroy (default), or suspend: it stays suspended until it is resumed or destroyed",
			Group: Afterwards, Label: "Then", Hint: "destroy it, or suspend: it stays suspended until it is resumed or destroyed"},
		{Name: "keep", Values: []string{"never", "on_failure", "always"}, Needs: ending(stays, forATime), Text: "on_failure: an ephemeral VM stays for keepFor if the task fails or times out. always: also if it succeeds.", Brief: "When an ephemeral VM stays, for keepFor.",
			Flag: "keep-on-failure", In: tasks | Dispatch, On: "on_failure", Help: "keep the VM for --keep-for if the task fails or times out",
			Also:  &Option{"keep-always", "always", "keep the VM for --keep-for in any case, unless the job is cancelled, killed or lost"},
			Group: Afterwards, Label: "Keep the VM", Hint: "on_failure: it stays for a time if the task fails or times out; always: also if it succeeds"},
		{Name: "keepFor", Seconds: true, Least: minute, Most: year, Needs: ending(stays, forATime, Need{Where: "keep=^(on_failure|always)$", Problem: "has no meaning without manifest.keep", Remedy: "remove it, or set manifest.keep=on_failure"}), Text: "Seconds.", Default: "3600", Brief: "Seconds; default 3600.",
			Flag: "keep-for", In: tasks | Dispatch, Help: "how long to keep the VM, as in 2h (default 1h); implies --keep-on-failure, unless --keep-always is given",
			Group: Afterwards, Label: "Keep it for", Hint: "as in 2h; empty: an hour"},
		{Name: "idleSuspend", Seconds: true, Least: minute, Most: year, Needs: []Need{newVM, {Where: "lifecycle,keep=^(persistent|on_failure|always)$", Problem: "has no meaning for a VM that is destroyed with its job", Remedy: "remove it, or set manifest.lifecycle=persistent, or give manifest.keep", Shown: true}}, Text: "Seconds without use after which a VM that stays is suspended, until it is used. Default never; with keep 600.", Brief: "Seconds without use until a VM that stays is suspended.",
			Flag: "idle-suspend", In: vms, Help: "suspend the VM, if it stays, when it was not used for this time, as in 30m; its next use resumes it",
			Group: Afterwards, Label: "Suspend it when idle for", Hint: "as in 30m without use; empty: never, and with keep 10m"},
		{Name: "start", Values: []string{"any", "restore", "cold"}, Needs: []Need{newVM}, Text: "any (default): pooled, restored or booted. restore: restored. cold: booted.", Brief: "Default any: pooled, restored or booted (cold).",
			Flag: "start", In: tasks | Dispatch, Help: "any (default): in a VM of a pool, or one restored from a checkpoint, if there is one like this; restore: only from a checkpoint; cold: in one that boots",
			Group: Afterwards, Label: "Start", Hint: "any: in a VM of a pool, or restored from a checkpoint, if there is one; restore: only from a checkpoint; cold: in one that boots"},
		{Name: "volumes", Each: true, Lines: true, Needs: []Need{newVM}, Text: "Disks that outlive VMs (linus volume create), mounted before the task starts.", Brief: "Disks that outlive VMs.",
			Flag: "volume", In: tasks | Dispatch, Help: "volume NAME:/PATH[:ro] to mount in the VM before the task starts; may be repeated",
			Group: Afterwards, Label: "Volumes", Hint: "NAME:/PATH or NAME:/PATH:ro on each line, mounted before the task starts"},
		{Name: "volumes[].name", Text: "Of a volume.", Brief: "-"},
		{Name: "volumes[].path", Text: "Absolute directory.", Brief: "Absolute."},
		{Name: "volumes[].mode", Values: []string{"rw", "ro"}, Text: "rw (default): this VM alone has it. ro: several may.", Brief: "-"},
		{Name: "retry", Values: []string{"lost", "offline"}, Needs: ending(goes, leave), Text: "lost: rerun it, as a new job, when its VM is gone. offline: also when its node is offline (may run twice).", Brief: "Run it again when its VM is lost, or its node offline.",
			Flag: "retry", In: Submit | Run, Help: "run it again, as a new job: lost: when its VM is gone; offline: also when its node does not answer (may run twice)",
			Group: Afterwards, Label: "Retry", Hint: "lost: when its VM is gone; offline: also when its node does not answer (may run twice)"},
		{Name: "retries", Least: 1, Most: 5, Needs: ending(goes, leave, Need{Where: "retry=.", Problem: "has no meaning without manifest.retry", Remedy: "remove it, or set manifest.retry=lost"}), Default: "1", Brief: "Default 1.",
			Flag: "retries", In: Submit | Run, Help: "how often --retry runs it again at most, 1 to 5 (default 1)",
			Group: Afterwards, Label: "Retries", Hint: "at most, 1 to 5"},
		{Name: "matrix", Each: true, Lines: true, Needs: fanOut, Text: "NAME=VALUE,VALUE each: a job for each combination, with MATRIX_NAME in its environment. template, os, cpu, memory and disk set these fields, too.", Brief: "NAME=VALUE,VALUE: a job for each combination.",
			Flag: "matrix", In: Submit | Run, Help: "NAME=VALUE,VALUE: a job of its own for each value, with MATRIX_NAME in its environment; may be repeated, for each combination; template, os, cpu, memory and disk choose the VM, too",
			Group: Afterwards, Label: "Matrix", Hint: "NAME=VALUE,VALUE on each line: a job for each combination, with MATRIX_NAME in its environment"},
		{Name: "shards", Least: 1, Most: 256, NoZero: true, Needs: fanOut, Text: "Run it as this many jobs, each with its number, from 1, in LINUS_SHARD, and their count in LINUS_SHARDS.", Brief: "Jobs with LINUS_SHARD and LINUS_SHARDS.",
			Flag: "shard", In: Submit | Run, Help: "run it as this many jobs, 1 to 256, each with its number, from 1, in LINUS_SHARD of its environment, and their count in LINUS_SHARDS",
			Group: Afterwards, Label: "Shards", Hint: "1 to 256 jobs, with LINUS_SHARD and LINUS_SHARDS in their environment"},
		{Name: "failFast", Needs: []Need{{Where: "matrix,shards=^\\[?[A-Za-z_1-9]", Problem: "has no meaning for a single job", Remedy: "remove it, or give manifest.matrix or manifest.shards", Shown: true}}, Text: "Cancel the other jobs of the matrix or the shards when one fails.", Brief: "-",
			Flag: "fail-fast", In: Submit | Run, Help: "cancel the other jobs of --matrix or --shard when one fails",
			Group: Afterwards, Label: "Cancel the others when one fails"},
		{Name: "labels", Lines: true, Text: "To find it and its VM by, e.g. team: web.", Brief: "E.g. team: web.",
			Flag: "label", In: all, Help: "label KEY=VALUE to find it and its VM by, as in team=web; may be repeated",
			Group: Afterwards, Label: "Labels", Hint: "KEY=VALUE on each line, as in team=web"},
		{Name: "notify", Text: "Who is notified when the job has ended.", Brief: "Is sent a signed POST at the end."},
		{Name: "notify.url", Text: "It is sent a signed POST when the job has ended (linus help operate).", Brief: "-",
			Flag: "notify", In: tasks | Dispatch, Help: "URL that receives a signed POST when the job ends",
			Group: Afterwards, Label: "Notify", Hint: "URL that receives a signed POST when the job ends"},
	}
})

// Words returns the elements of a list as strings.
func Words[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, w := range list {
		all[i] = string(w)
	}
	return all
}

// PoolSize returns the fields of a pool's size.
func PoolSize() []Field { return slices.Clone(poolSize()) }

var poolSize = sync.OnceValue(func() []Field {
	const members, month = 100, 30 * 24 * 3600
	return []Field{
		{Name: "warm", Zero: true, Most: members, Flag: "warm", Help: "VMs that run and wait, 0 to 100",
			Label: "Warm", Hint: "VMs that run and wait, 0 to 100"},
		{Name: "hibernated", Zero: true, Most: members, Flag: "hibernated", Help: "VMs that wait suspended to disk, without memory, 0 to 100",
			Label: "Hibernated", Hint: "VMs suspended to disk, which take no memory, 0 to 100"},
		{Name: "idle_limit", Zero: true, Seconds: true, Least: minute, Most: month, Flag: "idle-limit", Help: "keep no VM once no job has asked for one for this long, until one does (default: never)",
			Label: "Idle limit", Hint: "as in 1h without a job asking, after which it keeps none until one does; 0: never"},
		{Name: "max_age", Seconds: true, Least: minute, Most: month, Flag: "max-age", Help: "replace a VM that is this old (default 24h)",
			Label: "Replace a VM after", Hint: "as in 12h; empty: a day"},
	}
})

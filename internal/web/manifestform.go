package web

import (
	"fmt"
	"strings"

	"linus/internal/job"
)

// newVMs is where inputs of a VM that does not exist yet apply.
const newVMs = "vm=^$"

// sourceInputs say what a new VM is made from and how large it is.
func sourceInputs() []input {
	return []input{
		textInput(input{Name: "vmTemplate", When: newVMs + " os=^$", Label: "Template", Hint: "name or VM ID; empty: the server's default"}, func(d *draft) *string { return &d.manifest.VMTemplate }),
		textInput(input{Name: "os", When: newVMs + " vmTemplate=^$", Label: "Operating system", Hint: "its cloud image, instead of a template", Kind: "choice", Options: append([]string{""}, job.Systems...)}, func(d *draft) *string { return &d.manifest.OS }),
		numberInput(input{Name: "resources.cpu", When: newVMs, Label: "Cores", Hint: "1 to 32"}, false, func(d *draft) *int { return &d.manifest.Resources.CPU }),
		textInput(input{Name: "resources.memory", When: newVMs, Label: "Memory", Hint: "as in 2G"}, func(d *draft) *string { return &d.manifest.Resources.Memory }),
		textInput(input{Name: "resources.disk", When: newVMs, Label: "Disk", Hint: "as in 20G"}, func(d *draft) *string { return &d.manifest.Resources.Disk }),
	}
}

func networkGroup() group {
	return group{Title: "Network", Rare: true, When: newVMs, inputs: []input{
		textInput(input{Name: "network.bridge", Label: "Bridge", Hint: "of the host, as in vmbr0"}, func(d *draft) *string { return &d.manifest.Network.Bridge }),
		numberInput(input{Name: "network.vlan", Label: "VLAN tag", Hint: "1 to 4094"}, false, func(d *draft) *int { return &d.manifest.Network.VLAN }),
		textInput(input{Name: "network.ip", Label: "Address", Hint: "dhcp, auto6, dhcp6, or an address with its prefix length, as in 10.0.0.50/24"}, func(d *draft) *string { return &d.manifest.Network.IP }),
		textInput(input{Name: "network.gateway", When: `network.ip=/`, Label: "Gateway", Hint: "of a fixed address"}, func(d *draft) *string { return &d.manifest.Network.Gateway }),
		textInput(input{Name: "network.egress", Label: "Network access", Kind: "choice", Options: []string{"", "lan", "internet", "allow", "none"}, Hint: "lan: anything; internet: public addresses; allow: the names below; none: nothing"}, func(d *draft) *job.Egress { return &d.manifest.Network.Egress }),
		listInput(input{Name: "network.allow", When: `network.egress=^(allow)?$`, Label: "Allowed names", Kind: "text", Hint: "with allow, as in github.com *.npmjs.org"}, true, func(d *draft) *[]string { return &d.manifest.Network.Allow }),
	}}
}

// keepingInputs are those of a VM that stays.
func keepingInputs() []input {
	return []input{
		textInput(input{Name: "vmName", When: newVMs + " lifecycle=^persistent$", Label: "VM's name", Hint: "letters, digits and dashes"}, func(d *draft) *string { return &d.manifest.VMName }),
		numberInput(input{Name: "ttl", When: newVMs + " lifecycle=^persistent$", Label: "Destroy it after", Hint: "seconds, once no job runs in it; empty: never"}, false, func(d *draft) *int { return &d.manifest.TTL }),
	}
}

// jobGroups are the form of a job: all of its manifest.
func jobGroups() []group {
	return []group{
		{Title: "Task", inputs: []input{
			textInput(input{Name: "agentType", Label: "Type", Kind: "choice", Options: []string{"script", "claude", "custom"}, Hint: "script: a bash script; claude: a prompt for the Claude CLI; custom: input for the command below"}, func(d *draft) *job.AgentType { return &d.manifest.AgentType }),
			textInput(input{Name: "task", Label: "Script, prompt or input", Kind: "area"}, func(d *draft) *string { return &d.manifest.Task }),
			textInput(input{Name: "agent.command", When: `agentType=^(script|custom)$`, Label: "Command", Hint: "that reads the task from its stdin: for custom, or another interpreter for a script"}, func(d *draft) *string { return &d.manifest.Agent.Command }),
			textInput(input{Name: "agent.claudeModel", When: `agentType=^claude$`, Label: "Claude model", Hint: "as in sonnet; empty: the CLI's default"}, func(d *draft) *string { return &d.manifest.Agent.ClaudeModel }),
			numberInput(input{Name: "timeout", Label: "Time limit", Hint: "seconds, 1 to 86400; empty: the server's default"}, false, func(d *draft) *int { return &d.manifest.Timeout }),
			listInput(input{Name: "artifacts", Label: "Artifacts", Kind: "area", Hint: "files to collect at the end: a path or a pattern such as dist/** on each line"}, false, func(d *draft) *[]string { return &d.manifest.Artifacts }),
		}},
		{Title: "Files", Extra: "files"},
		{Title: "VM", inputs: append([]input{
			textInput(input{Name: "vm", Label: "Existing VM", Hint: "name or ID of a persistent VM to run in; empty: a new one"}, func(d *draft) *string { return &d.manifest.VM }),
		}, sourceInputs()...)},
		networkGroup(),
		{Title: "Environment", Rare: true, Extra: "env", inputs: []input{
			listInput(input{Name: "secrets", Label: "Secrets", Kind: "text", Hint: "names of secrets that are configured on the server, never their values"}, true, func(d *draft) *[]string { return &d.manifest.Secrets }),
			textInput(input{Name: "cwd", Label: "Directory", Hint: "absolute; empty: the VM user's home"}, func(d *draft) *string { return &d.manifest.Cwd }),
			checkInput(input{Name: "sudo", Label: "Run as root"}, true, func(d *draft) *bool { return &d.manifest.Sudo }),
		}},
		{Title: "Terminal and input", Rare: true, inputs: []input{
			checkInput(input{Name: "tty", When: `agentType=^script$ agent.command=^$`, Label: "Run on a terminal"}, true, func(d *draft) *bool { return &d.manifest.TTY }),
			textInput(input{Name: "ttySize", When: `tty=^on$`, Label: "Terminal size", Hint: "ROWSxCOLUMNS, as in 24x80"}, func(d *draft) *string { return &d.manifest.TTYSize }),
			checkInput(input{Name: "stdin", When: `agentType=^script$ agent.command=^$`, Label: "Keep its input open"}, job.StdinOpen, func(d *draft) *job.StdinMode { return &d.manifest.Stdin }),
			textInput(input{Name: "statusMode", Label: "Output", Kind: "choice", Options: []string{"streaming", "simple", "detailed", ""}, Hint: "streaming: as it is written; simple: at the end"}, func(d *draft) *job.StatusMode { return &d.manifest.StatusMode }),
		}},
		{Title: "Afterwards", Rare: true, inputs: append([]input{
			textInput(input{Name: "lifecycle", When: newVMs, Label: "Lifecycle", Kind: "choice", Options: []string{"", "ephemeral", "persistent"}, Hint: "ephemeral: it is destroyed at the end; persistent: it stays"}, func(d *draft) *job.Lifecycle { return &d.manifest.Lifecycle }),
		}, append(keepingInputs(),
			textInput(input{Name: "start", When: newVMs, Label: "Start", Kind: "choice", Options: []string{"", "any", "cold"}, Hint: "any: in a VM of a pool if one is ready; cold: always in a new one"}, func(d *draft) *job.StartMode { return &d.manifest.Start }),
			textInput(input{Name: "retry", When: newVMs + " lifecycle=^(ephemeral)?$", Label: "Retry", Kind: "choice", Options: []string{"", "lost", "offline"}, Hint: "lost: when its VM is gone; offline: or its node does not answer (may run twice)"}, func(d *draft) *job.RetryMode { return &d.manifest.Retry }),
			numberInput(input{Name: "retries", When: newVMs + " lifecycle=^(ephemeral)?$ retry=.", Label: "Retries", Hint: "at most, 1 to 5"}, false, func(d *draft) *int { return &d.manifest.Retries }),
			notifyInput(),
		)...)},
	}
}

// notifyInput is the URL that is told of the job's end.
func notifyInput() input {
	return input{
		Name: "notify.url", Label: "Notify", Hint: "URL that receives a signed POST when the job ends", Kind: "text",
		get: func(d *draft) string {
			if d.manifest.Notify == nil {
				return ""
			}
			return d.manifest.Notify.URL
		},
		set: func(d *draft, typed string) string {
			if typed = strings.TrimSpace(typed); typed != "" {
				d.manifest.Notify = &job.Notify{URL: typed}
			}
			return ""
		},
	}
}

// vmGroups are the form of a persistent VM.
func vmGroups() []group {
	return []group{{Title: "VM", inputs: append(keepingInputs(), sourceInputs()...)}, networkGroup()}
}

// sizeGroup is how many VMs a pool keeps.
func sizeGroup() group {
	return group{Title: "Size", inputs: []input{
		numberInput(input{Name: "warm", Label: "Warm", Hint: fmt.Sprintf("VMs that run and wait, 0 to %d", job.MaxPoolMembers)}, true, func(d *draft) *int { return &d.size.Warm }),
		numberInput(input{Name: "hibernated", Label: "Hibernated", Hint: fmt.Sprintf("VMs suspended to disk, which take no memory, 0 to %d", job.MaxPoolMembers)}, true, func(d *draft) *int { return &d.size.Hibernated }),
		numberInput(input{Name: "idle_limit", Label: "Idle limit", Hint: "seconds without a job asking, after which it keeps none until one does; 0: never"}, true, func(d *draft) *int { return &d.size.IdleLimit }),
		numberInput(input{Name: "max_age", Label: "Replace a VM after", Hint: "seconds; empty: a day"}, false, func(d *draft) *int { return &d.size.MaxAge }),
	}}
}

// poolGroups are the form of a pool.
func poolGroups() []group {
	name := textInput(input{Name: "name", Label: "Name", Hint: "lower-case letters, digits and dashes"}, func(d *draft) *string { return &d.pool })
	return []group{{Title: "Pool", inputs: append([]input{name}, sourceInputs()...)}, sizeGroup(), networkGroup()}
}

package job

import (
	"encoding/base64"
	"fmt"
	"slices"
	"sync"

	"linus/internal/agent"
	"linus/internal/vm"
)

// Limits of a manifest, as CONTRACT names them.
const (
	MaxTask      = 1 << 20  // bytes
	MaxFiles     = 64 << 20 // bytes of all files together, decoded
	MaxFileCount = 20000
	MaxPaths     = 4 << 20  // bytes of all files' paths together
	MaxEnv       = 1 << 20  // bytes of all variables together, as NAME=value: a kernel takes about twice that
	MaxManifest  = 96 << 20 // bytes of the whole manifest as JSON
	MaxTimeout   = 86400    // seconds
	MaxCPU       = 32

	// maxArgument is what the kernel takes as one argument of a program, or as
	// one NAME=value of its environment, in bytes without the closing NUL.
	maxArgument = 128<<10 - 1
)

// AgentType is what runs the task.
type AgentType string

// The agents.
const (
	AgentClaude AgentType = "claude" // and the others of package agent: the agent, the task as its prompt
	AgentScript AgentType = "script" // the task is a bash script, or feeds agent.command
	AgentCustom AgentType = "custom" // agent.command, the task on its stdin
)

// Agent returns the agent of a type; false for one that has none.
func (t AgentType) Agent() (agent.Agent, bool) { return agent.Named(string(t)) }

// AgentTypes returns all types.
func AgentTypes() []AgentType { return slices.Clone(agentTypes()) }

// agentTypes is AgentTypes, made once: each manifest is compared with it.
var agentTypes = sync.OnceValue(func() []AgentType {
	var types []AgentType
	for _, a := range agent.All() {
		types = append(types, AgentType(a.Name))
	}
	return append(types, AgentScript, AgentCustom)
})

// StatusMode says how much a running job reports.
type StatusMode string

// The status modes.
const (
	StatusSimple    StatusMode = "simple"
	StatusDetailed  StatusMode = "detailed"
	StatusStreaming StatusMode = "streaming"
)

// Manifest is what a client submits. Zero values mean "the default".
type Manifest struct {
	Task        string            `json:"task" api:",required" jsonschema_description:"What to run, byte for byte, at most 1 MiB. For agentType script without agent.command: a bash script. For custom: the command's stdin. For an agent: the prompt." brief:"script: run by bash. custom: the command's stdin. Else the agent's prompt."`
	AgentType   AgentType         `json:"agentType" jsonschema:"enum=claude,enum=codex,enum=gemini,enum=script,enum=custom" jsonschema_description:"script runs the task in bash; custom runs agent.command with the task on stdin; the others are agents, with the task as their prompt." api:"agent_type,required" brief:"custom: agent.command runs."`
	Agent       Agent             `json:"agent,omitzero" jsonschema_description:"Options of the agent." brief:"-"`
	Files       []File            `json:"files,omitempty" jsonschema_description:"Files to copy into the VM first: at most 20000, 64 MiB together. For more, use an archive that the task unpacks." brief:"Copied in first; 64 MiB at most."`
	Repository  Repository        `json:"repository,omitzero" jsonschema_description:"Git repository for the task; what it commits is kept as repository.bundle and repository.patch."`
	Push        Push              `json:"push,omitzero" jsonschema_description:"Where the task's commits are pushed." brief:"-"`
	Env         map[string]string `json:"env,omitempty" jsonschema_description:"Environment variables of the task, at most 128 KiB each and 1 MiB together. Not for secrets." brief:"Not for secrets."`
	Secrets     []string          `json:"secrets,omitempty" jsonschema_description:"Names of secrets on the server; each becomes an environment variable of the task and is masked in its output." brief:"Names of the server's secrets: variables of the task, masked in its output."`
	Artifacts   []string          `json:"artifacts,omitempty" jsonschema_description:"Files to collect at the end, successful or not: paths or patterns such as dist/** from the working directory, or absolute." brief:"Files to collect at the end: paths, or patterns such as dist/**."`
	Cwd         string            `json:"cwd,omitempty" jsonschema_description:"Absolute directory the task runs in. Default: the VM user's home." brief:"Default: the home."`
	Sudo        bool              `json:"sudo,omitempty" jsonschema_description:"Run the task as root." brief:"Run as root."`
	Stdin       StdinMode         `json:"stdin,omitempty" jsonschema:"enum=closed,enum=open" jsonschema_description:"open: stdin takes input while the task runs; it is kept on the VM's disk until the job ends. Default closed." brief:"open: input can be typed while it runs."`
	TTY         bool              `json:"tty,omitempty" jsonschema_description:"Run the task on a terminal; its stderr is then part of stdout." brief:"-"`
	TTYSize     string            `json:"ttySize,omitempty" jsonschema_description:"ROWSxCOLUMNS of the terminal. Default 24x80." api:"tty_size" brief:"Default 24x80."`
	Resources   vm.Resources      `json:"resources,omitzero" jsonschema_description:"Size of the VM." brief:"-"`
	Timeout     int               `json:"timeout,omitempty" jsonschema:"minimum=1,maximum=86400" jsonschema_description:"The task's time limit in seconds, 1 to 86400. Default 3600." api:"timeout_seconds" brief:"Seconds; default 3600."`
	Lifecycle   vm.Lifecycle      `json:"lifecycle,omitempty" jsonschema:"enum=ephemeral,enum=persistent" jsonschema_description:"ephemeral (default): the VM is destroyed at the end. persistent: it stays." brief:"persistent: the VM stays. Default: it is destroyed at the end."`
	Keep        KeepMode          `json:"keep,omitempty" jsonschema:"enum=never,enum=on_failure,enum=always" jsonschema_description:"on_failure: an ephemeral VM stays for keepFor if the task fails or times out. always: or succeeds." brief:"When an ephemeral VM stays, for keepFor."`
	KeepFor     int               `json:"keepFor,omitempty" jsonschema:"minimum=60,maximum=31536000" jsonschema_description:"Seconds. Default 3600." api:"keep_for_seconds" brief:"Seconds; default 3600."`
	VM          string            `json:"vm,omitempty" jsonschema_description:"Name or ID of a persistent VM of ours to run in, instead of a new one." brief:"Run in this persistent VM (name or ID), not a new one."`
	VMName      string            `json:"vmName,omitempty" jsonschema_description:"Name of the new VM when it is persistent." api:"vm_name" brief:"If persistent."`
	TTL         int               `json:"ttl,omitempty" jsonschema:"minimum=60,maximum=31536000" jsonschema_description:"Seconds after which a persistent VM is destroyed, once no job runs in it. Default: never." api:"ttl_seconds" brief:"Seconds until a persistent VM is destroyed; default never."`
	IdleSuspend int               `json:"idleSuspend,omitempty" jsonschema:"minimum=60,maximum=31536000" jsonschema_description:"Seconds without use after which a VM that stays is suspended, until it is used. Default never; with keep 600." api:"idle_suspend_seconds" brief:"Seconds without use until a VM that stays is suspended."`
	VMTemplate  string            `json:"vmTemplate,omitempty" jsonschema_description:"Name or VM ID of the Proxmox template to clone. Default agent-template." api:"template" brief:"Name or ID; default agent-template."`
	OS          string            `json:"os,omitempty" jsonschema:"enum=@systems" jsonschema_description:"Create the VM from this system's cloud image, not a template." brief:"A cloud image, not a template."`
	Start       StartMode         `json:"start,omitempty" jsonschema:"enum=any,enum=restore,enum=cold" jsonschema_description:"any (default): pooled, restored or booted. restore: restored. cold: booted." brief:"Default any: pooled, restored or booted (cold)."`
	Volumes     []vm.Mount        `json:"volumes,omitempty" jsonschema_description:"Disks that outlive VMs (linus volume create), mounted before the task starts." brief:"Disks that outlive VMs."`
	Retry       RetryMode         `json:"retry,omitempty" jsonschema:"enum=lost,enum=offline" jsonschema_description:"lost: rerun it, as a new job, when its VM is gone. offline: or its node offline (may run twice)." brief:"Run it again when its VM is lost, or its node offline."`
	Retries     int               `json:"retries,omitempty" jsonschema:"minimum=1,maximum=5" jsonschema_description:"Default 1." brief:"Default 1."`
	Network     vm.Network        `json:"network,omitzero" jsonschema_description:"The VM's network, where it differs from the server's settings." brief:"-"`
	Labels      map[string]string `json:"labels,omitempty" jsonschema_description:"To find it and its VM by, e.g. team: web." brief:"E.g. team: web."`
	Notify      *Notify           `json:"notify,omitempty" jsonschema_description:"Who is notified when the job has ended." brief:"Is sent a signed POST at the end."`
	StatusMode  StatusMode        `json:"statusMode,omitempty" jsonschema:"enum=simple,enum=detailed,enum=streaming" jsonschema_description:"simple (default): output at the end. detailed: progress and output every few seconds. streaming: output as it is written." api:"status_mode" brief:"How often progress is reported; default simple."`

	Credentials []string `json:"credentials,omitempty" jsonschema_description:"Names of credentials: requests to their hosts get them on the way; the VM never has them." brief:"Names: requests to their hosts get them; the VM never has them."`
}

// KeepMode says when the VM of a job's own stays though it was to be destroyed.
type KeepMode string

// The keep modes.
const (
	KeepNever     KeepMode = "never"
	KeepOnFailure KeepMode = "on_failure" // the task has failed or timed out, and the VM responds
	KeepAlways    KeepMode = "always"     // or it has succeeded
)

// Keeps reports whether the VM may stay.
func (k KeepMode) Keeps() bool { return k == KeepOnFailure || k == KeepAlways }

// The times of a VM that is kept, in seconds.
const (
	defaultKeepFor  = 3600
	defaultKeptIdle = 600
)

// RetryMode says when a lost job is run again.
type RetryMode string

// The retry modes.
const (
	RetryLost    RetryMode = "lost"    // when its VM is proven gone: never both at once
	RetryOffline RetryMode = "offline" // also while its VM's node is offline: at least once
)

// MaxRetries bounds how often a job is run again.
const MaxRetries = 5

// Agent holds the agent's options.
type Agent struct {
	Command     string `json:"command,omitempty" jsonschema_description:"Shell command that runs the task (given on stdin, and as $LINUS_TASK_FILE). Required for custom. For an agent: what starts it, with the agent as \"$@\"." brief:"Required for custom."`
	Model       string `json:"model,omitempty" jsonschema_description:"Model of an agent." brief:"-"`
	ClaudeModel string `json:"claudeModel,omitempty" jsonschema_description:"claude: the same." api:"claude_model" brief:"-"`
}

// File is one file put into the VM.
type File struct {
	Path    string `json:"path" jsonschema_description:"Absolute path in the VM." brief:"Absolute."`
	Content string `json:"content" jsonschema_description:"Content, base64 (standard, padded)." api:"content_base64" brief:"Base64."`
	Mode    string `json:"mode,omitempty" jsonschema_description:"Octal permissions, e.g. 0755. Default 0644." brief:"Default 0644."`
}

// Data decodes the content, which Validate has checked.
func (f File) Data() ([]byte, error) { return base64.StdEncoding.DecodeString(f.Content) }

// StdinMode says whether a task takes input while it runs.
type StdinMode string

// The stdin modes.
const (
	StdinClosed StdinMode = "closed"
	StdinOpen   StdinMode = "open"
)

// Defaults are filled into a manifest's empty fields.
type Defaults struct {
	VMTemplate string
	Timeout    int // seconds
	CPU        int
	Memory     string
	Disk       string

	Egress      vm.Egress // empty: vm.EgressLAN
	EgressNames []string  // of jobs with vm.EgressAllow and no names of their own
}

// Complete checks a manifest and returns it with every default.
func (m Manifest) Complete(d Defaults) (Manifest, error) {
	if err := m.Validate(); err != nil {
		return m, err
	}
	m = m.WithDefaults(d)
	if err := m.Validate(); err != nil {
		return m, fmt.Errorf("a configured default is wrong: %w", err)
	}
	return m, nil
}

// WithDefaults returns m with every empty field that has a default filled in.
func (m Manifest) WithDefaults(d Defaults) Manifest {
	orDefault(&m.Timeout, d.Timeout)
	orDefault(&m.StatusMode, StatusSimple)
	if m.Retry != "" {
		orDefault(&m.Retries, 1)
	}
	if m.Keep.Keeps() {
		orDefault(&m.KeepFor, defaultKeepFor)
		orDefault(&m.IdleSuspend, defaultKeptIdle)
	}
	if m.VM != "" {
		return m // an existing VM keeps its size
	}
	if m.OS == "" {
		orDefault(&m.VMTemplate, d.VMTemplate)
	}
	orDefault(&m.Resources.CPU, d.CPU)
	orDefault(&m.Resources.Memory, d.Memory)
	orDefault(&m.Resources.Disk, d.Disk)
	orDefault(&m.Lifecycle, vm.Ephemeral)
	m.Network = networkDefaults(m.Network, d)
	return m
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

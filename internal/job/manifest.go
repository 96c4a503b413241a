package job

import (
	"encoding/base64"
	"fmt"

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

	// maxArgument is the most that the kernel takes as one argument of a program, or as one
	// NAME=value of its environment, in bytes without the closing NUL.
	maxArgument = 128<<10 - 1
)

// AgentType is what runs the task.
type AgentType string

// The agents.
const (
	AgentClaude AgentType = "claude" // and the others of package agent: the agent gets the task as its prompt
	AgentScript AgentType = "script" // the task is a bash script, or feeds agent.command
	AgentCustom AgentType = "custom" // agent.command, the task on its stdin
)

// Agent returns the agent of a type; false if the type has none.
func (t AgentType) Agent() (agent.Agent, bool) { return agent.Named(string(t)) }

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
	Task        string            `json:"task" api:",required"`
	AgentType   AgentType         `json:"agentType" api:"agent_type,required"`
	Agent       Agent             `json:"agent,omitzero"`
	Files       []File            `json:"files,omitempty"`
	Repository  Repository        `json:"repository,omitzero"`
	Push        Push              `json:"push,omitzero"`
	Env         map[string]string `json:"env,omitempty"`
	Secrets     []string          `json:"secrets,omitempty"`
	Artifacts   []string          `json:"artifacts,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	Sudo        bool              `json:"sudo,omitempty"`
	Stdin       StdinMode         `json:"stdin,omitempty"`
	TTY         bool              `json:"tty,omitempty"`
	TTYSize     string            `json:"ttySize,omitempty" api:"tty_size"`
	Resources   vm.Resources      `json:"resources,omitzero"`
	Timeout     int               `json:"timeout,omitempty" api:"timeout_seconds"`
	Lifecycle   vm.Lifecycle      `json:"lifecycle,omitempty"`
	Keep        KeepMode          `json:"keep,omitempty"`
	KeepFor     int               `json:"keepFor,omitempty" api:"keep_for_seconds"`
	VM          string            `json:"vm,omitempty"`
	VMName      string            `json:"vmName,omitempty" api:"vm_name"`
	TTL         int               `json:"ttl,omitempty" api:"ttl_seconds"`
	AtEnd       vm.End            `json:"atEnd,omitempty" api:"at_end"`
	IdleSuspend int               `json:"idleSuspend,omitempty" api:"idle_suspend_seconds"`
	VMTemplate  string            `json:"vmTemplate,omitempty" api:"template"`
	OS          string            `json:"os,omitempty"`
	Start       StartMode         `json:"start,omitempty"`
	Volumes     []vm.Mount        `json:"volumes,omitempty"`
	Retry       RetryMode         `json:"retry,omitempty"`
	Retries     int               `json:"retries,omitempty"`
	Network     vm.Network        `json:"network,omitzero"`
	Labels      map[string]string `json:"labels,omitempty"`
	Notify      *Notify           `json:"notify,omitempty"`
	StatusMode  StatusMode        `json:"statusMode,omitempty" api:"status_mode"`
	Matrix      []string          `json:"matrix,omitempty"`
	Shards      int               `json:"shards,omitempty"`
	FailFast    bool              `json:"failFast,omitempty" api:"fail_fast"`

	Credentials []string `json:"credentials,omitempty"`
}

// KeepMode says when a job's own VM stays instead of being destroyed.
type KeepMode string

// The keep modes.
const (
	KeepNever     KeepMode = "never"
	KeepOnFailure KeepMode = "on_failure" // the task has failed or timed out, and the VM responds
	KeepAlways    KeepMode = "always"     // the same, also if the task has succeeded
)

// Keeps reports whether the VM may stay.
func (k KeepMode) Keeps() bool { return k == KeepOnFailure || k == KeepAlways }

// Defaults for a VM that is kept, in seconds.
const (
	defaultKeepFor  = 3600
	defaultKeptIdle = 600
)

// RetryMode says when a lost job is retried.
type RetryMode string

// The retry modes.
const (
	RetryLost    RetryMode = "lost"    // once its VM is proven gone: the task never runs twice at once
	RetryOffline RetryMode = "offline" // also while its VM's node is offline: the task may run twice
)

// Agent holds the agent's options.
type Agent struct {
	Command     string `json:"command,omitempty"`
	Model       string `json:"model,omitempty"`
	ClaudeModel string `json:"claudeModel,omitempty" api:"claude_model"`
}

// File is one file put into the VM.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content" api:"content_base64"`
	Mode    string `json:"mode,omitempty"`
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

// Defaults are the values for a manifest's empty fields.
type Defaults struct {
	VMTemplate string
	Timeout    int // seconds
	CPU        int
	Memory     string
	Disk       string

	Egress      vm.Egress // empty: vm.EgressLAN
	EgressNames []string  // for jobs with vm.EgressAllow and no names of their own
}

// Complete validates a manifest and returns it with all defaults filled in.
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

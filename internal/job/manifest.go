package job

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
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
	AgentClaude AgentType = "claude" // the Claude CLI, the task as its prompt
	AgentScript AgentType = "script" // the task is a bash script, or feeds agent.command
	AgentCustom AgentType = "custom" // agent.command, the task on its stdin
)

// Lifecycle says what happens to the VM when the job ends.
type Lifecycle string

// The lifecycles.
const (
	Ephemeral  Lifecycle = "ephemeral"
	Persistent Lifecycle = "persistent"

	Pooled Lifecycle = "pooled" // a pool's VM waits for a job; no manifest of a client may say so
)

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
	Task       string            `json:"task" jsonschema_description:"What to run, byte for byte, at most 1 MiB. For agentType script without agent.command: a bash script. For custom: the command's stdin. For claude: the prompt."`
	AgentType  AgentType         `json:"agentType" jsonschema:"enum=claude,enum=script,enum=custom" jsonschema_description:"script runs the task in bash; custom runs agent.command with the task on stdin; claude runs the Claude CLI with the task as its prompt."`
	Agent      Agent             `json:"agent,omitzero" jsonschema_description:"Options of the agent."`
	Files      []File            `json:"files,omitempty" jsonschema_description:"Files to copy into the VM before the task starts: at most 20000, and 64 MiB together. For more, use an archive that the task unpacks."`
	Env        map[string]string `json:"env,omitempty" jsonschema_description:"Environment variables of the task. Values arrive byte for byte, at most 128 KiB each and 1 MiB together. Not for secrets."`
	Secrets    []string          `json:"secrets,omitempty" jsonschema_description:"Names of secrets configured on the server; each becomes an environment variable of the task and is masked in its output."`
	Artifacts  []string          `json:"artifacts,omitempty" jsonschema_description:"Files to collect when the task ends, successfully or not: paths or patterns such as dist/** from the working directory, or absolute."`
	Cwd        string            `json:"cwd,omitempty" jsonschema_description:"Absolute directory the task runs in. Default: the VM user's home."`
	Sudo       bool              `json:"sudo,omitempty" jsonschema_description:"Run the task as root."`
	Stdin      StdinMode         `json:"stdin,omitempty" jsonschema:"enum=closed,enum=open" jsonschema_description:"open: the task's stdin takes input while it runs; all of it is kept on the VM's disk until the job ends. Default closed."`
	TTY        bool              `json:"tty,omitempty" jsonschema_description:"Run the task on a terminal; its stderr is then part of stdout."`
	TTYSize    string            `json:"ttySize,omitempty" jsonschema_description:"ROWSxCOLUMNS of the terminal. Default 24x80."`
	Resources  Resources         `json:"resources,omitzero" jsonschema_description:"Size of the VM."`
	Timeout    int               `json:"timeout,omitempty" jsonschema:"minimum=1,maximum=86400" jsonschema_description:"The task's time limit in seconds, 1 to 86400. Default 3600."`
	Lifecycle  Lifecycle         `json:"lifecycle,omitempty" jsonschema:"enum=ephemeral,enum=persistent" jsonschema_description:"ephemeral (default): the VM is destroyed at the end. persistent: it stays."`
	VM         string            `json:"vm,omitempty" jsonschema_description:"Name or ID of a persistent VM of ours to run in, instead of a new one."`
	VMName     string            `json:"vmName,omitempty" jsonschema_description:"Name of the new VM when it is persistent."`
	TTL        int               `json:"ttl,omitempty" jsonschema:"minimum=60,maximum=31536000" jsonschema_description:"Seconds after which a persistent VM is destroyed, once no job runs in it. Default: never."`
	VMTemplate string            `json:"vmTemplate,omitempty" jsonschema_description:"Name or VM ID of the Proxmox template to clone. Default agent-template."`
	OS         string            `json:"os,omitempty" jsonschema:"enum=@systems" jsonschema_description:"Create the VM from this operating system's cloud image instead of a template."`
	Start      StartMode         `json:"start,omitempty" jsonschema:"enum=any,enum=cold" jsonschema_description:"any (default): a VM of a pool if one like this is ready, which saves the boot. cold: always a new VM."`
	Retry      RetryMode         `json:"retry,omitempty" jsonschema:"enum=lost,enum=offline" jsonschema_description:"lost: rerun it, as a new job, when its VM is gone. offline: or its node offline (may run twice)."`
	Retries    int               `json:"retries,omitempty" jsonschema:"minimum=1,maximum=5" jsonschema_description:"Default 1."`
	Network    Network           `json:"network,omitzero" jsonschema_description:"The VM's network, where it differs from the server's settings."`
	StatusMode StatusMode        `json:"statusMode,omitempty" jsonschema:"enum=simple,enum=detailed,enum=streaming" jsonschema_description:"simple (default): output at the end. detailed: progress and output every few seconds. streaming: output as it is written."`
}

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
	Command     string `json:"command,omitempty" jsonschema_description:"Shell command that runs the task (given on stdin, and as $LINUS_TASK_FILE). Required for custom."`
	ClaudeModel string `json:"claudeModel,omitempty" jsonschema_description:"claude: passed as --model."`
}

// File is one file put into the VM.
type File struct {
	Path    string `json:"path" jsonschema_description:"Absolute path in the VM."`
	Content string `json:"content" jsonschema_description:"Content, base64 (standard, padded)."`
	Mode    string `json:"mode,omitempty" jsonschema_description:"Octal permissions, e.g. 0755. Default 0644."`
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

// Network says how a new VM is connected; empty fields are the server's settings.
type Network struct {
	Bridge  string `json:"bridge,omitempty" jsonschema_description:"Bridge of the host, e.g. vmbr0."`
	VLAN    int    `json:"vlan,omitempty" jsonschema:"minimum=1,maximum=4094" jsonschema_description:"VLAN tag."`
	IP      string `json:"ip,omitempty" jsonschema_description:"dhcp, auto6 or dhcp6, an address with its prefix length (10.0.0.50/24), or a pool of them (10.0.0.50-10.0.0.99/24)."`
	Gateway string `json:"gateway,omitempty" jsonschema_description:"Gateway of a fixed address."`
}

// Resources sizes the VM.
type Resources struct {
	CPU    int    `json:"cpu,omitempty" jsonschema:"minimum=1,maximum=32" jsonschema_description:"Cores, 1 to 32. Default 2."`
	Memory string `json:"memory,omitempty" jsonschema_description:"Memory, e.g. 2G or 512M; 512M to 512G. Default 2G."`
	Disk   string `json:"disk,omitempty" jsonschema_description:"Disk, e.g. 10G; 5G to 10000G. Default 10G."`
}

// Defaults are filled into a manifest's empty fields.
type Defaults struct {
	VMTemplate string
	Timeout    int // seconds
	CPU        int
	Memory     string
	Disk       string
}

// WithDefaults returns m with every empty field that has a default filled in.
func (m Manifest) WithDefaults(d Defaults) Manifest {
	orDefault(&m.Timeout, d.Timeout)
	orDefault(&m.StatusMode, StatusSimple)
	if m.Retry != "" {
		orDefault(&m.Retries, 1)
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
	orDefault(&m.Lifecycle, Ephemeral)
	return m
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

var (
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	sizeText   = regexp.MustCompile(`^[1-9][0-9]*[GMK]$`)
	modeText   = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	modelText  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)
	ttySize    = regexp.MustCompile(`^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$`)
	dnsLabel   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	bridgeName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)
	vmTemplate = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`) // a name or a VM ID
)

// fits reports whether a text has a form and at most so many bytes. A bound within the
// pattern would make it slow to compile, and every process starts with that.
func fits(form *regexp.Regexp, text string, most int) bool {
	return len(text) <= most && form.MatchString(text)
}

// reserved names belong to the runner: a job that set them would mislead it.
var reserved = []string{"LINUS_JOB_ID", "LINUS_TASK_FILE", "LINUS_ROOT"}

// Bounds of a VM's size in bytes.
const (
	kib       = int64(1) << 10
	mib       = int64(1) << 20
	gib       = int64(1) << 30
	minMemory = 512 * mib
	maxMemory = 512 * gib
	minDisk   = 5 * gib
	maxDisk   = 10000 * gib
)

// ParseSize reads sizes as manifests write them (`10G`, `512M`, `2048K`; powers
// of 1024) and returns bytes.
func ParseSize(s string) (int64, error) {
	if !sizeText.MatchString(s) {
		return 0, fmt.Errorf("%q is not a size: write a whole number and G, M or K, as in 2G", s)
	}
	n, err := strconv.ParseInt(s[:len(s)-1], 10, 64)
	unit := map[byte]int64{'K': kib, 'M': mib, 'G': gib}[s[len(s)-1]]
	if err != nil || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return n * unit, nil
}

// Validate reports everything wrong with m as an *InvalidError, each field by
// its path below "manifest". Empty fields that have defaults are fine.
func (m Manifest) Validate() error {
	var bad []*FieldError
	add := func(f *FieldError) {
		if f != nil {
			bad = append(bad, f)
		}
	}
	switch {
	case strings.TrimSpace(m.Task) == "":
		add(field("manifest.task", "give the text to run", "is required and must not be blank"))
	case len(m.Task) > MaxTask:
		add(field("manifest.task", "put large content into files", "is %d bytes, the limit is %d", len(m.Task), MaxTask))
	case !utf8.ValidString(m.Task) || strings.ContainsRune(m.Task, 0):
		add(field("manifest.task", "put binary content into files", "has a NUL byte or is not valid UTF-8"))
	}
	add(oneOf("manifest.agentType", m.AgentType, true, AgentClaude, AgentScript, AgentCustom))
	add(oneOf("manifest.lifecycle", m.Lifecycle, false, Ephemeral, Persistent))
	add(oneOf("manifest.start", m.Start, false, StartAny, StartCold))
	add(oneOf("manifest.statusMode", m.StatusMode, false, StatusSimple, StatusDetailed, StatusStreaming))
	add(oneOf("manifest.retry", m.Retry, false, RetryLost, RetryOffline))
	if m.Retries < 0 || m.Retries > MaxRetries {
		add(field("manifest.retries", "give 1 to 5", "%d is out of range", m.Retries))
	} else if m.Retries > 0 && m.Retry == "" {
		add(field("manifest.retries", "remove it, or set retry to lost", "has no meaning without retry"))
	}
	bad = append(bad, m.Agent.validate(m.AgentType)...)
	bad = append(bad, validateFiles(m.Files)...)
	bad = append(bad, validateEnv(m.Env)...)
	bad = append(bad, validateSecrets(m.Secrets, m.Env)...)
	bad = append(bad, validateArtifacts(m.Artifacts)...)
	bad = append(bad, m.validateTerminal()...)
	bad = append(bad, m.Resources.validate()...)
	if m.Timeout < 0 || m.Timeout > MaxTimeout {
		add(field("manifest.timeout", "give seconds from 1 to 86400", "%d is out of range", m.Timeout))
	}
	if m.VMTemplate != "" && !fits(vmTemplate, m.VMTemplate, 63) {
		add(field("manifest.vmTemplate", "give a template's name (letters, digits, dots, dashes) or its VM ID", "%q is neither", m.VMTemplate))
	}
	bad = append(bad, m.validateVM()...)
	if len(bad) > 0 {
		return &InvalidError{Fields: bad}
	}
	return nil
}

func oneOf[T ~string](name string, v T, required bool, valid ...T) *FieldError {
	words := make([]string, len(valid))
	for i, w := range valid {
		words[i] = string(w)
	}
	remedy := "use one of: " + strings.Join(words, ", ")
	if v == "" && required {
		return field(name, remedy, "is required")
	}
	if v != "" && !slices.Contains(valid, v) {
		return field(name, remedy, "%q is unknown", string(v))
	}
	return nil
}

func (a Agent) validate(t AgentType) []*FieldError {
	var bad []*FieldError
	switch {
	case t == AgentCustom && strings.TrimSpace(a.Command) == "":
		bad = append(bad, field("manifest.agent.command", "give the shell command to run, the task is its stdin", "is required for agentType custom"))
	case t == AgentClaude && a.Command != "":
		bad = append(bad, field("manifest.agent.command", "remove it, or use agentType custom", "has no meaning for agentType claude"))
	case len(a.Command) > maxArgument:
		bad = append(bad, field("manifest.agent.command", "put long scripts into task or files", "is %d bytes, the limit is %d", len(a.Command), maxArgument))
	case strings.ContainsRune(a.Command, 0) || !utf8.ValidString(a.Command):
		bad = append(bad, field("manifest.agent.command", "write text", "has a NUL byte or is not valid UTF-8"))
	}
	if a.ClaudeModel != "" && t != "" && t != AgentClaude {
		bad = append(bad, field("manifest.agent.claudeModel", "remove it", "has no meaning for agentType %s", t))
	} else if a.ClaudeModel != "" && !fits(modelText, a.ClaudeModel, 128) {
		bad = append(bad, field("manifest.agent.claudeModel", "give a model name such as sonnet", "%q is not a model name", a.ClaudeModel))
	}
	return bad
}

func validateFiles(files []File) []*FieldError {
	var bad []*FieldError
	if len(files) > MaxFileCount {
		return []*FieldError{field("manifest.files", "pack them into an archive, and unpack that in the task", "are %d, the limit is %d", len(files), MaxFileCount)}
	}
	seen := map[string]bool{}
	total, paths := 0, 0
	for i, f := range files {
		at := fmt.Sprintf("manifest.files[%d]", i)
		switch {
		case f.Path == "":
			bad = append(bad, field(at+".path", "give an absolute path", "is required"))
		case !path.IsAbs(f.Path) || strings.HasSuffix(f.Path, "/") || strings.HasSuffix(f.Path, "/."):
			bad = append(bad, field(at+".path", "give the absolute path of a file, as in /root/input.csv", "%q is not an absolute file path", f.Path))
		case slices.Contains(strings.Split(f.Path, "/"), ".."):
			bad = append(bad, field(at+".path", "write the path out", "%q contains \"..\"", f.Path))
		case strings.ContainsAny(f.Path, "\n\r\x00") || !utf8.ValidString(f.Path):
			bad = append(bad, field(at+".path", "use a plain path", "%q contains a newline or a control character", f.Path))
		case len(f.Path) > 4096:
			bad = append(bad, field(at+".path", "use a shorter path", "is %d bytes, the limit is 4096", len(f.Path)))
		case seen[path.Clean(f.Path)]:
			bad = append(bad, field(at+".path", "name each file once", "%q is a duplicate", f.Path))
		}
		seen[path.Clean(f.Path)] = true
		if paths += len(f.Path); paths > MaxPaths {
			bad = append(bad, field("manifest.files", "pack them into an archive, and unpack that in the task", "have paths of more than %d bytes together", MaxPaths))
			break
		}
		data, err := f.Data()
		if err != nil {
			bad = append(bad, field(at+".content", "encode the content as standard base64", "is not base64: %v", err))
		}
		if total += len(data); total > MaxFiles {
			bad = append(bad, field("manifest.files", "fetch large inputs from inside the job", "are more than %d bytes together", MaxFiles))
			break
		}
		if f.Mode != "" && !modeText.MatchString(f.Mode) {
			bad = append(bad, field(at+".mode", "give octal permissions, as in 0644", "%q is not a mode", f.Mode))
		}
	}
	return bad
}

func validateEnv(env map[string]string) []*FieldError {
	var bad []*FieldError
	total := 0
	for _, name := range sortedKeys(env) {
		if total += len(name) + len("=") + len(env[name]); total > MaxEnv {
			bad = append(bad, field("manifest.env", "use files for large content", "is more than %d bytes together", MaxEnv))
			break
		}
		at := "manifest.env." + name
		switch {
		case !envName.MatchString(name):
			bad = append(bad, field("manifest.env", "use letters, digits and _, not starting with a digit", "%q is not a variable name", name))
		case slices.Contains(reserved, name):
			bad = append(bad, field(at, "choose another name", "is reserved for the job runner"))
		case strings.ContainsRune(env[name], 0):
			bad = append(bad, field(at, "use files for binary content", "has a NUL byte"))
		case len(name)+len("=")+len(env[name]) > maxArgument:
			bad = append(bad, field(at, "use files for large content", "is %d bytes, the limit is 128 KiB", len(env[name])))
		}
	}
	return bad
}

func (r Resources) validate() []*FieldError {
	var bad []*FieldError
	if r.CPU < 0 || r.CPU > MaxCPU {
		bad = append(bad, field("manifest.resources.cpu", "give 1 to 32", "%d is out of range", r.CPU))
	}
	size := func(name, v string, lo, hi int64, rule string) {
		if v == "" {
			return
		}
		n, err := ParseSize(v)
		switch {
		case err != nil:
			bad = append(bad, field(name, "give "+rule, "%v", err))
		case n < lo || n > hi:
			bad = append(bad, field(name, "give "+rule, "%q is out of range", v))
		}
	}
	size("manifest.resources.memory", r.Memory, minMemory, maxMemory, "512M to 512G, as in 2G")
	size("manifest.resources.disk", r.Disk, minDisk, maxDisk, "5G to 10000G, as in 20G")
	return bad
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package job

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

var (
	envName    = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	sizeText   = lazyregexp.New(`^[1-9][0-9]*[GMK]$`)
	modeText   = lazyregexp.New(`^0?[0-7]{3,4}$`)
	modelText  = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)
	ttySize    = lazyregexp.New(`^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$`)
	dnsLabel   = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	bridgeName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_.-]{0,14}$`)
	vmTemplate = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`) // a name or a VM ID
)

// fits reports whether a text has a form and at most so many bytes. A bound within the
// pattern would make it slow to compile, and every process starts with that.
func fits(form *lazyregexp.Regexp, text string, most int) bool {
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

// SizeMB returns a size of a manifest in MiB, rounded up; 0 for a text that is none.
func SizeMB(size string) int {
	n, err := ParseSize(size)
	if err != nil {
		return 0
	}
	return int((n + mib - 1) / mib)
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
	add(oneOf("manifest.agentType", m.AgentType, true, agentTypes()...))
	add(oneOf("manifest.lifecycle", m.Lifecycle, false, vm.Ephemeral, vm.Persistent))
	add(oneOf("manifest.keep", m.Keep, false, KeepNever, KeepOnFailure, KeepAlways))
	add(oneOf("manifest.start", m.Start, false, StartAny, StartRestore, StartCold))
	add(oneOf("manifest.statusMode", m.StatusMode, false, StatusSimple, StatusDetailed, StatusStreaming))
	add(oneOf("manifest.retry", m.Retry, false, RetryLost, RetryOffline))
	add(m.Notify.validate())
	if m.Retries < 0 || m.Retries > MaxRetries {
		add(field("manifest.retries", "give 1 to 5", "%d is out of range", m.Retries))
	} else if m.Retries > 0 && m.Retry == "" {
		add(field("manifest.retries", "remove it, or set retry to lost", "has no meaning without retry"))
	}
	bad = append(bad, m.Agent.validate(m.AgentType)...)
	bad = append(bad, validateFiles(m.Files)...)
	bad = append(bad, validateEnv(m.Env)...)
	bad = append(bad, validateLabels(m.Labels)...)
	bad = append(bad, validateSecrets(m.Secrets, m.Env)...)
	bad = append(bad, validateCredentials(m.Credentials)...)
	bad = append(bad, validateArtifacts(m.Artifacts)...)
	bad = append(bad, m.validateRepository()...)
	bad = append(bad, m.validateTerminal()...)
	bad = append(bad, validateResources(m.Resources)...)
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
	if v == "" && !required || slices.Contains(valid, v) {
		return nil
	}
	remedy := "use one of: " + strings.Join(words(valid), ", ")
	if v == "" {
		return field(name, remedy, "is required")
	}
	return field(name, remedy, "%q is unknown", string(v))
}

func (a Agent) validate(t AgentType) []*FieldError {
	var bad []*FieldError
	_, known := t.Agent()
	switch {
	case t == AgentCustom && strings.TrimSpace(a.Command) == "":
		bad = append(bad, field("manifest.agent.command", "give the shell command to run, the task is its stdin", "is required for agentType custom"))
	case known && a.Command != "" && !strings.Contains(a.Command, `"$@"`):
		bad = append(bad, field("manifest.agent.command", `write "$@" where the agent is to run, as in cd /srv/app && exec "$@", or use agentType custom`, "does not start the agent"))
	case len(a.Command) > maxArgument:
		bad = append(bad, field("manifest.agent.command", "put long scripts into task or files", "is %d bytes, the limit is %d", len(a.Command), maxArgument))
	case strings.ContainsRune(a.Command, 0) || !utf8.ValidString(a.Command):
		bad = append(bad, field("manifest.agent.command", "write text", "has a NUL byte or is not valid UTF-8"))
	}
	if a.Model != "" && a.ClaudeModel != "" {
		bad = append(bad, field("manifest.agent.claudeModel", "remove it", "is given beside model"))
	}
	for _, m := range []struct {
		name, model string
		fits        bool
	}{{"model", a.Model, known}, {"claudeModel", a.ClaudeModel, t == AgentClaude}} {
		switch at := "manifest.agent." + m.name; {
		case m.model != "" && t != "" && !m.fits:
			bad = append(bad, field(at, "remove it", "has no meaning for agentType %s", t))
		case m.model != "" && !fits(modelText, m.model, 128):
			bad = append(bad, field(at, "give a model's name, such as sonnet", "%q is not a model name", m.model))
		}
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

func validateResources(r vm.Resources) []*FieldError {
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

package job

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	spec "linus/internal/field"
	"linus/internal/lazyregexp"
)

var (
	envName  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	sizeText = lazyregexp.New(`^[1-9][0-9]*[GMK]$`)
	modeText = lazyregexp.New(`^0?[0-7]{3,4}$`)
)

// fits reports whether a text has a form and at most so many bytes. A bound within the pattern would
// make it slow to compile, and every process starts with that.
func fits(form *lazyregexp.Regexp, text string, most int) bool {
	return len(text) <= most && form.MatchString(text)
}

// reserved names belong to the runner: a job that sets them would mislead it.
var reserved = []string{"LINUS_JOB_ID", "LINUS_TASK_FILE", "LINUS_ROOT"}

// Units of a VM's size, in bytes.
const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// ParseSize parses sizes as in manifests (`10G`, `512M`, `2048K`; powers of 1024) and returns bytes.
func ParseSize(s string) (int64, error) {
	if !sizeText.MatchString(s) {
		return 0, fmt.Errorf("%q is not a size: write a whole number and G, M or K, as in 2G", s)
	}
	n, err := strconv.ParseInt(s[:len(s)-1], 10, 64)
	unit := gib
	switch s[len(s)-1] {
	case 'K':
		unit = kib
	case 'M':
		unit = mib
	}
	if err != nil || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return n * unit, nil
}

// SizeMB returns a size of a manifest in MiB, rounded up; 0 for an invalid size.
func SizeMB(size string) int {
	n, err := ParseSize(size)
	if err != nil {
		return 0
	}
	return int((n + mib - 1) / mib)
}

// Validate reports everything wrong with m as an *InvalidError, with each field's path below
// "manifest", in the order of the table. Empty fields that have defaults are fine. It adds only
// checks that the rows of fields do not make.
func (m Manifest) Validate() error {
	rows := manifestRows()
	bad := checkRows("manifest.", rows, m)
	for _, more := range [][]*FieldError{
		m.validateTask(), m.validateAgent(), validateFiles(m.Files), validateEnv(m.Env), validateLabels(m.Labels), validateSecrets(m.Secrets, m.Env),
		validateCredentials(m.Credentials), validateArtifacts(m.Artifacts), m.validateRepository(), m.Notify.validate(),
	} {
		bad = append(bad, more...)
	}
	if m.FansOut() {
		_, more := m.axes()
		bad = append(bad, more...)
	}
	if m.VM == "" {
		for _, more := range [][]*FieldError{validateName(m.VMName), validateNetwork(m.Network), validateVolumes(m.Volumes)} {
			bad = append(bad, more...)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	order := func(f *FieldError) int {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.Field, "manifest."), "[")
		return slices.IndexFunc(rows, func(row *spec.Row) bool {
			return row.Name == name || strings.HasPrefix(name, row.Name+".") && row.Label != ""
		})
	}
	slices.SortStableFunc(bad, func(a, b *FieldError) int { return cmp.Compare(order(a), order(b)) })
	return &InvalidError{Fields: bad}
}

func (m Manifest) validateTask() []*FieldError {
	switch {
	case strings.TrimSpace(m.Task) == "":
		return []*FieldError{field("manifest.task", "give the text to run", "is required and must not be blank")}
	case len(m.Task) > MaxTask:
		return []*FieldError{field("manifest.task", "put large content into manifest.files", "is %d bytes, the limit is %d", len(m.Task), MaxTask)}
	case !utf8.ValidString(m.Task) || strings.ContainsRune(m.Task, 0):
		return []*FieldError{field("manifest.task", "put binary content into manifest.files", "has a NUL byte or is not valid UTF-8")}
	}
	return nil
}

// OneOf returns what is wrong with a word that must be one of valid, or may be empty unless it is
// required; nil if nothing is wrong.
func OneOf[T ~string](name string, v T, required bool, valid ...T) *FieldError {
	if v == "" && !required || slices.Contains(valid, v) {
		return nil
	}
	remedy := "use one of: " + strings.Join(spec.Words(valid), ", ")
	if v == "" {
		return field(name, remedy, "is required")
	}
	return field(name, remedy, "%q is unknown", string(v))
}

func (m Manifest) validateAgent() []*FieldError {
	const at = "manifest.agent.command"
	_, known := m.AgentType.Agent()
	switch command := m.Agent.Command; {
	case m.AgentType == AgentCustom && strings.TrimSpace(command) == "":
		return []*FieldError{field(at, "give the shell command to run, the task is its stdin", "is required for agentType custom")}
	case known && command != "" && !strings.Contains(command, `"$@"`):
		return []*FieldError{field(at, `write "$@" where the agent is to run, as in cd /srv/app && exec "$@", or use agentType custom`, "does not start the agent")}
	case len(command) > maxArgument:
		return []*FieldError{field(at, "put long scripts into manifest.task or manifest.files", "is %d bytes, the limit is %d", len(command), maxArgument)}
	case strings.ContainsRune(command, 0) || !utf8.ValidString(command):
		return []*FieldError{field(at, "write text", "has a NUL byte or is not valid UTF-8")}
	}
	return nil
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

func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}

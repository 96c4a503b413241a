package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/config"
	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/view"
)

// Most files of code in which what is added may stand: a field of a manifest, a verb, a setting.
const (
	mostOfField   = 6
	mostOfVerb    = 7
	mostOfSetting = 4
)

// A field of a manifest stands in its struct, in its row, and where something is done with it. What
// stands in more has a reason here: its name is a word of other things, or it is more than a field.
func TestCount_AFieldStandsInFewFiles(t *testing.T) {
	t.Parallel()
	elsewhere := map[string][]string{
		"its name is that of other things, too": {"agent.command", "agentType", "artifacts", "credentials", "env", "files", "keep", "labels", "lifecycle", "network.allow", "network.bridge", "network.egress", "network.gateway", "network.ip", "notify.url", "os", "repository.credential", "repository.lfs", "repository.path", "repository.ref", "repository.url", "resources.cpu", "resources.disk", "resources.memory", "retry", "secrets", "start", "stdin", "task", "timeout", "tty", "vm", "vmTemplate", "volumes"},
		"a VM has it, too":                      {"atEnd", "idleSuspend", "network.vlan", "ttl", "vmName"},
		"it says what each face shows":          {"statusMode"},
	}
	standsIn(t, mostOfField, elsewhere, func(yield func(name string, words ...string)) {
		for _, f := range field.All() {
			if f.Label == "" {
				continue
			}
			of, path := reflect.TypeFor[job.Manifest](), strings.Split(f.Name, ".")
			var found reflect.StructField
			for _, name := range path {
				if of.Kind() == reflect.Pointer {
					of = of.Elem()
				}
				for inner := range of.Fields() {
					if own, _, _ := strings.Cut(inner.Tag.Get("json"), ","); own == name {
						found = inner
					}
				}
				of = found.Type
			}
			shown := strings.Split(view.Path(reflect.TypeFor[job.Manifest](), f.Name), ".")
			names := []string{found.Name}
			for _, name := range []string{path[len(path)-1], shown[len(shown)-1], f.Flag} {
				if compound(name) {
					names = append(names, name)
				}
			}
			yield(f.Name, names...)
		}
	})
}

// A setting stands in its row, where it is given to what it is for, and there.
func TestCount_ASettingStandsInFewFiles(t *testing.T) {
	t.Parallel()
	standsIn(t, mostOfSetting, map[string][]string{
		"what is wrong elsewhere is told with its name, or scripts have it, too": {"VM", "PROXMOX_HOST", "PROXMOX_SSH_USER", "PROXMOX_SSH_KEY_PATH", "PROXMOX_KNOWN_HOSTS", "PROXMOX_NODE", "PROXMOX_NODES", "PROXMOX_STORAGE", "PROXMOX_BRIDGE", "PROXMOX_VLAN_TAG", "PROXMOX_TOOLS", "VM_SSH_USER", "VM_SSH_PORT", "VM_IP_CONFIG", "VM_GATEWAY", "VM_NAMESERVERS", "VM_NETWORK_TIMEOUT", "VM_READY_TIMEOUT", "VM_ROUTED", "VM_TRUST_FIRST_USE", "CALLBACK_HOST", "CALLBACK_URL", "HTTP_ADDR", "HTTP_TOKEN", "HTTP_URL", "OIDC_ISSUER", "WEBHOOK_URL", "DEFAULT_VM_TEMPLATE", "DEFAULT_MEMORY", "DEFAULT_DISK", "DEFAULT_EGRESS", "MAX_JOBS", "CHECKPOINTS", "MAX_OUTPUT_SIZE", "HEARTBEAT_THRESHOLD_SECONDS", "CLEANUP_INTERVAL_SECONDS", "ALLOWED_COMMANDS", "LINUS_STATE_DIR", "LINUS_DATABASE_URL", "LINUS_SERVER", "LINUS_LOG_LEVEL", "LINUS_ENV_FILE"},
	}, func(yield func(name string, words ...string)) {
		for f := range reflect.TypeFor[config.Config]().Fields() {
			if name := f.Tag.Get("envconfig"); name != "" {
				yield(name, name, f.Name)
			}
		}
	})
}

// A verb stands where it is declared, in its row, where it is done, and in each face.
func TestCount_AVerbStandsInFewFiles(t *testing.T) {
	t.Parallel()
	standsIn(t, mostOfVerb, map[string][]string{
		"the host does it: the provider has it, too, its audit log and its cluster; or its name is that of other things": {"OpenArtifact", "CreateVM", "StartVM", "StopVM", "DestroyVM", "ForgetVM", "SuspendVM", "ResumeVM", "ForkVM", "SnapshotVM", "RevertVM", "ListSnapshots", "DeleteSnapshot", "SaveVM", "ListFiles", "ReadFile", "WriteFile", "DialVM", "ExposePort", "CreatePool", "CreateVolume", "RemoveVolume", "AttachVolume", "DetachVolume", "CheckHost", "HostTests"},
	}, func(yield func(name string, words ...string)) {
		for _, v := range job.Verbs() {
			if compound(v.Name) {
				yield(v.Name, v.Name, "Verb"+v.Name)
			}
		}
	})
}

// standsIn fails for what stands in more than most files of code, unless its names stand elsewhere,
// and for what is said to and does not.
func standsIn(t *testing.T, most int, elsewhere map[string][]string, all func(yield func(name string, words ...string))) {
	t.Helper()
	files := wordsOfCode(t)
	all(func(name string, words ...string) {
		var in []string
		for file, has := range files {
			if slices.ContainsFunc(words, func(word string) bool { return word != "" && has[word] }) {
				in = append(in, file)
			}
		}
		slices.Sort(in)
		said := false
		for _, names := range elsewhere {
			said = said || slices.Contains(names, name)
		}
		switch {
		case len(in) > most && !said:
			t.Errorf("%s stands in %d files, the limit is %d: %s", name, len(in), most, strings.Join(in, " "))
		case len(in) <= most && said:
			t.Errorf("%s stands in %d files: it is not to be excepted here", name, len(in))
		}
	})
}

// compound reports whether a name is of several words, which nothing else has by chance.
func compound(name string) bool {
	inner := strings.TrimLeft(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	return strings.ContainsAny(inner, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_-")
}

var word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*`)

// wordsOfCode are the words in each file of the product's own code: not of its tests, the lab, or
// what is generated.
func wordsOfCode(t *testing.T) map[string]map[string]bool {
	t.Helper()
	files := map[string]map[string]bool{}
	for _, dir := range []string{"cmd/linus", "internal", "scripts"} {
		err := filepath.WalkDir(filepath.Join(repository, filepath.FromSlash(dir)), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && slices.Contains([]string{"lab", "test", "testdata", "static", "e2e", "bench", "providertest", "queuetest", "migrations"}, d.Name()):
				return filepath.SkipDir
			case !slices.Contains([]string{".go", ".html", ".sh"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_gen.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			has := map[string]bool{}
			for _, w := range word.FindAllString(string(text), -1) {
				has[w] = true
			}
			name, _ := filepath.Rel(repository, path)
			files[filepath.ToSlash(name)] = has
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

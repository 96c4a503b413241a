package job

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"linus/internal/vm"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// object is a JSON object as a test writes it.
type object = map[string]any

// manifestJSON is a good manifest with some keys changed; a nil value removes one.
func manifestJSON(t testing.TB, changes object) []byte {
	t.Helper()
	m := object{"task": "echo", "agentType": "script"}
	maps.Copy(m, changes)
	for k, v := range m {
		if v == nil {
			delete(m, k)
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// complaints decodes a manifest and returns its problems, which must all be in
// one *InvalidError.
func complaints(t testing.TB, data []byte) []*FieldError {
	t.Helper()
	_, err := DecodeManifest(data)
	if err == nil {
		return nil
	}
	var bad *InvalidError
	if !errors.As(err, &bad) || len(bad.Fields) == 0 {
		t.Fatalf("not an InvalidError: %v", err)
	}
	return bad.Fields
}

// expect checks that there is one complaint, about field, that says says; no
// field: no complaint.
func expect(t *testing.T, data []byte, field, says string) {
	t.Helper()
	bad := complaints(t, data)
	if field == "" {
		if len(bad) > 0 {
			t.Errorf("refused: %v", bad)
		}
		return
	}
	if len(bad) != 1 || bad[0].Field != field || !strings.Contains(bad[0].Error(), says) {
		t.Errorf("got %v, want one about %s that says %q", bad, field, says)
	}
}

func file(path string) object { return object{"path": path, "content": ""} }

func TestDecodeManifest_Rules(t *testing.T) {
	custom := func(command string) object {
		return object{"agentType": "custom", "agent": object{"command": command}}
	}
	claude := func(model string) object {
		return object{"agentType": "claude", "agent": object{"claudeModel": model}}
	}
	files := func(f ...any) object { return object{"files": append([]any{}, f...)} }
	labels := func(pairs ...string) object {
		all := object{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return object{"labels": all}
	}
	env := func(name, value string) object { return object{"env": object{name: value}} }
	memory := func(s string) object { return object{"resources": object{"memory": s}} }
	disk := func(s string) object { return object{"resources": object{"disk": s}} }
	cpu := func(n int) object { return object{"resources": object{"cpu": n}} }
	mode := func(m string) object { return files(object{"path": "/a", "content": "", "mode": m}) }
	content := func(c string) object { return files(object{"path": "/a", "content": c}) }
	zeros := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	const argument = 128 << 10 // the kernel's bound on one argument or NAME=value, NUL included

	tests := []struct {
		name    string
		changes object
		field   string // "" : accepted
		says    string
	}{
		{"the least", nil, "", ""},

		{"task missing", object{"task": nil}, "manifest.task", "required"},
		{"task empty", object{"task": ""}, "manifest.task", "required"},
		{"task blank", object{"task": " \t\n "}, "manifest.task", "blank"},
		{"task of one character", object{"task": "x"}, "", ""},
		{"task below the limit", object{"task": strings.Repeat("a", MaxTask-1)}, "", ""},
		{"task at the limit", object{"task": strings.Repeat("a", MaxTask)}, "", ""},
		{"task above the limit", object{"task": strings.Repeat("a", MaxTask+1)}, "manifest.task", "the limit is 1048576"},
		{"task limit is in bytes", object{"task": strings.Repeat("ü", MaxTask/2+1)}, "manifest.task", "the limit is 1048576"},
		{"task with NUL", object{"task": "a\x00b"}, "manifest.task", "NUL"},
		{"task with everything else", object{"task": "\x01\x1b'\"$`\\<&>\r\n😀"}, "", ""},

		{"agentType missing", object{"agentType": nil}, "manifest.agentType", "claude, codex, gemini, script, custom"},
		{"agentType unknown", object{"agentType": "bash"}, "manifest.agentType", "claude, codex, gemini, script, custom"},
		{"agentType in capitals", object{"agentType": "Script"}, "manifest.agentType", `"Script" is unknown`},
		{"script", object{"agentType": "script"}, "", ""},
		{"claude", object{"agentType": "claude"}, "", ""},
		{"script with a command", object{"agent": object{"command": "python3 -"}}, "", ""},
		{"custom", custom("python3 -"), "", ""},
		{"custom without agent", object{"agentType": "custom"}, "manifest.agent.command", "required for agentType custom"},
		{"custom with a blank command", custom("  "), "manifest.agent.command", "required for agentType custom"},
		{"claude with a command", object{"agentType": "claude", "agent": object{"command": "x"}}, "manifest.agent.command", "custom"},
		{"command at the limit", custom(strings.Repeat("a", argument-1)), "", ""},
		{"command above the limit", custom(strings.Repeat("a", argument)), "manifest.agent.command", "the limit is 131071"},
		{"command with NUL", custom("a\x00"), "manifest.agent.command", "NUL"},
		{"model", claude("claude-sonnet-4.5@20250929"), "", ""},
		{"model with a path", claude("us.anthropic/claude:1"), "", ""},
		{"model like an option", claude("--dangerously"), "manifest.agent.claudeModel", "not a model name"},
		{"model with a blank", claude("a b"), "manifest.agent.claudeModel", "not a model name"},
		{"model with a newline", claude("a\n"), "manifest.agent.claudeModel", "not a model name"},
		{"model at the limit", claude(strings.Repeat("a", 128)), "", ""},
		{"model above the limit", claude(strings.Repeat("a", 129)), "manifest.agent.claudeModel", "not a model name"},
		{"codex", object{"agentType": "codex", "agent": object{"model": "gpt-5"}}, "", ""},
		{"gemini", object{"agentType": "gemini"}, "", ""},
		{"claude's model for codex", object{"agentType": "codex", "agent": object{"claudeModel": "sonnet"}}, "manifest.agent.claudeModel", "no meaning for agentType codex"},
		{"agent's model for a script", object{"agent": object{"model": "sonnet"}}, "manifest.agent.model", "no meaning for agentType script"},
		{"agent's model like an option", object{"agentType": "codex", "agent": object{"model": "-c"}}, "manifest.agent.model", "not a model name"},
		{"two models", object{"agentType": "claude", "agent": object{"claudeModel": "a", "model": "b"}}, "manifest.agent.claudeModel", "together with model"},
		{"model for a script", object{"agent": object{"claudeModel": "sonnet"}}, "manifest.agent.claudeModel", "no meaning for agentType script"},

		{"file", files(object{"path": "/root/a b'\"$.txt", "content": "aGk=", "mode": "0755"}), "", ""},
		{"no files", files(), "", ""},
		{"file without path", files(object{"content": ""}), "manifest.files[0].path", "required"},
		{"file path relative", files(file("a/b")), "manifest.files[0].path", "not an absolute"},
		{"file path of home", files(file("~/a")), "manifest.files[0].path", "not an absolute"},
		{"file path of a directory", files(file("/a/")), "manifest.files[0].path", "not an absolute file path"},
		{"file path of the root", files(file("/")), "manifest.files[0].path", "not an absolute file path"},
		{"file path of a directory with a dot", files(file("/a/.")), "manifest.files[0].path", "not an absolute file path"},
		{"file path of the root with a dot", files(file("/.")), "manifest.files[0].path", "not an absolute file path"},
		{"hidden file", files(file("/a/.b")), "", ""},
		{"file path up", files(file("/a/../b")), "manifest.files[0].path", `contains ".."`},
		{"file path up at the end", files(file("/a/..")), "manifest.files[0].path", `contains ".."`},
		{"file name with two dots", files(file("/a/..b..")), "", ""},
		{"file path with newline", files(file("/a\nb")), "manifest.files[0].path", "newline"},
		{"file path with carriage return", files(file("/a\rb")), "manifest.files[0].path", "newline"},
		{"file path with NUL", files(file("/a\x00b")), "manifest.files[0].path", "control character"},
		{"file path at the limit", files(file("/" + strings.Repeat("a", 4095))), "", ""},
		{"file path above the limit", files(file("/" + strings.Repeat("a", 4096))), "manifest.files[0].path", "the limit is 4096"},
		{"file twice", files(file("/a"), file("/b"), file("/a")), "manifest.files[2].path", "duplicate"},
		{"file twice in other words", files(file("/a/b"), file("//a/./b")), "manifest.files[1].path", "duplicate"},
		{"bad base64", content("a*b="), "manifest.files[0].content", "not base64"},
		{"base64 without padding", content("aGk"), "manifest.files[0].content", "not base64"},
		{"base64 for addresses", content("_-8="), "manifest.files[0].content", "not base64"},
		{"base64 of 10 MB", content(zeros(10 << 20)), "", ""},
		{"mode short", mode("644"), "", ""},
		{"mode with set-uid", mode("04755"), "", ""},
		{"mode too short", mode("64"), "manifest.files[0].mode", "octal"},
		{"mode too long", mode("012345"), "manifest.files[0].mode", "octal"},
		{"mode not octal", mode("0888"), "manifest.files[0].mode", "octal"},
		{"mode in letters", mode("u+x"), "manifest.files[0].mode", "octal"},

		{"labels", labels("a", "x", "team.lan/ui-2", "Größe \"b\" = 1"), "", ""},
		{"label without a value", labels("a", ""), "", ""},
		{"label of 63", labels(strings.Repeat("k", 63), strings.Repeat("ü", 63)), "", ""},
		{"label key in capitals", labels("Team", "x"), "manifest.labels", "not a label's key"},
		{"label key that ends with a dash", labels("team-", "x"), "manifest.labels", "not a label's key"},
		{"label key too long", labels(strings.Repeat("k", 64), "x"), "manifest.labels", "at most 63"},
		{"label value too long", labels("team", strings.Repeat("x", 64)), "manifest.labels.team", "is 64 characters; give at most 63"},
		{"label value with a newline", labels("team", "a\nb"), "manifest.labels.team", "cannot be printed"},
		{"label value with an invisible character", labels("team", "a\u202eb"), "manifest.labels.team", "cannot be printed"},
		{"labels, too many", labels(strings.Split("a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4 5 6 7 8", " ")...), "manifest.labels", "are 17; give at most 16"},
		{"label of an existing VM's job", object{"vm": "dev", "labels": object{"team": "web"}}, "", ""},
		{"env", env("_Path2", "a'b\"$(x)\n\t\x01ü"), "", ""},
		{"env value empty", env("A", ""), "", ""},
		{"env name empty", env("", "x"), "manifest.env", "not a variable name"},
		{"env name with a digit first", env("1A", "x"), "manifest.env", "not a variable name"},
		{"env name with a dash", env("A-B", "x"), "manifest.env", "not a variable name"},
		{"env name with a command", env("A;reboot", "x"), "manifest.env", "not a variable name"},
		{"env name with a newline", env("A\n", "x"), "manifest.env", "not a variable name"},
		{"env name that is not ASCII", env("Ä", "x"), "manifest.env", "not a variable name"},
		{"env job ID", env("LINUS_JOB_ID", "x"), "manifest.env.LINUS_JOB_ID", "reserved for the job runner"},
		{"env task file", env("LINUS_TASK_FILE", "x"), "manifest.env.LINUS_TASK_FILE", "reserved for the job runner"},
		{"env root", env("LINUS_ROOT", "x"), "manifest.env.LINUS_ROOT", "reserved for the job runner"},
		{"env value with NUL", env("A", "a\x00b"), "manifest.env.A", "NUL"},
		{"env value at the limit", env("NAME", strings.Repeat("a", argument-len("NAME=")-1)), "", ""},
		{"env value above the limit", env("NAME", strings.Repeat("a", argument-len("NAME="))), "manifest.env.NAME", "the limit is 128 KiB"},

		{"no secrets", object{"secrets": []string{}}, "", ""},
		{"secrets", object{"secrets": []string{"TOKEN", "_k2"}}, "", ""},
		{"secret name with a dash", object{"secrets": []string{"A-B"}}, "manifest.secrets", `"A-B" is not a secret's name`},
		{"secret of the runner", object{"secrets": []string{"LINUS_ROOT"}}, "manifest.secrets", "reserved for the job runner"},
		{"secret twice", object{"secrets": []string{"A", "A"}}, "manifest.secrets", "given twice"},
		{"secret in env as well", object{"secrets": []string{"A"}, "env": object{"A": "x"}}, "manifest.secrets", "in env as well"},

		{"artifacts", object{"artifacts": []string{"dist/**", "/var/log/x.log", "a b*"}}, "", ""},
		{"artifact blank", object{"artifacts": []string{" "}}, "manifest.artifacts", "blank"},
		{"artifact up", object{"artifacts": []string{"a/../../etc/shadow"}}, "manifest.artifacts", `contains ".."`},
		{"artifact with newline", object{"artifacts": []string{"a\nb"}}, "manifest.artifacts", "newline"},
		{"too many artifact patterns", object{"artifacts": strings.Split(strings.Repeat("a,", MaxArtifactPatterns)+"a", ",")}, "manifest.artifacts", "the limit is 100"},

		{"cwd", object{"cwd": "/srv/a b"}, "", ""},
		{"cwd relative", object{"cwd": "srv"}, "manifest.cwd", "not absolute"},
		{"cwd with newline", object{"cwd": "/a\nb"}, "manifest.cwd", "newline"},
		{"stdin open", object{"stdin": "open"}, "", ""},
		{"stdin unknown", object{"stdin": "ajar"}, "manifest.stdin", "closed, open"},
		{"stdin open for a command", object{"stdin": "open", "agent": object{"command": "cat"}}, "manifest.stdin", "input is the task"},
		{"stdin open for claude", object{"stdin": "open", "agentType": "claude"}, "manifest.stdin", "input is the task"},
		{"tty", object{"tty": true, "ttySize": "50x132"}, "", ""},
		{"tty for claude", object{"tty": true, "agentType": "claude"}, "manifest.tty", "for agentType script"},
		{"tty size without tty", object{"ttySize": "50x132"}, "manifest.ttySize", "no meaning without manifest.tty"},
		{"tty size in words", object{"tty": true, "ttySize": "big"}, "manifest.ttySize", "ROWSxCOLUMNS"},

		{"vm by name", object{"vm": "dev-box"}, "", ""},
		{"vm by ID", object{"vm": "105"}, "", ""},
		{"vm like an option", object{"vm": "--all"}, "manifest.vm", "neither"},
		{"vm and a template", object{"vm": "dev", "vmTemplate": "x"}, "manifest.vmTemplate", "an existing VM"},
		{"vm and resources", object{"vm": "dev", "resources": object{"cpu": 2}}, "manifest.resources.cpu", "an existing VM"},
		{"vm and a lifecycle", object{"vm": "dev", "lifecycle": "ephemeral"}, "manifest.lifecycle", "an existing VM"},
		{"persistent with a name and a time", object{"lifecycle": "persistent", "vmName": "dev", "ttl": 3600}, "", ""},
		{"name of a VM that goes", object{"vmName": "dev"}, "manifest.vmName", "an ephemeral VM"},
		{"name with a dot", object{"lifecycle": "persistent", "vmName": "a.b"}, "manifest.vmName", "not a host name"},
		{"name like a VM's ID", object{"lifecycle": "persistent", "vmName": "105"}, "manifest.vmName", "looks like an ID"},
		{"name of a page", object{"lifecycle": "persistent", "vmName": "new"}, "manifest.vmName", "is taken by one of linus's own pages"},
		{"name of a stream", object{"lifecycle": "persistent", "vmName": "live"}, "manifest.vmName", "is taken by one of linus's own pages"},
		{"name like a job's ID", object{"lifecycle": "persistent", "vmName": "0197A1B2-0000-7000-8000-000000000001"}, "manifest.vmName", "looks like an ID"},
		{"name with digits", object{"lifecycle": "persistent", "vmName": "105a"}, "", ""},
		{"kept on failure", object{"keep": "on_failure"}, "", ""},
		{"kept on failure for a time", object{"keep": "on_failure", "keepFor": 60}, "", ""},
		{"kept in any case", object{"keep": "always", "keepFor": 60, "idleSuspend": 60}, "", ""},
		{"keep unknown", object{"keep": "long"}, "manifest.keep", "never, on_failure, always"},
		{"idle for too short", object{"keep": "always", "idleSuspend": 59}, "manifest.idleSuspend", "60 to"},
		{"idle of a VM that goes", object{"idleSuspend": 600}, "manifest.idleSuspend", "set manifest.lifecycle=persistent, or give manifest.keep"},
		{"idle of a VM that stays", object{"idleSuspend": 600, "lifecycle": "persistent"}, "", ""},
		{"idle of an existing VM", object{"idleSuspend": 600, "vm": "dev"}, "manifest.idleSuspend", "existing VM"},
		{"kept too short", object{"keep": "on_failure", "keepFor": 59}, "manifest.keepFor", "60 to"},
		{"a time without keep", object{"keepFor": 60}, "manifest.keepFor", "set manifest.keep=on_failure"},
		{"keep of a VM that stays", object{"keep": "on_failure", "lifecycle": "persistent"}, "manifest.keep", "persistent VM"},
		{"keep of an existing VM", object{"keep": "on_failure", "vm": "dev"}, "manifest.keep", "existing VM"},
		{"ttl of a VM that goes", object{"ttl": 60}, "manifest.ttl", "an ephemeral VM"},
		{"ttl zero", object{"lifecycle": "persistent", "ttl": 0}, "manifest.ttl", "1 to"},
		{"ttl too short", object{"lifecycle": "persistent", "ttl": -1}, "manifest.ttl", "1 to"},
		{"end of no time", object{"lifecycle": "persistent", "atEnd": "suspend"}, "manifest.atEnd", "manifest.ttl"},
		{"end that there is not", object{"lifecycle": "persistent", "ttl": 9, "atEnd": "sleep"}, "manifest.atEnd", "suspend"},
		{"suspended at its end", object{"lifecycle": "persistent", "ttl": 9, "atEnd": "suspend"}, "", ""},
		{"a matrix with a volume that one writes", object{"matrix": []any{"a=1,2"}, "volumes": []any{object{"name": "cache", "path": "/cache"}}}, "manifest.volumes[0]", "mount it ro"},
		{"a matrix with a volume that all read", object{"matrix": []any{"a=1,2"}, "volumes": []any{object{"name": "cache", "path": "/cache", "mode": "ro"}}}, "", ""},
		{"a matrix of one with a volume", object{"matrix": []any{"a=1"}, "volumes": []any{object{"name": "cache", "path": "/cache"}}}, "", ""},
		{"shards with one address", object{"shards": 2, "network": object{"ip": "10.0.0.5/24"}}, "manifest.network.ip", "a VM each"},
		{"shards with addresses", object{"shards": 2, "network": object{"ip": "10.0.0.5-10.0.0.9/24"}}, "", ""},
		{"os", object{"os": "debian-13"}, "", ""},
		{"os unknown", object{"os": "windows"}, "manifest.os", "ubuntu-24.04"},
		{"os and a template", object{"os": "debian", "vmTemplate": "x"}, "manifest.os", "together with manifest.vmTemplate"},
		{"network", object{"network": object{"bridge": "vmbr1", "vlan": 7, "ip": "10.0.0.5/24", "gateway": "10.0.0.1"}}, "", ""},
		{"network of the sixth version", object{"network": object{"ip": "2001:db8::5/64", "gateway": "2001:db8::1"}}, "", ""},
		{"bridge with a comma", object{"network": object{"bridge": "vmbr0,tag=1"}}, "manifest.network.bridge", "not a bridge's name"},
		{"vlan above", object{"network": object{"vlan": 4095}}, "manifest.network.vlan", "1 to 4094"},
		{"address without a prefix", object{"network": object{"ip": "10.0.0.5"}}, "manifest.network.ip", "prefix length"},
		{"gateway elsewhere", object{"network": object{"ip": "10.0.0.5/24", "gateway": "10.0.1.1"}}, "manifest.network.gateway", "not in the network of 10.0.0.5/24"},
		{"gateway with dhcp", object{"network": object{"ip": "dhcp", "gateway": "10.0.1.1"}}, "manifest.network.gateway", "fixed address"},

		{"cpu below", cpu(0), "manifest.resources.cpu", "1 to 32"},
		{"cpu negative", cpu(-1), "manifest.resources.cpu", "1 to 32"},
		{"cpu least", cpu(1), "", ""},
		{"cpu most", cpu(32), "", ""},
		{"cpu above", cpu(33), "manifest.resources.cpu", "1 to 32"},
		{"memory below", memory("511M"), "manifest.resources.memory", "512M to 512G"},
		{"memory below in K", memory("524287K"), "manifest.resources.memory", "512M to 512G"},
		{"memory least", memory("512M"), "", ""},
		{"memory least in K", memory("524288K"), "", ""},
		{"memory most", memory("512G"), "", ""},
		{"memory most in M", memory("524288M"), "", ""},
		{"memory above", memory("513G"), "manifest.resources.memory", "512M to 512G"},
		{"memory above in M", memory("524289M"), "manifest.resources.memory", "512M to 512G"},
		{"disk below", disk("4G"), "manifest.resources.disk", "5G to 10000G"},
		{"disk below in M", disk("5119M"), "manifest.resources.disk", "5G to 10000G"},
		{"disk least", disk("5G"), "", ""},
		{"disk least in M", disk("5120M"), "", ""},
		{"disk most", disk("10000G"), "", ""},
		{"disk above", disk("10001G"), "manifest.resources.disk", "5G to 10000G"},
		{"size without unit", memory("2048"), "manifest.resources.memory", "not a size"},
		{"size in small letters", memory("2g"), "manifest.resources.memory", "not a size"},
		{"size in T", disk("1T"), "manifest.resources.disk", "not a size"},
		{"size with a fraction", memory("1.5G"), "manifest.resources.memory", "not a size"},
		{"size with a zero first", memory("02G"), "manifest.resources.memory", "not a size"},
		{"size zero", disk("0G"), "manifest.resources.disk", "not a size"},
		{"size negative", disk("-5G"), "manifest.resources.disk", "not a size"},
		{"size with a newline", disk("5G\n"), "manifest.resources.disk", "not a size"},
		{"size beyond numbers", disk("99999999999999999999G"), "manifest.resources.disk", "too large"},
		{"size beyond bytes", disk("9007199254740993G"), "manifest.resources.disk", "too large"},

		{"timeout zero", object{"timeout": 0}, "manifest.timeout", "1 to 86400"},
		{"timeout negative", object{"timeout": -1}, "manifest.timeout", "1 to 86400"},
		{"timeout least", object{"timeout": 1}, "", ""},
		{"timeout most", object{"timeout": 86400}, "", ""},
		{"timeout above", object{"timeout": 86401}, "manifest.timeout", "1 to 86400"},

		{"lifecycle ephemeral", object{"lifecycle": "ephemeral"}, "", ""},
		{"lifecycle persistent", object{"lifecycle": "persistent"}, "", ""},
		{"lifecycle unknown", object{"lifecycle": "forever"}, "manifest.lifecycle", "ephemeral, persistent"},
		{"statusMode simple", object{"statusMode": "simple"}, "", ""},
		{"statusMode detailed", object{"statusMode": "detailed"}, "", ""},
		{"statusMode streaming", object{"statusMode": "streaming"}, "", ""},
		{"statusMode unknown", object{"statusMode": "loud"}, "manifest.statusMode", "simple, detailed, streaming"},

		{"vmTemplate name", object{"vmTemplate": "agent-template"}, "", ""},
		{"vmTemplate ID", object{"vmTemplate": "9000"}, "", ""},
		{"vmTemplate at the limit", object{"vmTemplate": strings.Repeat("a", 63)}, "", ""},
		{"vmTemplate above the limit", object{"vmTemplate": strings.Repeat("a", 64)}, "manifest.vmTemplate", "neither"},
		{"vmTemplate like an option", object{"vmTemplate": "--purge"}, "manifest.vmTemplate", "neither"},
		{"vmTemplate with a command", object{"vmTemplate": "a;b"}, "manifest.vmTemplate", "neither"},
		{"vmTemplate with a newline", object{"vmTemplate": "a\nb"}, "manifest.vmTemplate", "neither"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { expect(t, manifestJSON(t, tt.changes), tt.field, tt.says) })
	}
}

func TestDecodeManifest_ReportsAllProblemsAtOnce(t *testing.T) {
	bad := complaints(t, manifestJSON(t, object{
		"task": " ", "agentType": "x", "lifecycle": "x", "statusMode": "x", "vmTemplate": "-",
		"files":     []object{{"path": "a", "content": "*", "mode": "x"}, {"path": "", "content": ""}},
		"env":       object{"B-": "", "LINUS_ROOT": "", "A-": ""},
		"resources": object{"cpu": 99, "memory": "1K", "disk": "x"},
		"timeout":   -5,
	}))
	var got []string
	for _, f := range bad {
		got = append(got, f.Field)
		if f.Remedy == "" {
			t.Errorf("%s has no remedy", f.Field)
		}
	}
	want := []string{
		"manifest.agentType", "manifest.task", "manifest.timeout",
		"manifest.files[0].path", "manifest.files[0].content", "manifest.files[0].mode", "manifest.files[1].path",
		"manifest.vmTemplate", "manifest.resources.cpu", "manifest.resources.memory", "manifest.resources.disk",
		"manifest.env", "manifest.env", "manifest.env.LINUS_ROOT",
		"manifest.statusMode", "manifest.lifecycle",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
}

func TestValidate_ManyAreLimited(t *testing.T) {
	many := func(n, length int) (files []File) {
		for i := range n {
			files = append(files, File{Path: fmt.Sprintf("/%0*d", length-1, i)})
		}
		return files
	}
	env := map[string]string{}
	for i := range 16 {
		env[fmt.Sprintf("V%X", i)] = strings.Repeat("x", MaxEnv/16-len("V0="))
	}
	more := maps.Clone(env)
	more["W"] = ""
	for _, tt := range []struct {
		name  string
		m     Manifest
		field string // refused
		text  string
	}{
		{"files at the limit", Manifest{Files: many(MaxFileCount, 20)}, "", ""},
		{"one file more", Manifest{Files: many(MaxFileCount+1, 20)}, "manifest.files", "are 20001, the limit is 20000"},
		{"paths at the limit", Manifest{Files: many(MaxPaths/4096, 4096)}, "", ""},
		{"paths above it", Manifest{Files: many(MaxPaths/4096+1, 4096)}, "manifest.files", "have paths of more than 4194304 bytes together"},
		{"variables at the limit", Manifest{Env: env}, "", ""},
		{"a variable more", Manifest{Env: more}, "manifest.env", "is more than 1048576 bytes together"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.m.Task, tt.m.AgentType = "true", AgentScript
			err := tt.m.Validate()
			var invalid *InvalidError
			if tt.field == "" && err != nil {
				t.Fatal(err)
			}
			if tt.field != "" && (!errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Field != tt.field || invalid.Fields[0].Problem != tt.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestValidate_FilesTogether(t *testing.T) { // without JSON, which takes its time over so much
	full := File{Path: "/a", Content: base64.StdEncoding.EncodeToString(make([]byte, MaxFiles))}
	over := File{Path: "/a", Content: base64.StdEncoding.EncodeToString(make([]byte, MaxFiles+1))}
	for _, tt := range []struct {
		name    string
		files   []File
		refused bool
	}{
		{"at the limit", []File{full, {Path: "/b"}}, false},
		{"one above the limit", []File{over}, true},
		{"above the limit together", []File{full, {Path: "/b", Content: "AA=="}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Manifest{Task: "x", AgentType: AgentScript, Files: tt.files}.Validate()
			var bad *InvalidError
			if tt.refused != (errors.As(err, &bad) && len(bad.Fields) == 1 && bad.Fields[0].Field == "manifest.files") {
				t.Errorf("refused %v, got %v", tt.refused, err)
			}
			if !tt.refused && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestValidate_TextThatIsNotUnicode(t *testing.T) { // no JSON can bring it, Go can
	m := Manifest{Task: "a\xff", AgentType: AgentCustom, Agent: Agent{Command: "b\xff"}, Files: []File{{Path: "/c\xff"}}}
	var bad *InvalidError
	if err := m.Validate(); !errors.As(err, &bad) || len(bad.Fields) != 3 {
		t.Errorf("got %v", err)
	}
}

func TestDecodeManifest_Exact(t *testing.T) {
	data := make([]byte, 256)
	for i := range data {
		data[i] = byte(i)
	}
	want := Manifest{
		Task: "echo '<&>'\u2028\t😀\r\n", AgentType: AgentCustom, Agent: Agent{Command: "sh -c 'x'"},
		Files:     []File{{Path: "/a", Content: base64.StdEncoding.EncodeToString(data), Mode: "0755"}},
		Env:       map[string]string{"A": " a\nb\\ud800 "},
		Resources: vm.Resources{CPU: 1, Memory: "1G", Disk: "5G"}, Timeout: 5,
		Lifecycle: vm.Persistent, VMTemplate: "9000", StatusMode: StatusStreaming,
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
	if content, err := got.Files[0].Data(); err != nil || string(content) != string(data) {
		t.Errorf("content %q, %v", content, err)
	}
}

func TestWithDefaults_FillsOnlyWhatIsEmpty(t *testing.T) {
	d := Defaults{VMTemplate: "agent-template", Timeout: 3600, CPU: 2, Memory: "2G", Disk: "10G"}
	got := Manifest{Task: "x", Timeout: 5, Resources: vm.Resources{Memory: "4G"}}.WithDefaults(d)
	want := Manifest{
		Task: "x", Timeout: 5, VMTemplate: "agent-template", Lifecycle: vm.Ephemeral, StatusMode: StatusSimple,
		Resources: vm.Resources{CPU: 2, Memory: "4G", Disk: "10G"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if diff := cmp.Diff(want, got.WithDefaults(Defaults{VMTemplate: "other", Timeout: 1, CPU: 1, Memory: "1G", Disk: "5G"})); diff != "" {
		t.Errorf("a second time changed it:\n%s", diff)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1K": 1 << 10, "1M": 1 << 20, "1G": 1 << 30, "10G": 10 << 30, "2048K": 2 << 20, "10000G": 10000 << 30,
		"8589934591G":       8589934591 << 30, // the most G that fit
		"9007199254740991K": 9007199254740991 << 10,
	} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%s is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "G", "1", "1T", "1g", "1GB", "1 G", " 1G", "1G ", "1G\n", "0G", "01G", "+1G", "-1G", "1.5G", "1e3G", "1_0G", "١G",
		"8589934592G", "9007199254740992K", fmt.Sprint(uint64(math.MaxUint64), "K"), strings.Repeat("9", 1000) + "G",
	} {
		if got, err := ParseSize(text); err == nil || got != 0 {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add(manifestJSON(f, nil))
	f.Add(manifestJSON(f, object{
		"agentType": "custom", "agent": object{"command": "cat"}, "timeout": 5, "secrets": []string{},
		"files": []object{{"path": "/a", "content": "aGk=", "mode": "0600"}}, "env": object{"A": "b"},
		"resources": object{"cpu": 1, "memory": "1G", "disk": "5G"}, "vmTemplate": "x", "lifecycle": "persistent",
	}))
	for _, seed := range []string{
		``, `null`, `[]`, `{`, `{"task":1}`, `{"task":"\ud800","agentType":"script"}`, `{"Task":"x"}`,
		`{"task":"x","task":"y"}`, `{"agent":{"command":{}}}`, `{"files":[null]}`, `{"timeout":1e999}`, `{"env":{"A":null}}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeManifest(data)
		var bad *InvalidError
		if err != nil {
			if !errors.As(err, &bad) || len(bad.Fields) == 0 {
				t.Fatalf("not an InvalidError: %#v", err)
			}
			return
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeManifest(text)
		if err != nil {
			t.Fatalf("accepted, and refused as %s: %v", text, err)
		}
		if d := cmp.Diff(m, again, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("changed by a round trip:\n%s", d)
		}
	})
}

// What each submission pays before it is stored. On a busy machine ns/op is mostly waiting: compare
// allocations, and the user time of as many runs.
func BenchmarkComplete(b *testing.B) {
	m := Manifest{Task: "make test", AgentType: AgentScript, Timeout: 60, Labels: map[string]string{"team": "web"}}
	d := Defaults{VMTemplate: "agent-template", Timeout: 3600, CPU: 2, Memory: "2G", Disk: "10G"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Complete(d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeManifest(b *testing.B) {
	data := []byte(`{"task":"make test","agentType":"script","timeout":60,"resources":{"cpu":2,"memory":"2G"},"labels":{"team":"web"},"files":[{"path":"/root/a","content":"eA=="}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeManifest(data); err != nil {
			b.Fatal(err)
		}
	}
}

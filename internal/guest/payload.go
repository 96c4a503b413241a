package guest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/embed"
	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/remote"
)

// payloadFiles are the files the job runner works from. The task, command, env
// and files are bytes in files of their own: no shell reads them on the way.
func payloadFiles(at place, id string, p executor.Payload) ([]remote.File, error) {
	runner, err := embed.Script("job-runner")
	if err != nil {
		return nil, err
	}
	manifest, err := readableManifest(p.Manifest)
	if err != nil {
		return nil, err
	}
	list := []remote.File{
		{Path: path.Join(at.home, "job-runner.sh"), Data: runner.Body, Mode: 0o700},
		{Path: path.Join(at.home, "manifest.json"), Data: manifest, Mode: 0o600},
		{Path: path.Join(at.home, "task"), Data: []byte(p.Manifest.Task), Mode: 0o600},
		{Path: path.Join(at.home, "env"), Data: envEntries(p.Manifest.Env), Mode: 0o600},
		{Path: path.Join(at.tmpfs, "token"), Data: []byte(p.Token + "\n"), Mode: 0o600},
	}
	if len(p.Secrets) > 0 {
		list = append(list, remote.File{Path: path.Join(at.tmpfs, "secrets"), Data: envEntries(p.Secrets), Mode: 0o600})
	}
	if len(p.Manifest.Artifacts) > 0 {
		patterns := strings.Join(p.Manifest.Artifacts, "\x00") + "\x00"
		list = append(list, remote.File{Path: path.Join(at.home, "artifacts"), Data: []byte(patterns), Mode: 0o600})
	}
	if p.Manifest.Agent.Command != "" {
		list = append(list, remote.File{Path: path.Join(at.home, "command"), Data: []byte(p.Manifest.Agent.Command), Mode: 0o600})
	}
	var index bytes.Buffer
	for i, f := range p.Manifest.Files {
		data, err := f.Data()
		if err != nil {
			return nil, fmt.Errorf("decode %s: %w", f.Path, err)
		}
		mode, err := fileMode(f.Mode)
		if err != nil {
			return nil, fmt.Errorf("mode of %s: %w", f.Path, err)
		}
		list = append(list, remote.File{Path: path.Join(at.home, "files", strconv.Itoa(i)), Data: data, Mode: 0o600})
		fmt.Fprintf(&index, "%d\x00%04o\x00%s\x00", i, mode, f.Path)
	}
	return append(list,
		remote.File{Path: path.Join(at.home, "files.index"), Data: index.Bytes(), Mode: 0o600},
		remote.File{Path: path.Join(at.home, "settings"), Data: settings(id, p), Mode: 0o600},
	), nil
}

// settings are the runner's KEY=VALUE lines. Every value is ours or validated:
// none can hold a newline.
func settings(id string, p executor.Payload) []byte {
	agent := map[job.AgentType]string{job.AgentScript: "script", job.AgentCustom: "command", job.AgentClaude: "claude"}[p.Manifest.AgentType]
	if p.Manifest.Agent.Command != "" {
		agent = "command"
	}
	var b bytes.Buffer
	line := func(key, value string) { fmt.Fprintf(&b, "%s=%s\n", key, value) }
	line("JOB_ID", id)
	line("AGENT", agent)
	line("CLAUDE_MODEL", p.Manifest.Agent.ClaudeModel)
	line("TIMEOUT", strconv.Itoa(p.Manifest.Timeout))
	line("STATUS_MODE", string(p.Manifest.StatusMode))
	line("CALLBACK_URL", p.CallbackURL)
	line("HEARTBEAT_INTERVAL", strconv.Itoa(p.HeartbeatInterval))
	line("MAX_OUTPUT_SIZE", strconv.FormatInt(p.MaxOutput, 10))
	line("CWD", p.Manifest.Cwd)
	if p.Manifest.Sudo {
		line("SUDO", "yes")
	}
	if p.Manifest.Stdin == job.StdinOpen {
		line("STDIN", "open")
	}
	if p.Manifest.TTY {
		line("TTY", cmp.Or(p.Manifest.TTYSize, "24x80"))
	}
	return b.Bytes()
}

// readableManifest is the manifest for people who look into the VM.
func readableManifest(m job.Manifest) ([]byte, error) {
	m.Files = slices.Clone(m.Files)
	for i := range m.Files {
		m.Files[i].Content = "" // lies in files/, byte for byte
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write manifest.json: %w", err)
	}
	return append(data, '\n'), nil
}

// envEntries are NUL-terminated NAME=VALUE entries.
func envEntries(env map[string]string) []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b.WriteString(name + "=" + env[name] + "\x00")
	}
	return []byte(b.String())
}

// fileMode reads the manifest's octal permissions; "" is 0644.
func fileMode(text string) (uint64, error) {
	if text == "" {
		return 0o644, nil
	}
	return strconv.ParseUint(text, 8, 12)
}
